"""The search for designs: few ways to branch each segment (`options`), joined by dynamic programming.

Widths are first tried in steps of an eighth; around the best design they are then refined to sixteenths. So the number
of different layers whose latency has to be known stays in the hundreds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from nnstretch.branching.build import Blueprint, BranchChoice, blueprint, make_design
from nnstretch.branching.design import Design
from nnstretch.branching.operators import channels_of, shape_of
from nnstretch.branching.options import (
    Latencies,
    Option,
    Progress,
    SearchLimits,
    SegmentReport,
    branch_choices,
    segment_options,
    shape_at_end,
)
from nnstretch.branching.predictor import LatencyPredictor
from nnstretch.branching.scaling import DEFAULT_MULTIPLE, kept_counts
from nnstretch.errors import DesignError

_COARSE = 8  # width ratios are multiples of one over this
_FINE = 16
_KEEP_COARSE = 6  # ways to branch a segment that are joined with those of the others
_KEEP_FINE = 9
_PATHS = 4  # designs kept per way to branch the last segment so far


@dataclass(frozen=True)
class SearchReport:
    """How a search went.

    Attributes:
        segments: candidates of every segment after each step of pruning, on the coarse grid.
        predicted_workloads: different layers whose latency was asked for, counted per processor.
        joined: transitions between ways to branch successive segments that were evaluated.
        original_ms: the original network's predicted latency on each processor.
    """

    segments: tuple[SegmentReport, ...]
    predicted_workloads: int
    joined: int
    original_ms: tuple[float, ...]


def search(
    module: nn.Module,
    example_input: Tensor,
    predictor: LatencyPredictor,
    processors: int = 2,
    limits: SearchLimits | None = None,
    *,
    multiple: int = DEFAULT_MULTIPLE,
    designs: int = 5,
    progress: Progress | None = None,
) -> tuple[list[Design], SearchReport]:
    """The designs that are predicted to be fastest, the fastest first, and how they were found.

    Args:
        module: a network that can be branched; left alone.
        example_input: a batch that it accepts; latencies are predicted for it.
        predictor: of latencies.
        processors: number of processors; every branched segment has one branch on each.
        limits: what designs must meet; the usual limits if None.
        multiple: scaled layers have multiples of so many channels where they are wide enough.
        designs: how many to return at most.
        progress: called now and then.

    Raises:
        DesignError: the network cannot be branched, or nothing is within the limits; the message says what is.
    """
    limits = limits or SearchLimits()
    limits.check()
    prepared = blueprint(module, example_input, multiple)
    return search_blueprint(prepared, predictor, processors, limits, designs=designs, progress=progress)


def search_blueprint(
    blueprint: Blueprint,
    predictor: LatencyPredictor,
    processors: int = 2,
    limits: SearchLimits | None = None,
    *,
    designs: int = 5,
    progress: Progress | None = None,
) -> tuple[list[Design], SearchReport]:
    """As `search`, for a network that is traced already."""
    limits = limits or SearchLimits()
    limits.check()
    if processors < 2 or designs < 1:
        raise DesignError(
            f"{processors} processors and {designs} designs were asked for; give 2 processors or more and 1 design or more"
        )
    latencies = Latencies(blueprint, predictor, processors)
    return _Search(blueprint, latencies, limits, progress or _silent).run(designs)


def _silent(what: str, done: int, total: int) -> None:
    """No progress."""


@dataclass(frozen=True)
class _Path:
    """Options for the segments so far.

    Attributes:
        options: one per segment.
        seconds: predicted latency up to the end of the last segment's branches.
        branch_seconds: of every branch.
        macs: of all branches, to tell paths of equal latency apart.
        exact: whether the tensor that the next segment reads has the original's channels, each once and in order.
    """

    options: tuple[Option, ...]
    seconds: float
    branch_seconds: tuple[tuple[float, ...], ...]
    macs: int
    exact: bool


@dataclass(eq=False)
class _Search:
    blueprint: Blueprint
    latencies: Latencies
    limits: SearchLimits
    progress: Progress
    joined: int = field(default=0, init=False)

    def run(self, designs: int) -> tuple[list[Design], SearchReport]:
        segments = self.blueprint.traced.segments
        grid = [i / _COARSE for i in range(1, _COARSE + 1) if i / _COARSE >= self.limits.min_width]
        widths = sorted({*grid, self.limits.min_width})
        options: list[list[Option]] = []
        reports: list[SegmentReport] = []
        for segment in segments:
            self.progress("measuring branches", segment.index, 2 * len(segments))
            choices = [
                branch_choices(self.blueprint, segment.index, processor, widths, self.limits.min_depth)
                for processor in range(self.latencies.processors)
            ]
            found, report = segment_options(self.latencies, segment.index, choices, self.limits, _KEEP_COARSE)
            options.append([self._unbranched(segment.index), *found])
            reports.append(report)
        if all(report.kept == 0 for report in reports):
            raise DesignError(_why_no_design(reports))
        coarse = self._join(options, 0)
        refined = self._join(self._around(coarse[0], options), 1)
        best = self._distinct([*refined, *coarse])[:designs]
        self.progress("measuring branches", 2 * len(segments), 2 * len(segments))
        made = [self._design(path) for path in best]
        return made, SearchReport(
            tuple(reports), len(self.latencies.workloads), self.joined, tuple(self._original_ms())
        )

    def _unbranched(self, segment: int) -> Option:
        """The whole segment on its fastest processor."""
        seconds = self.latencies.original(segment)
        choice = BranchChoice(seconds.index(min(seconds)), self.blueprint.all_blocks(segment), 1.0)
        return Option((choice,), (self.blueprint.traced.segments[segment].channels,))

    def _around(self, path: _Path, options: Sequence[Sequence[Option]]) -> list[list[Option]]:
        """For every branched segment of `path` the options with widths next to its own, and its own."""
        around = []
        for segment, (option, others) in enumerate(zip(path.options, options, strict=True)):
            if len(option.branches) == 1:
                around.append(list(others[:1]))
                continue
            choices = [self._neighbours(segment, choice) for choice in option.branches]
            read = path.options[segment - 1].width if segment else None
            found, _ = segment_options(self.latencies, segment, choices, self.limits, _KEEP_FINE, read)
            around.append([option, *(other for other in found if other != option)])
        return around

    def _neighbours(self, segment: int, choice: BranchChoice) -> list[BranchChoice]:
        widths = [choice.width + step / _FINE for step in (-1, 0, 1)]
        allowed = [width for width in widths if self.limits.min_width <= width <= 1.0]
        options = branch_choices(self.blueprint, segment, choice.processor, allowed, self.limits.min_depth)
        return [option for option in options if option.blocks == choice.blocks]

    def _join(self, options: Sequence[Sequence[Option]], phase: int) -> list[_Path]:
        """The best chains of options, whole-network latency ascending; each has a branched segment."""
        count = len(options)
        paths = [_Path((), self._stem_seconds(), (), 0, exact=True)]
        for segment, choices in enumerate(options):
            self.progress("joining segments", phase * count + segment, 2 * count)
            paths = [
                path
                for option in choices
                for path in sorted(
                    (self._extend(path, segment, option) for path in paths),
                    key=lambda path: (path.seconds, -path.macs),
                )[:_PATHS]
            ]
        finished = [
            _Path(path.options, path.seconds + self._head_seconds(path), path.branch_seconds, path.macs, path.exact)
            for path in paths
            if any(len(option.branches) > 1 for option in path.options)
        ]
        return sorted(finished, key=lambda path: (path.seconds, -path.macs))

    def _extend(self, path: _Path, segment: int, option: Option) -> _Path:
        self.joined += 1
        blueprint, latencies = self.blueprint, self.latencies
        source = blueprint.traced.segments[segment].source
        in_channels = path.options[-1].width if path.options else channels_of(source)
        destinations = [choice.processor for choice in option.branches]
        meeting = self._meeting(path, destinations)
        seconds = tuple(latencies.branch(segment, choice, in_channels, exact=path.exact) for choice in option.branches)
        macs = sum(
            blueprint.part_cost(
                blueprint.branch(segment, choice.blocks), choice.width, in_channels, exact=path.exact
            ).macs
            for choice in option.branches
        )
        whole = len(option.branches) == 1
        return _Path(
            (*path.options, option),
            path.seconds + meeting + max(seconds),
            (*path.branch_seconds, seconds),
            path.macs + macs,
            exact=whole,
        )

    def _meeting(self, path: _Path, destinations: Sequence[int]) -> float:
        """Seconds between the last branches of `path` and readers on these processors."""
        if not path.options:
            shape = shape_of(self.blueprint.traced.segments[0].source)
            assert shape is not None
            return self.latencies.meeting(shape, [self._stem_home()], destinations)
        option, shape = path.options[-1], shape_at_end(self.blueprint, len(path.options) - 1)
        sources = [choice.processor for choice in option.branches]
        shapes = [(shape[0], channels, *shape[2:]) for channels in option.channels]
        joining = min(self.latencies.concat(shapes, processor) for processor in set(destinations))
        return self.latencies.meeting((shape[0], option.width, *shape[2:]), sources, destinations) + joining

    def _stem_times(self) -> list[float]:
        plan = self.blueprint.stem
        if plan is None:
            return [0.0] * self.latencies.processors
        channels = channels_of(plan.source)
        return [self.latencies.part(plan, 1.0, channels, p, exact=True) for p in range(self.latencies.processors)]

    def _stem_home(self) -> int:
        times = self._stem_times()
        return times.index(min(times))

    def _stem_seconds(self) -> float:
        return min(self._stem_times())

    def _head_seconds(self, path: _Path) -> float:
        width, plan = path.options[-1].width, self.blueprint.head
        return min(
            self._meeting(path, [p]) + self.latencies.part(plan, 1.0, width, p, exact=path.exact)
            for p in range(self.latencies.processors)
        )

    def _original_ms(self) -> list[float]:
        head, stem = self.blueprint.head, self._stem_times()
        whole = [self.latencies.original(segment.index) for segment in self.blueprint.traced.segments]
        return [
            1e3
            * (
                stem[p]
                + sum(seconds[p] for seconds in whole)
                + self.latencies.part(head, 1.0, channels_of(head.source), p, exact=True)
            )
            for p in range(self.latencies.processors)
        ]

    def _distinct(self, paths: Sequence[_Path]) -> list[_Path]:
        """Paths of different structure, fastest first. Of widths that round to the same layers the smallest stays."""
        ordered = sorted(paths, key=lambda p: (p.seconds, -p.macs, [[b.width for b in o.branches] for o in p.options]))
        found: dict[tuple[object, ...], _Path] = {}
        for path in ordered:
            found.setdefault(self._structure(path), path)
        return list(found.values())

    def _structure(self, path: _Path) -> tuple[object, ...]:
        multiple = self.blueprint.multiple
        return tuple(
            (
                choice.processor,
                choice.blocks,
                kept_counts(self.blueprint.branch(segment, choice.blocks), choice.width, multiple),
            )
            for segment, option in enumerate(path.options)
            for choice in option.branches
        )

    def _design(self, path: _Path) -> Design:
        return make_design(
            self.blueprint,
            [option.branches for option in path.options],
            [[seconds * 1e3 for seconds in branches] for branches in path.branch_seconds],
            path.seconds * 1e3,
        )


def _why_no_design(reports: Sequence[SegmentReport]) -> str:
    reasons = {report.note for report in reports if report.note}
    listed = "; ".join(itertools.islice((f"segment {r.segment}: {r.note}" for r in reports if r.note), 3))
    more = f" (and {len(reports) - 3} more segments)" if len(reports) > 3 and len(reasons) > 1 else ""
    return f"no segment can be branched within the limits: {listed}{more}; raise alpha or beta, or lower min_width"
