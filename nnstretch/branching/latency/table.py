"""Table of predicted latencies of a network's branches, blocks, head and meeting points, in seconds.

The search asks for hundreds of thousands of branches that differ only in the channels of their input. Predictions are
cached by layer, and interpolated linearly between some numbers of input channels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from nnstretch.branching.channels.groups import ChannelPlan, network_input
from nnstretch.branching.channels.scaling import (
    ORIGINAL,
    ReadChannels,
    TensorChannels,
    inputs_of,
    kept_counts,
    needed_entries,
)
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, HeadChoice
from nnstretch.branching.design.cost import part_cost
from nnstretch.branching.design.equal_macs import equal_macs_counts, whole_plan
from nnstretch.branching.design.from_choices import segment_cost
from nnstretch.branching.latency.prediction import LatencyPredictor
from nnstretch.branching.latency.row_seconds import RowSeconds
from nnstretch.branching.latency.split_layers import Home, InBands, SplitCost, SplitLayers
from nnstretch.branching.latency.workloads import (
    LayerFamily,
    LayerRow,
    VaryingLayer,
    layer_family,
    merge_layers,
    part_layers,
)
from nnstretch.branching.tracing.operators import channels_of, shape_of
from nnstretch.branching.tracing.trace import Segment
from nnstretch.errors import DesignError
from nnstretch.graph.layer import TensorType
from nnstretch.graph.slices import LEAST_SHARE

_KNOTS = 4  # latencies are interpolated linearly between multiples of 1/4 of the original channels
_MEETING_KNOTS = 2  # the same for meeting points


@dataclass(frozen=True)
class BranchCost:
    """Cost of a branch for a given number of input channels.

    Attributes:
        seconds: on its processor alone.
        macs: for one sample.
        channels: channels that it writes.
    """

    seconds: float
    macs: int
    channels: int


@dataclass(eq=False)
class LatencyTable:
    """Cached costs of branches and meeting points.

    Attributes:
        blueprint: the network.
        predictor: of latencies.
        processors: number of processors.
        splits: whether layers of segments without branches, and of the head, may be split over processors.
        corrections: (block, processor) -> measured over predicted seconds (alone) of the last branch that ran
            there with this block; the number of blocks stands for the head.
        rows: predictions of rows of layers.
        version: how often the cached latencies were cleared.
    """

    blueprint: Blueprint
    predictor: LatencyPredictor
    processors: int
    splits: bool = False
    corrections: dict[tuple[int, int], float] = field(default_factory=dict)
    rows: RowSeconds = field(init=False)
    version: int = field(default=0, init=False)
    _families: dict[tuple[ChannelPlan, tuple[int, ...], bool], LayerFamily] = field(default_factory=dict)
    _kinds: dict[tuple[int, str, str], VaryingLayer] = field(default_factory=dict)
    _fixed: dict[tuple[LayerFamily, int], float] = field(default_factory=dict)
    _knots: dict[tuple[VaryingLayer, int, int], float] = field(default_factory=dict)
    _costs: dict[tuple[Segment, BranchChoice, int, bool], BranchCost] = field(default_factory=dict)
    _block_macs: list[int] = field(default_factory=list)
    _blocks: dict[int, tuple[float, ...]] = field(default_factory=dict)
    _originals: dict[Segment, tuple[float, ...]] = field(default_factory=dict)
    _merges: dict[tuple[int, tuple[int, ...]], float] = field(default_factory=dict)
    _meetings: dict[tuple[TensorType, Home, Home], float] = field(default_factory=dict)
    _meetings_at: dict[tuple[int, int, Home, Home], float] = field(default_factory=dict)
    _splits: dict[tuple[ChannelPlan, tuple[tuple[int, bool], ...], Home, Home], SplitCost] = field(default_factory=dict)
    _bands: dict[tuple[int, int, bool], InBands | None] = field(default_factory=dict)
    _towers: dict[tuple[HeadChoice, tuple[int, ...]], float] = field(default_factory=dict)
    _controls: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = RowSeconds(self.predictor, self.processors)

    def branch(self, segment: Segment, choice: BranchChoice, in_channels: int, *, exact: bool) -> BranchCost:
        """Cost of a branch; the latency of the layers that read its input is interpolated."""
        key = (segment, choice, in_channels, exact)
        if key not in self._costs:
            plan, counts = self.blueprint.plan(segment, choice), self.blueprint.counts(segment, choice)
            family = self._family(plan, counts, exact=exact)
            seconds = self._family_seconds(family, in_channels, choice.processor)
            self._costs[key] = BranchCost(seconds, family.macs(in_channels), family.width(in_channels))
        return self._costs[key]

    def branch_seconds(self, segment: Segment, choice: BranchChoice, reads: ReadChannels = ORIGINAL) -> float:
        """Seconds of a branch that reads tensors with these channels, without interpolation."""
        plan, counts = self.blueprint.plan(segment, choice), self.blueprint.counts(segment, choice)
        return self.rows.seconds(part_layers(plan, counts, reads), choice.processor)

    def original(self, segment: Segment) -> tuple[float, ...]:
        """Seconds of the original blocks on every processor."""
        if segment not in self._originals:
            blocks = [self._block_seconds(block) for block in segment.blocks]
            self._originals[segment] = tuple(map(sum, zip(*blocks, strict=True)))
        return self._originals[segment]

    def original_macs(self, segment: Segment) -> int:
        """MACs of the original blocks."""
        if not self._block_macs:
            count = len(self.blueprint.traced.blocks)
            self._block_macs = [segment_cost(self.blueprint, Segment(i, i + 1)).macs for i in range(count)]
        return sum(self._block_macs[segment.first : segment.stop])

    def control_share(self, macs: int) -> float:
        """Predicted seconds of the equal-MACs control over the original's, on the processor where the original is fastest.

        A narrower network computes fewer multiply-adds per second, so that this is more than its share of the MACs.

        Args:
            macs: of the branched network; with as many as the original, or more, the original is its control.
        """
        if macs not in self._controls:
            self._controls[macs] = self._control_share(macs)
        return self._controls[macs]

    def _control_share(self, macs: int) -> float:
        plan = self._whole_plan
        counts = kept_counts(plan, 1.0)
        original = part_cost(plan, counts).macs
        if macs >= original:
            return 1.0
        try:
            narrow = equal_macs_counts(plan, macs, self.blueprint.multiple)
        except DesignError:  # a control cannot be made, either
            return macs / original
        rows = [part_layers(plan, some) for some in (narrow, counts)]
        controls, originals = (
            [self.rows.seconds(row, processor) for processor in range(self.processors)] for row in rows
        )
        seconds = min(originals)
        return min(1.0, controls[originals.index(seconds)] / seconds) if seconds else macs / original

    @cached_property
    def _whole_plan(self) -> ChannelPlan:
        return whole_plan(self.blueprint.traced)

    def ideal_split(self, block: int, groups: Sequence[Mapping[int, float]]) -> float:
        """Seconds of an original block if every layer's work is divided without loss over its best group of processors.

        Args:
            block: its number; past the last block, the head.
            groups: contention factors of the processors of each group.
        """
        alone, head = Segment(block, block + 1), self.blueprint.head
        plan = self.blueprint.whole(alone) if block < len(self.blueprint.traced.blocks) else head
        row = part_layers(plan, kept_counts(plan, 1.0))
        times = [[self.predictor.seconds([layer], p) for p in range(self.processors)] for layer in row.layers]
        known = [some for some in times if any(map(math.isfinite, some))]
        sums = [sum(some) for some in zip(*known, strict=True)]
        # Fused routines are assumed to save the same share of split layers.
        saved = [self.rows.saved(row, p) / total for p, total in enumerate(sums) if total and math.isfinite(total)]
        return sum(_divided(some, groups) for some in known) * (1 - max(saved, default=0.0))

    def _block_seconds(self, block: int) -> tuple[float, ...]:
        """Seconds of one original block on every processor."""
        if block not in self._blocks:
            alone = Segment(block, block + 1)
            self._blocks[block] = tuple(
                self.branch_seconds(alone, BranchChoice.whole(alone, processor)) for processor in range(self.processors)
            )
        return self._blocks[block]

    def head(self, processor: int, reads: ReadChannels = ORIGINAL) -> float:
        """Seconds of the head; interpolated over the channels of its source if its skip inputs are original."""
        plan, counts = self.blueprint.head, kept_counts(self.blueprint.head, 1.0)
        if any(skip in reads for skip in plan.skips):
            return self.rows.seconds(part_layers(plan, counts, reads), processor)
        source = inputs_of(plan, reads)[plan.source]
        return self._family_seconds(self._family(plan, counts, exact=source.exact), source.channels, processor)

    def towers(self, choice: HeadChoice, reads: ReadChannels = ORIGINAL) -> float:
        """Seconds of a branch of the head that reads tensors with these channels."""
        return sum(self._tower(HeadChoice(choice.processor, (t,), choice.width), reads) for t in choice.towers)

    def _tower(self, choice: HeadChoice, reads: ReadChannels) -> float:
        plan = self.blueprint.towers(choice.towers)
        inputs = tuple(read.channels for read in inputs_of(plan, reads).values())
        key = (choice, inputs)
        if key not in self._towers:
            counts = kept_counts(plan, choice.width, self.blueprint.multiple)
            self._towers[key] = self.rows.seconds(part_layers(plan, counts, reads), choice.processor)
        return self._towers[key]

    def tail(self, reads: ReadChannels = ORIGINAL) -> float:
        """Seconds of what is left of the head when its towers are branches, on the fastest processor for it."""
        plan = self.blueprint.tail
        if not plan.nodes:
            return 0.0
        layers = part_layers(plan, kept_counts(plan, 1.0), reads)
        return min(self.rows.seconds(layers, processor) for processor in range(self.processors))

    def head_meeting(self, group: Home) -> float:
        """Seconds until a group of processors can read what its branches of the head have computed."""
        # As if all results were channels of the largest map.
        shapes = [
            shape_of(node) or () for node in self.blueprint.towers(tuple(range(self.blueprint.tower_count))).results
        ]
        batch, _, *sizes = (*max(shapes, key=math.prod), 1, 1)[:4]
        channels = -(-sum(map(math.prod, shapes)) // (batch * math.prod(sizes)))
        return self._passing(TensorType((batch, channels, *sizes)), group, group)

    def head_contention_factor(self, processor: int, together: Collection[int]) -> float:
        """As `contention_factor`, for the branches of the head."""
        others = frozenset(together) - {processor}
        expected = self.predictor.contention_factor(processor, others) if others else 1.0
        return self.corrections.get((len(self.blueprint.traced.blocks), processor), expected) if others else 1.0

    def confirm(self, plan: ChannelPlan, counts: Sequence[int], processor: int, reads: ReadChannels) -> bool:
        """Lets the predictor measure the estimated layers of a copy of `plan`; returns whether a prediction changed."""
        row = part_layers(plan, counts, reads)
        return self.predictor.confirm([*row.layers, *row.joined.values()], processor)

    def confirm_split(self, plan: ChannelPlan, group: Home, reads: ReadChannels) -> bool:
        """As `confirm`, for the shares of original blocks whose layers are split over a group of processors."""
        shares = self._split_layers.shares(part_layers(plan, kept_counts(plan, 1.0), reads), group)
        changed = [self.predictor.confirm(layers, processor) for processor, layers in shares.items()]
        return any(changed)

    def forget(self) -> None:
        """Clears all cached latencies, because the predictor has new measurements."""
        self.version += 1
        layers = (self._fixed, self._knots, self._costs, self._blocks, self._originals)
        for known in (*layers, self._merges, self._splits, self._bands, self._towers, self._controls):
            known.clear()
        self.rows.forget()
        self.__dict__.pop("_split_layers", None)

    def merging(self, block: int, channels: Sequence[int]) -> float:
        """Seconds of merging tensors with these channels to the input of a block, on the fastest processor for it."""
        if len(channels) < 2:
            return 0.0
        key = (block, tuple(channels))
        if key not in self._merges:
            shapes = [self.shape_before(block, each) for each in channels]
            layers = LayerRow(tuple(merge_layers(self.blueprint.merge, shapes)))
            self._merges[key] = min(self.rows.seconds(layers, processor) for processor in range(self.processors))
        return self._merges[key]

    def meeting(self, block: int, channels: int, writers: Home, readers: Home) -> float:
        """Seconds until `readers` can read the input of a block after each of `writers` computed a part of it.

        Interpolated between numbers of channels.
        """
        key = (block, channels, writers, readers)
        if key not in self._meetings_at:
            self._meetings_at[key] = self._meeting(block, channels, writers, readers)
        return self._meetings_at[key]

    def _meeting(self, block: int, channels: int, writers: Home, readers: Home) -> float:
        step = max(1, self.blueprint.channels_before(block) // _MEETING_KNOTS)
        low, rest = divmod(channels, step)

        def at(knot: int) -> float:
            return self._passing(TensorType(self.shape_before(block, knot * step)), writers, readers)

        below = at(max(low, 1))
        return below + (at(low + 1) - below) * rest / step if rest and low else below

    def _passing(self, tensor: TensorType, writers: Home, readers: Home) -> float:
        """Seconds until `readers` can read a tensor; nothing if one processor does both."""
        key = (tensor, writers, readers)
        if key not in self._meetings:
            is_there = len({*writers, *readers}) == 1
            self._meetings[key] = 0.0 if is_there else self.predictor.meeting_seconds(tensor, writers, readers)
        return self._meetings[key]

    def fetch(self, segment: Segment, channels: int, writers: Home, readers: Home) -> float:
        """The part of a meeting point's seconds that each branch spends on reading what others wrote.

        Zero where branches were measured: their corrections include it.
        """
        if any((block, processor) in self.corrections for block in segment.blocks for processor in readers):
            return 0.0
        return self.predictor.fetch_seconds(TensorType(self.shape_before(segment.first, channels)), writers, readers)

    def split(self, plan: ChannelPlan, group: Home, home: Home, reads: ReadChannels) -> SplitCost:
        """Cost of original blocks, or the head, whose layers are placed on a group of processors and split.

        Transfers are included.

        Args:
            plan: the blocks.
            group: the processors.
            home: those that hold the input.
            reads: channels of the tensors that are read.
        """
        inputs = tuple((read.channels, read.exact) for read in inputs_of(plan, reads).values())
        key = (plan, inputs, group, home)
        if key not in self._splits:
            row = part_layers(plan, kept_counts(plan, 1.0), reads)
            self._splits[key] = self._split_layers.cost(row, group, home, is_last=plan is self.blueprint.head)
        return self._splits[key]

    def split_near(self, plan: ChannelPlan, group: Home, home: Home, source: TensorChannels) -> SplitCost:
        """As `split`, with the channels of the input rounded up to a quarter of the original ones."""
        return self.split(plan, group, home, {network_input(plan.source): self.near(plan, source)})

    def block_in_bands(self, block: int, source: TensorChannels) -> InBands | None:
        """What an original block costs in bands of rows, with the channels of its input rounded as in `split_near`.

        None if it cannot be computed so: a layer looks at too many rows, or a skip connection enters.
        """
        plan = self.blueprint.whole(Segment(block, block + 1))
        read = self.near(plan, source)
        key = (block, read.channels, read.exact)
        if key not in self._bands:
            reads = {network_input(plan.source): read}
            row = part_layers(plan, kept_counts(plan, 1.0), reads) if len(inputs_of(plan, reads)) == 1 else LayerRow(())
            self._bands[key] = self._split_layers.in_bands(row, range(self.processors))
        return self._bands[key]

    def banded_seconds(self, part: InBands, group: Home, home: Home) -> float:
        """See `SplitLayers.banded_seconds`."""
        return self._split_layers.banded_seconds(part, group, home)

    def near(self, plan: ChannelPlan, source: TensorChannels) -> TensorChannels:
        """The input of `plan` with its channels rounded up to a quarter of the original ones, unless they are exact."""
        step = max(1, channels_of(plan.source) // _KNOTS)
        channels = source.channels if source.exact else -(-source.channels // step) * step
        return TensorChannels(channels, source.exact)

    @cached_property
    def _split_layers(self) -> SplitLayers:
        """Layers are worth splitting that take their share of the original's time on its fastest processor."""
        whole = self.original(Segment(0, len(self.blueprint.traced.blocks)))
        seconds = min(body + self.head(processor) for processor, body in enumerate(whole))
        least = LEAST_SHARE * seconds if math.isfinite(seconds) else math.inf
        return SplitLayers(self.predictor, self._passing, least, self.rows.workloads)

    def contention_factor(self, segment: Segment, processor: int, together: Collection[int]) -> float:
        """Contention factor of a branch while all processors in `together`, its own among them, work.

        For blocks that ran, the measured ratio replaces the predicted factor; blocks are weighted by their seconds.
        """
        others = frozenset(together) - {processor}
        if not others:
            return 1.0
        expected = self.predictor.contention_factor(processor, others)
        if not any((block, processor) in self.corrections for block in segment.blocks):
            return expected
        work = [self._block_seconds(block)[processor] for block in segment.blocks]
        times = [self.corrections.get((block, processor), expected) for block in segment.blocks]
        whole = sum(work)  # zero if none of its layers has a prediction
        return sum(w * t for w, t in zip(work, times, strict=True)) / whole if whole else expected

    def shape_before(self, block: int, channels: int) -> tuple[int, ...]:
        """Shape of the input of a block (past the last block, of the head) with this many channels."""
        shape = shape_of(self.blueprint.boundary(block))
        assert shape is not None
        return (shape[0], channels, *shape[2:])

    def _family(self, plan: ChannelPlan, counts: tuple[int, ...], *, exact: bool) -> LayerFamily:
        # Exactness matters only where an entry convolution may be needed.
        source = TensorChannels(channels_of(plan.source), exact)
        entry = plan.source in needed_entries(plan, counts, inputs_of(plan, {network_input(plan.source): source}))
        key = (plan, counts, entry)
        if key not in self._families:
            family = layer_family(plan, counts, exact=exact)
            # Layers with the same sizes for every number of channels are one object, so that latencies are shared.
            varying = (
                self._kinds.setdefault((layer.channels, layer.low.workload, layer.high.workload), layer)
                for layer in family.varying
            )
            self._families[key] = replace(family, varying=tuple(varying))
        return self._families[key]

    def _family_seconds(self, family: LayerFamily, channels: int, processor: int) -> float:
        varying = sum(self._varying_seconds(layer, channels, processor) for layer in family.varying)
        key = (family, processor)
        if key not in self._fixed:
            self._fixed[key] = self.rows.seconds(family.fixed, processor)
        return self._fixed[key] + varying

    def _varying_seconds(self, layer: VaryingLayer, channels: int, processor: int) -> float:
        multiple = self.blueprint.multiple
        step = max(multiple, layer.channels // _KNOTS // multiple * multiple)
        low, rest = divmod(channels, step)
        if layer.channels == channels or low == 0 or rest == 0:
            return self._at_knot(layer, channels, processor)
        below = self._at_knot(layer, low * step, processor)
        above = self._at_knot(layer, (low + 1) * step, processor)
        return below + (above - below) * rest / step

    def _at_knot(self, layer: VaryingLayer, channels: int, processor: int) -> float:
        key = (layer, channels, processor)
        if key not in self._knots:
            self._knots[key] = self.rows.seconds(LayerRow((layer.at(channels),)), processor)
        return self._knots[key]


def _divided(seconds: Sequence[float], groups: Sequence[Mapping[int, float]]) -> float:
    """Seconds of a layer on one processor, or ideally divided over a group, whichever is less."""
    rates = [sum(1 / (seconds[p] * factor) for p, factor in group.items() if seconds[p]) for group in groups]
    return min([min(seconds), *(1 / rate for rate in rates if rate)])
