"""The search space of a sweep: designs as the parameters of an Optuna trial, and back.

Every trial has all parameters, whatever their values, so that every sampler can model them:

    merge, image_size, dtype       the form of the network, where there are several
    meet.B                         whether a segment ends before block B
    processors.B                   processors of the branches of the segment that begins with block B; one: it has none
    width.B.PROCESSOR              width ratio of its branch there
    dropped.B.PROCESSOR            blocks that its branch drops, those that change their input least first

A segment reads the parameters of the block that it begins with. All values are legal: a segment that is not possible ends at
the last block where it is, and the rest is a segment with the parameters of its own first block.

Segments with one processor are not branched. Their layers run where the network is predicted to take least, whichever processor
that is, or split over several, as the scheduler decides; neighbours that run alike are one segment of the design.

Example: a ResNet-18 has blocks 0 to 9. `meet.4` is true and `processors.0` names both processors, so the first segment is to be
blocks 0 to 3. If `max_segment` allows two blocks, blocks 2 and 3 become a segment with the parameters of block 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nnstretch.branching.channels.scaling import kept_counts
from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice
from nnstretch.branching.design.design import Design, Merge, parse_merge
from nnstretch.branching.design.from_choices import choices_of
from nnstretch.branching.latency.prediction import Prediction
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import candidate_boundaries
from nnstretch.branching.search.dynamic_programming import merged_choices
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.network_latency import placed, predicted_design
from nnstretch.branching.tracing.trace import Segment
from nnstretch.errors import DesignError, UsageError
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.int8_form import INT8
from nnstretch.support.image_size import LEAST_SIDE, ImageSize, as_image_size, of_size_key, sides, size_key
from nnstretch.support.progress import silent

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_WIDTH_STEPS = 32  # width ratios that round to the same layers become the smallest multiple of 1/32 among them

Parameters = Mapping[str, Any]
"""Values by the names of parameters, as an Optuna trial has them."""


@dataclass(frozen=True)
class Form:
    """What a network is beside its branches: how these merge, the images that it takes, and what it computes with.

    Attributes:
        merge: how branches are merged.
        image_size: of the images; None: that of the example input.
        dtype: float32, or int8: the network is quantised after its training.
    """

    merge: Merge = Merge.CONCAT
    image_size: ImageSize | None = None
    dtype: str = DEFAULT_DTYPE


def forms_of(merges: Sequence[str], image_sizes: Sequence[ImageSize], dtypes: Sequence[str]) -> tuple[Form, ...]:
    """All combinations of merge modes, image sizes and types.

    Args:
        merges: names of merge modes.
        image_sizes: sides in pixels, or heights and widths; none: that of the example input.
        dtypes: float32, int8 or both.

    Raises:
        UsageError: a size is too small, or a type is unknown.
        DesignError: a merge mode is unknown.
    """
    image_sizes = [as_image_size(size) for size in image_sizes]
    if small := [size for size in image_sizes if min(sides(size)) < LEAST_SIDE]:
        raise UsageError(f"`image_sizes` has {size_key(small[0])}; give sides of {LEAST_SIDE} pixels or more")
    if not dtypes or not {*dtypes} <= {DEFAULT_DTYPE, INT8}:
        raise UsageError(f"`dtypes` is {', '.join(dtypes) or 'empty'}; give float32, int8, or both")
    modes = [parse_merge(merge) for merge in merges]
    return tuple(
        Form(mode, size, dtype) for mode in modes for size in image_sizes or (None,) for dtype in dict.fromkeys(dtypes)
    )


@dataclass(frozen=True)
class PredictedDesign:
    """A design of the search space.

    Attributes:
        design: with predicted latencies.
        prediction: of its parts.
        latencies: the predictions that it was made with.
        dtype: what it computes with.
    """

    design: Design
    prediction: Prediction
    latencies: LatencyTable
    dtype: str = DEFAULT_DTYPE

    @property
    def choices(self) -> list[SegmentChoice]:
        """Its segments."""
        return choices_of(self.design)


@dataclass(eq=False)
class DesignSpace:
    """All designs that a sweep can choose.

    Attributes:
        make_latencies: predictions for a form of the network; called once per form.
        forms: the forms to choose from; the chain of blocks is the same in all of them.
        names: of the processors, in the order in which designs number them.
        limits: `min_depth`, `min_width` and `max_segment` bound the space; the family's defaults are filled in.
    """

    make_latencies: Callable[[Form], LatencyTable]
    forms: Sequence[Form]
    names: Sequence[str]
    limits: SearchLimits
    _latencies: dict[Form, LatencyTable] = field(default_factory=dict, init=False)

    def latencies(self, form: Form) -> LatencyTable:
        """The predictions for a form."""
        if form not in self._latencies:
            self._latencies[form] = self.make_latencies(form)
        return self._latencies[form]

    @cached_property
    def boundaries(self) -> list[int]:
        """Numbers of the blocks before which segments may begin, and the number of blocks."""
        return candidate_boundaries(self.latencies(self.forms[0]), silent)

    @cached_property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """Groups of processors that may compute a segment, by name."""
        count = len(self.names)
        found = [g for size in range(1, count + 1) for g in itertools.combinations(range(count), size)]
        return {"+".join(self.names[p] for p in group): group for group in found}

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The parameters with their ranges."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        assert self.limits.min_width is not None
        space: dict[str, BaseDistribution] = {}
        merges = list(dict.fromkeys(form.merge.value for form in self.forms))
        sizes = list(dict.fromkeys(size_key(form.image_size) for form in self.forms))
        dtypes = list(dict.fromkeys(form.dtype for form in self.forms))
        if len(merges) > 1:
            space["merge"] = CategoricalDistribution(merges)
        if len(sizes) > 1:
            space["image_size"] = CategoricalDistribution(sizes)
        if len(dtypes) > 1:
            space["dtype"] = CategoricalDistribution(dtypes)
        space |= {f"meet.{block}": CategoricalDistribution([False, True]) for block in self.boundaries[1:-1]}
        single = [name for name, group in self.groups.items() if len(group) == 1]
        for block in self.boundaries[:-1]:
            dropped = self._most_dropped(block)
            names = single if dropped is None else list(self.groups)
            if len(names) > 1:
                space[f"processors.{block}"] = CategoricalDistribution(names)
            if dropped is None:
                continue
            for name in self.names:
                if self.limits.min_width < 1:
                    space[f"width.{block}.{name}"] = FloatDistribution(self.limits.min_width, 1.0)
                if dropped:
                    space[f"dropped.{block}.{name}"] = IntDistribution(0, dropped)
        return space

    def design(self, parameters: Parameters) -> PredictedDesign:
        """The design with these parameters; every combination has one, and those that run alike have the same."""
        form = self.form(parameters)
        latencies = self.latencies(form)
        segments = placed(latencies, self._segments(latencies, parameters))
        merged = merged_choices(latencies.blueprint.traced, segments)  # what runs alike is one design
        design, prediction = predicted_design(latencies, merged)
        return PredictedDesign(design, prediction, latencies, form.dtype)

    @property
    def original(self) -> PredictedDesign:
        """The network as it came: without branches, in float32, for images of its own size."""
        return self.design({"image_size": None, "dtype": DEFAULT_DTYPE})

    def form(self, parameters: Parameters) -> Form:
        """The form of the network with these parameters."""
        return Form(
            Merge(parameters.get("merge", self.forms[0].merge.value)),
            self._image_size(parameters),
            parameters.get("dtype", self.forms[0].dtype),
        )

    def _image_size(self, parameters: Parameters) -> ImageSize | None:
        if "image_size" not in parameters:
            return self.forms[0].image_size
        key = parameters["image_size"]
        return None if key is None else of_size_key(key)

    def parameters(self, design: Design, form: Form | None = None) -> dict[str, Any]:
        """Parameters whose design equals `design`, for warm starts.

        Args:
            design: for a form of this network.
            form: that it is for; by default the first one that has its merge mode.

        Raises:
            DesignError: the space does not have it.
        """
        form = form or next((f for f in self.forms if f.merge is design.merge), None)
        if form is None:
            raise DesignError(f"design {design.id} merges by {design.merge.value}, which the sweep does not have")
        latencies = self.latencies(form)
        values: dict[str, Any] = {
            "merge": form.merge.value,
            "image_size": size_key(form.image_size),
            "dtype": form.dtype,
        }
        values |= dict.fromkeys((f"meet.{block}" for block in self.boundaries[1:-1]), False)
        for choice in choices_of(design):
            values |= self._values(latencies, choice)
        found = {name: _fitting(kind, values.get(name, _default(name))) for name, kind in self.distributions.items()}
        made = self.design(found).design
        if (made.macs, made.params) != (design.macs, design.params):
            raise DesignError(f"design {design.id} is not in the search space of the sweep")
        return found

    # -- from parameters to segments ------------------------------------------------------------------------------

    def _segments(self, latencies: LatencyTable, parameters: Parameters) -> list[SegmentChoice]:
        """Consecutive segments that cover the network."""
        choices: list[SegmentChoice] = []
        first, end = 0, self.boundaries[-1]
        while first < end:
            wanted = next(b for b in self.boundaries if b > first and (b == end or parameters.get(f"meet.{b}", False)))
            begin = max(
                b for b in self.boundaries if b <= first
            )  # differs where a segment had to end between boundaries
            group = self.groups[parameters.get(f"processors.{begin}", self.names[0])]
            choice = self._branched(latencies, first, wanted, begin, group, parameters) if len(group) > 1 else None
            choice = choice or self._whole(latencies, first, wanted, group[0])
            choices.append(choice)
            first = choice.segment.stop
        return choices

    def _whole(self, latencies: LatencyTable, first: int, wanted: int, processor: int) -> SegmentChoice:
        """The longest unbranched segment up to `wanted`."""
        traced = latencies.blueprint.traced
        stop = next(b for b in range(wanted, first, -1) if traced.is_self_contained(Segment(first, b)))
        segment = Segment(first, stop)
        return SegmentChoice(segment, (BranchChoice.whole(segment, processor),))

    def _branched(
        self,
        latencies: LatencyTable,
        first: int,
        wanted: int,
        begin: int,
        group: Sequence[int],
        parameters: Parameters,
    ) -> SegmentChoice | None:
        """The longest branched segment up to `wanted`; None if there is none."""
        stops = [b for b in self._branched_stops(latencies, first) if b <= wanted]
        if not stops:
            return None
        segment = Segment(first, stops[-1])
        blueprint = latencies.blueprint
        depths = blueprint.depth_candidates(segment, self.limits.min_depth or 0.0)
        branches = []
        for processor in group:
            name = self.names[processor]
            blocks = depths[min(parameters.get(f"dropped.{begin}.{name}", 0), len(depths) - 1)]
            width = self._rounded(latencies, segment, blocks, parameters.get(f"width.{begin}.{name}", 1.0))
            branches.append(BranchChoice(processor, blocks, width))
        return SegmentChoice(segment, blueprint.meeting(segment, branches))

    def _rounded(self, latencies: LatencyTable, segment: Segment, blocks: tuple[int, ...], width: float) -> float:
        """The smallest multiple of 1/32 that makes the same layers as `width`; `width` itself if none does."""
        blueprint = latencies.blueprint
        plan = blueprint.branch(segment, blocks)
        counts = kept_counts(plan, width, blueprint.multiple)
        steps = [
            i / _WIDTH_STEPS for i in range(1, _WIDTH_STEPS + 1) if i / _WIDTH_STEPS >= (self.limits.min_width or 0)
        ]
        return next((step for step in steps if kept_counts(plan, step, blueprint.multiple) == counts), width)

    def _branched_stops(self, latencies: LatencyTable, first: int) -> list[int]:
        """Boundaries at which a branched segment from `first` may end, ascending."""
        blueprint = latencies.blueprint
        whole = latencies.original_macs(Segment(0, len(blueprint.traced.blocks)))
        after = [b for b in self.boundaries if b > first]
        stops = []
        for number, stop in enumerate(after):
            segment = Segment(first, stop)
            if number and latencies.original_macs(segment) > self.limits.max_segment * whole:
                break
            if blueprint.branchable(segment) and blueprint.depth_candidates(segment, self.limits.min_depth or 0.0):
                stops.append(stop)
        return stops

    def _most_dropped(self, block: int) -> int | None:
        """Most blocks that a branch from `block` on can drop; None if no segment from there can be branched."""
        most = None
        for form in {form.merge: form for form in self.forms}.values():
            latencies = self.latencies(form)
            for stop in self._branched_stops(latencies, block):
                depths = latencies.blueprint.depth_candidates(Segment(block, stop), self.limits.min_depth or 0.0)
                most = max(most or 0, len(depths) - 1)
        return most

    def _values(self, latencies: LatencyTable, choice: SegmentChoice) -> dict[str, Any]:
        """The parameters of one segment. All blocks within it get them: a segment that begins there is alike at first."""
        segment = choice.segment
        group = "+".join(self.names[branch.processor] for branch in choice.branches)
        values: dict[str, Any] = {f"meet.{segment.first}": True} if segment.first else {}
        depths = latencies.blueprint.depth_candidates(segment, self.limits.min_depth or 0.0)
        for block in (b for b in self.boundaries if segment.first <= b < segment.stop):
            values[f"processors.{block}"] = group
            for branch in choice.branches:
                name = self.names[branch.processor]
                values[f"width.{block}.{name}"] = branch.width
                if branch.blocks in depths:
                    values[f"dropped.{block}.{name}"] = depths.index(branch.blocks)
        return values


def _default(name: str) -> Any:
    """The value of a parameter that a design says nothing about: full width, all blocks, no meeting point."""
    return {"meet": False, "width": 1.0, "dropped": 0}.get(name.partition(".")[0])


def _fitting(distribution: BaseDistribution, value: Any) -> Any:
    """The value in a distribution's range that is nearest to `value`; of categories, the first one unless `value` is one."""
    if hasattr(distribution, "choices"):
        return value if value in distribution.choices else distribution.choices[0]
    low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
    return min(max(value, low), high)
