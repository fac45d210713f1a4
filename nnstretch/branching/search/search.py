"""The search for designs: where branches meet, on which processors they run, and how deep and wide they are.

Every boundary between blocks may be a meeting point, so that number and places of meeting points come out of the search. The
ways to branch every stretch between two boundaries (`candidates`) are joined (`dynamic_programming`). Widths are first tried
in steps of an eighth; then those of the best design, and depths one block away from its own, are refined to 32nds. What
the predictor has guessed of the best designs is measured, and the search repeated with what was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from nnstretch.branching.channels.scaling import DEFAULT_MULTIPLE
from nnstretch.branching.design.blueprint import Blueprint, blueprint
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.latency.prediction import FrontPoint, Prediction
from nnstretch.branching.latency.predictor import DesignRunner, LatencyPredictor
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import (
    PruningStatistics,
    SegmentCandidate,
    processor_groups,
    segment_candidates,
)
from nnstretch.branching.search.dynamic_programming import (
    DynamicProgram,
    NetworkCandidate,
    State,
    confirm,
    predicted_design,
)
from nnstretch.branching.search.limits import Family, SearchLimits, family_of
from nnstretch.branching.search.refinement import GuidedRefinement
from nnstretch.branching.search.report import (
    SearchReport,
    block_costs,
    head_seconds,
    infeasibility_reason,
    original_seconds,
    pruning_steps,
)
from nnstretch.branching.search.search_space import (
    SearchSpace,
    candidate_boundaries,
    coarse_search_space,
    collect_statistics,
    fine_search_space,
)
from nnstretch.branching.tracing.diagnostics import diagnose
from nnstretch.branching.tracing.trace import Segment
from nnstretch.errors import DesignError
from nnstretch.support.progress import Progress, silent

_CONFIRMATIONS = 3  # times that what was guessed of the best designs is measured and the search repeated


def search(
    module: nn.Module,
    example_input: Tensor,
    predictor: LatencyPredictor,
    processors: int = 2,
    limits: SearchLimits | None = None,
    *,
    multiple: int = DEFAULT_MULTIPLE,
    designs: int = 5,
    pareto: bool = False,
    runner: DesignRunner | None = None,
    progress: Progress | None = None,
    merge: Merge = Merge.CONCAT,
) -> tuple[list[Design], SearchReport]:
    """The designs that are predicted to be fastest, the fastest first, and how they were found.

    Args:
        module: a network that can be branched; left alone.
        example_input: a batch that it accepts; latencies are predicted for it.
        predictor: of latencies.
        processors: number of processors; a segment has branches on two of them or more.
        limits: what designs must meet; the usual limits if None.
        multiple: scaled layers have multiples of so many channels where they are wide enough.
        designs: how many to return at most.
        pareto: spread them over the front of latency and MACs instead of giving the fastest ones.
        runner: runs designs: the work of the best one is shared out anew after what is seen then, and the fastest of those that
            were run comes first. Neither with `pareto` nor with a target.
        progress: called now and then.
        merge: how branches meet.

    Raises:
        DesignError: the network cannot be branched, or nothing is within the limits; the message says what is.
    """
    limits = limits or SearchLimits()
    limits.check()
    prepared = blueprint(module, example_input, multiple, merge)
    return search_blueprint(
        prepared, predictor, processors, limits, designs=designs, pareto=pareto, runner=runner, progress=progress
    )


def search_blueprint(
    blueprint: Blueprint,
    predictor: LatencyPredictor,
    processors: int = 2,
    limits: SearchLimits | None = None,
    *,
    designs: int = 5,
    pareto: bool = False,
    runner: DesignRunner | None = None,
    progress: Progress | None = None,
) -> tuple[list[Design], SearchReport]:
    """As `search`, for a network that is traced already."""
    limits = limits or SearchLimits()
    limits.check()
    if processors < 2 or designs < 1:
        raise DesignError(
            f"{processors} processors and {designs} designs were asked for; give 2 processors or more and 1 design or more"
        )
    latencies = LatencyTable(blueprint, predictor, processors)
    family = family_of(blueprint.traced)
    limits = limits.for_family(family)
    run_by = None if pareto or limits.target_ms is not None else runner
    return _Search(latencies, family, limits, designs, pareto, run_by, progress or silent).run()


@dataclass(eq=False)
class _Search:
    """One search.

    Attributes:
        latencies: predictions.
        family: of the network.
        limits: what designs must meet, with the family's bounds.
        designs: how many are wanted at most.
        pareto: spread over the front of latency and MACs.
        runner: runs the best designs, so that nothing of them needs to be measured before; None: none is run.
        progress: called now and then.
        transitions: transitions between segments that were evaluated.
        front: see `SearchReport`.
        measured_ms: see `SearchReport`.
    """

    latencies: LatencyTable
    family: Family
    limits: SearchLimits
    designs: int
    pareto: bool
    runner: DesignRunner | None
    progress: Progress
    transitions: int = field(default=0, init=False)
    front: list[NetworkCandidate] = field(default_factory=list, init=False)
    measured_ms: dict[str, float] = field(default_factory=dict, init=False)

    def run(self) -> tuple[list[Design], SearchReport]:
        """The designs, and how they were found.

        Raises:
            DesignError: nothing is within the limits.
        """
        notes = diagnose(self.latencies.blueprint)
        self._compare_processors()
        boundaries = candidate_boundaries(self.latencies, self._tell)
        choices = coarse_search_space(self.latencies, self.limits, boundaries, self.progress)
        statistics = collect_statistics(self.latencies, self.limits, choices, self._tell)
        coarse = self._coarse(choices)
        if not coarse:
            raise DesignError(infeasibility_reason(self.latencies, self.limits, statistics, notes))
        found = self._refined(coarse)
        if self.runner is not None:
            found = self._improved(found, choices, self.runner)
        made = self._predicted(found)
        made.sort(key=lambda one: self.measured_ms.get(one[0].id, math.inf))
        return [design for design, _ in made], self._report(boundaries, statistics, notes, made)

    def _tell(self, done: int, total: int, what: str) -> None:
        """Reports progress, with the number of layers whose latency was asked for so far."""
        self.progress(done, total, f"{what}, {len(self.latencies.workloads)} layers so far")

    def _compare_processors(self) -> None:
        """Asks how much the processors slow each other down, which may have to be measured first."""
        for group in processor_groups(self.latencies.processors):
            self.progress(0, 0, f"comparing {len(group)} processors side by side with each alone")
            for processor in group:
                self.latencies.predictor.contention_factor(processor, frozenset(group) - {processor})

    # -- networks -------------------------------------------------------------------------------------------------

    def _coarse(self, choices: SearchSpace) -> list[NetworkCandidate]:
        """The front on the coarse grid, nothing of its best networks guessed; empty if there is nothing within the limits."""
        front = self._join(choices, "joining segments")
        for _ in range(_CONFIRMATIONS):
            # What looks best may do so because it was guessed too low.
            if not front or not self._confirm_unless_run(self._centres(front)):
                break
            front = self._join(choices, "joining segments")
        return front

    def _refined(self, coarse: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """The networks to return, with those around the best ones considered."""
        centres = self._centres(coarse)
        self.front = _front([*coarse, *self._near(centres)])
        wanted = self._reached(self.front)
        for _ in range(_CONFIRMATIONS):
            if not self._confirm_unless_run(wanted):
                break
            self.front = _front([*coarse, *self._near(centres)])
            wanted = self._reached(self.front)
        return wanted

    def _improved(
        self, found: Sequence[NetworkCandidate], choices: SearchSpace, runner: DesignRunner
    ) -> list[NetworkCandidate]:
        """The networks, but first the fastest one of some that were run.

        The work is shared out anew near the network that was run, and near the best on the coarse grid.
        """

        def anew(network: NetworkCandidate) -> NetworkCandidate | None:
            coarse = _front(self._join(choices, "joining segments anew"))[:1]
            return next(iter(_front(self._near([network, *coarse]))), None)

        running = GuidedRefinement(self.latencies, runner, anew, self.progress, self.measured_ms)
        best = running.fastest(found[0])
        return [best, *(other for other in found if other.choices != best.choices)][: len(found)]

    def _confirm_unless_run(self, found: Sequence[NetworkCandidate]) -> bool:
        """Measures what was guessed of networks, unless they will be run; whether that changed anything."""
        if self.runner is not None:
            return False
        changed = [confirm(self.latencies, network.choices) for network in found]
        if any(changed):
            self.latencies.forget()
        return any(changed)

    def _near(self, centres: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """Networks with the same segments as some others, and widths and depths next to theirs."""
        near = []
        for number, centre in enumerate(centres, 1):
            what = (
                "refining widths" if len(centres) == 1 else f"refining widths around {number} of {len(centres)} designs"
            )
            near += self._join(fine_search_space(self.latencies, self.limits, centre), what)
        return near

    def _join(self, choices: SearchSpace, what: str) -> list[NetworkCandidate]:
        """The networks that can be made of these choices, of every number of MACs the fastest."""
        by_first: dict[int, list[Segment]] = {}
        for segment in choices:
            by_first.setdefault(segment.first, []).append(segment)
        known: dict[tuple[Segment, int, bool], list[SegmentCandidate]] = {}

        def options(segment: Segment, state: State) -> list[SegmentCandidate]:
            key = (segment, state.channels, state.exact)
            if key not in known:
                known[key] = segment_candidates(
                    self.latencies, segment, choices[segment], self.limits, state.channels, exact=state.exact
                )
            return known[key]

        joining = DynamicProgram(self.latencies, by_first, options)
        found = joining.run(lambda done, total: self._tell(done, total, what))
        self.transitions += joining.transitions
        return found

    def _centres(self, front: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """The networks around which others are looked for."""
        wanted = self._wanted(front) or _front(front)
        return wanted if self.pareto else wanted[:1]

    def _wanted(self, found: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """Those to return: the fastest, those with the most MACs within the target, or some of all amounts of MACs.

        Nothing if no network is within the target.
        """
        front = _front(found)
        target = self.limits.target_ms
        if target is not None:
            return [f for f in front if f.seconds * 1e3 <= target][::-1][: self.designs]
        if self.pareto:
            places = [round(i * (len(front) - 1) / max(self.designs - 1, 1)) for i in range(self.designs)]
            return [front[place] for place in dict.fromkeys(places)]
        return front[: self.designs]

    def _reached(self, found: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """As `_wanted`, but refuses a target that no network is within."""
        wanted = self._wanted(found)
        if not wanted:
            raise DesignError(
                f"no design within the limits is predicted to take at most {self.limits.target_ms:g} ms; the fastest takes "
                f"{1e3 * _front(found)[0].seconds:.3f} ms: raise the target, or lower min_macs, min_depth or min_width"
            )
        return wanted

    # -- what is told ---------------------------------------------------------------------------------------------

    def _predicted(self, found: Sequence[NetworkCandidate]) -> list[tuple[Design, Prediction]]:
        """The designs of networks, every layer of them predicted without interpolation; the fastest first."""
        made: dict[str, tuple[Design, Prediction]] = {}
        for number, network in enumerate(found):
            self._tell(number, len(found), "predicting the chosen designs")
            design, prediction = predicted_design(self.latencies, network.choices)
            made.setdefault(design.id, (design, prediction))
        self._tell(len(found), len(found), "predicting the chosen designs")
        by_macs = self.limits.target_ms is not None

        def rank(one: tuple[Design, Prediction]) -> tuple[float, float, int]:
            design, prediction = one
            return -design.macs if by_macs else 0, prediction.seconds, -design.macs

        return sorted(made.values(), key=rank)

    def _report(
        self,
        boundaries: Sequence[int],
        statistics: dict[Segment, PruningStatistics],
        notes: Sequence[str],
        made: Sequence[tuple[Design, Prediction]],
    ) -> SearchReport:
        latencies = self.latencies
        return SearchReport(
            family=self.family,
            limits=self.limits,
            cut_points=len(latencies.blueprint.traced.blocks) - 1,
            boundaries=tuple(boundaries[1:-1]),
            pruning=pruning_steps(boundaries, statistics, latencies.processors),
            transitions=self.transitions,
            predicted_workloads=len(latencies.workloads),
            original_ms=tuple(1e3 * seconds for seconds in original_seconds(latencies)),
            measured_ms=self.measured_ms,
            diagnostics=tuple(notes),
            blocks=block_costs(latencies),
            head_ms=tuple(1e3 * seconds for seconds in head_seconds(latencies)),
            front=tuple(FrontPoint(1e3 * network.seconds, network.macs) for network in self.front),
            predictions={design.id: prediction for design, prediction in made},
            unpredicted=tuple(sorted(latencies.unpredicted)),
        )


def _front(found: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
    """Those than which none is as fast and has as many MACs, the fastest first."""
    front: list[NetworkCandidate] = []
    for network in sorted(found, key=lambda f: (f.seconds, -f.macs)):
        if not front or network.macs > front[-1].macs:
            front.append(network)
    return front
