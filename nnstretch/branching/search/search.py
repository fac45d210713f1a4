"""The search for designs: where branches meet, on which processors they run, and their depths and widths.

Every boundary between blocks is a candidate meeting point, so the search decides their number and places.
Candidates for each segment between two boundaries (`candidates`) are combined to whole networks
(`dynamic_programming`). Widths are first searched in steps of 1/8; then widths around the best design in
steps of 1/32, and depths one block away from its own. Layers of the best designs that the predictor only
estimated are measured, and the search is repeated with the results. At the end, designs are compared with the
original network without branches (`unbranched_comparison`), which is returned if none is ahead of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nnstretch.branching.design.blueprint import Blueprint, SegmentChoice
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import choices_of, head_of
from nnstretch.branching.latency.prediction import (
    DesignRunner,
    FrontPoint,
    LatencyPredictor,
    Prediction,
)
from nnstretch.branching.latency.split_layers import processor_groups
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import (
    PruningStatistics,
    SearchSpace,
    SegmentCandidate,
    SegmentOptions,
    candidate_boundaries,
    coarse_search_space,
    collect_statistics,
    fine_search_space,
    segment_candidates,
)
from nnstretch.branching.search.dynamic_programming import DynamicProgram, NetworkCandidate
from nnstretch.branching.search.fronts import chosen, front_of
from nnstretch.branching.search.head_candidates import HeadCandidate, head_candidates
from nnstretch.branching.search.kept_refinement import (
    KeptRefinement,
    keep_refinement,
    read_refinement,
)
from nnstretch.branching.search.limits import Family, family_of
from nnstretch.branching.search.network_latency import (
    State,
    branch_seconds,
    confirm,
    network_prediction,
    predicted_design,
)
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.refinement import GuidedRefinement
from nnstretch.branching.search.report import (
    Infeasibility,
    SearchReport,
    block_costs,
    diagnose,
    head_seconds,
    infeasibility,
    original_seconds,
    product_macs,
    pruning_steps,
)
from nnstretch.branching.search.unbranched import (
    split_seconds,
)
from nnstretch.branching.search.unbranched_comparison import UnbranchedComparison
from nnstretch.branching.search.whole_blocks import WholeBlockWays
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import BuiltNetworks
from nnstretch.errors import DesignError
from nnstretch.support.words import counted

_CONFIRMATIONS = 3  # maximum repetitions after estimated layers of the best designs were measured


def search(
    blueprint: Blueprint,
    predictor: LatencyPredictor,
    options: SearchOptions,
    networks: BuiltNetworks | None = None,
) -> tuple[list[Design], SearchReport]:
    """Searches for the designs with the lowest predicted latency.

    Args:
        blueprint: the network.
        predictor: of latencies.
        options: of the search.
        networks: of designs that run, which the caller may use afterwards.

    Returns:
        Designs, fastest first, and the report of the search. If no branched design is predicted to be ahead of the network
        without branches, the only design has no branched segment.

    Raises:
        DesignError: no design meets the limits; the message says what would.
    """
    options.limits.check()
    if options.processors < 2 or options.designs < 1:
        raise DesignError(
            f"the search has {counted(options.processors, 'processor')}, and is asked for "
            f"{counted(options.designs, 'design')}; give 2 processors or more, and ask for 1 design or more"
        )
    if not options.time_limit > 0:
        raise DesignError(f"a time limit of {options.time_limit:g} seconds was asked for; give more than 0")
    family = family_of(blueprint.traced)
    unused = options.pareto or options.limits.target_ms is not None
    complete = replace(options, limits=options.limits.for_family(family), runner=None if unused else options.runner)
    latencies = LatencyTable(blueprint, predictor, options.processors, options.splits)
    return _Search(latencies, family, complete, networks or BuiltNetworks(blueprint)).run()


@dataclass(eq=False)
class _Search:
    """One search.

    Attributes:
        latencies: predictions.
        family: of the network.
        options: with the family's default limits.
        networks: of designs that run.
        transitions: number of transitions evaluated.
        front: see `SearchReport`.
        measured_ms: see `SearchReport`.
        cut_short: see `SearchReport`.
        lifted: see `SearchReport`.
        infeasible: see `SearchReport`.
        recalled: see `SearchReport`.
        end: `time.monotonic()` after which no design runs.
        whole: ways to compute blocks without branches.
        comparison: with the network without branches.
        fine: branches next to those of segments of networks around which widths were refined.
        heads: ways to compute a head that cannot be branched, by the version of the predictions and the state before it.
    """

    latencies: LatencyTable
    family: Family
    options: SearchOptions
    networks: BuiltNetworks
    transitions: int = field(default=0, init=False)
    front: list[NetworkCandidate] = field(default_factory=list, init=False)
    measured_ms: dict[str, float] = field(default_factory=dict, init=False)
    cut_short: bool = field(default=False, init=False)
    lifted: str = field(default="", init=False)
    infeasible: str = field(default="", init=False)
    recalled: bool = field(default=False, init=False)
    end: float = field(init=False)
    whole: WholeBlockWays = field(init=False)
    comparison: UnbranchedComparison = field(init=False)
    fine: dict[SegmentChoice, SegmentOptions] = field(default_factory=dict, init=False)
    heads: dict[tuple[int, State], list[HeadCandidate]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.options.time_limit
        self.whole = WholeBlockWays(self.latencies)
        self.comparison = UnbranchedComparison(self.latencies, self.options, self.whole, self.measured_ms, self.end)

    def run(self) -> tuple[list[Design], SearchReport]:
        """The designs and the report.

        Raises:
            DesignError: no design meets the limits.
        """
        notes = diagnose(self.latencies.blueprint)
        self._compare_processors()
        boundaries = candidate_boundaries(self.latencies, self._report_progress)
        choices = coarse_search_space(self.latencies, self.options.limits, boundaries, self.options.progress)
        statistics = collect_statistics(self.latencies, self.options.limits, choices, self._report_progress)
        coarse = self._coarse(choices)
        if not coarse:
            why = infeasibility(self.latencies, self.options.limits, statistics, notes)
            coarse = self._without_latency_limits(why.reason, choices) if self.options.best_effort else []
            if not coarse:
                self._check_unbranched(statistics, why)
        found = self._refined(coarse) if coarse else []
        if found and self.options.runner is not None:
            best = self._recalled() or self._improved(found[0], choices, self.options.runner)
            found = [best, *(other for other in found if other.structure != best.structure)][: len(found)]
        self.comparison.confirm_original()
        made = self._predicted(found)
        made.sort(key=lambda one: self.measured_ms.get(one[0].id, math.inf))
        made = self.comparison.designs_ahead(made)
        self._report_progress(len(found), len(found), "predicting the chosen designs")
        return [design for design, _ in made], self._report(boundaries, statistics, notes, made)

    def _report_progress(self, done: int, total: int, what: str) -> None:
        """Reports progress with the number of distinct layers predicted so far."""
        self.options.progress(done, total, f"{what}, {counted(len(self.latencies.rows.workloads), 'layer')} so far")

    def _compare_processors(self) -> None:
        """Requests the contention factors of all groups of processors, which may have to be measured first."""
        for group in processor_groups(range(self.latencies.processors)):
            self.options.progress(0, 0, f"comparing {len(group)} processors side by side with each alone")
            for processor in group:
                self.latencies.predictor.contention_factor(processor, frozenset(group) - {processor})

    # -- networks -------------------------------------------------------------------------------------------------

    def _coarse(self, choices: SearchSpace) -> list[NetworkCandidate]:
        """The front on the coarse grid after the layers of its best networks were measured.

        Empty if no network meets the limits.
        """
        return self._confirmed(
            lambda: self._combine(choices, "combining segments"), lambda front: self._centres(front) if front else []
        )

    def _without_latency_limits(self, reason: str, choices: SearchSpace) -> list[NetworkCandidate]:
        """The front as in `_coarse` without alpha and beta, which the rest of the search leaves out, too.

        Args:
            reason: why there is none with them.
            choices: the coarse search space.
        """
        self.lifted = reason
        self.options = replace(self.options, limits=replace(self.options.limits, alpha=math.inf, beta=math.inf))
        return self._coarse(choices)

    def _refined(self, coarse: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """The networks to return, after a fine search around the best ones."""
        centres = self._centres(coarse)
        self.front = self._confirmed(lambda: front_of([*coarse, *self._near(centres)]), self._reached)
        self.comparison.branched_ms = 1e3 * self.front[0].seconds
        return self._reached(self.front)

    def _confirmed(
        self,
        find: Callable[[], list[NetworkCandidate]],
        best: Callable[[list[NetworkCandidate]], list[NetworkCandidate]],
    ) -> list[NetworkCandidate]:
        """What `find` finds once the estimated layers of the `best` networks are measured, unless networks will run.

        A network may look best because the estimate of a layer is too low.
        """
        found = find()
        for _ in range(_CONFIRMATIONS):
            changed = self.options.runner is None and [
                confirm(self.latencies, network.choices, network.head) for network in best(found)
            ]
            if not changed or not any(changed):
                break
            self.latencies.forget()
            found = find()
        return found

    def _recalled(self) -> NetworkCandidate | None:
        """The fastest network that ran in the same search before, with what was learned from these runs.

        None if none did, if designs are to run again, or if a run is missing: that search did not tune a network which may be
        returned now, as with `even_if_slower`.
        """
        path, blueprint = self.options.kept, self.latencies.blueprint
        earlier = None if path is None or self.options.fresh else read_refinement(path, blueprint)
        if earlier is None:
            return None
        self.latencies.corrections.update(earlier.corrections)
        choices, head = tuple(choices_of(earlier.design)), head_of(earlier.design)
        branches = branch_seconds(self.latencies, choices)
        seconds = network_prediction(self.latencies, choices, branches, head).seconds
        if not earlier.measured_ms and self.comparison.can_win(seconds):
            self.latencies.corrections.clear()
            return None
        self.recalled, self.comparison.kept = True, path
        self.measured_ms.update(earlier.measured_ms)
        self.comparison.plan_ms.update(earlier.unbranched_ms)
        return NetworkCandidate(choices, seconds, earlier.design.macs, head)

    def _improved(self, best: NetworkCandidate, choices: SearchSpace, runner: DesignRunner) -> NetworkCandidate:
        """The fastest network that measurement-guided refinement finds, which begins with the best one.

        Rebalancing searches near the network that ran last, and near the best one on the coarse grid.
        """

        def propose(network: NetworkCandidate) -> NetworkCandidate | None:
            coarse = front_of(self._combine(choices, "combining segments again"))[:1]
            return next(iter(front_of(self._near([network, *coarse]))), None)

        refinement = GuidedRefinement(
            self.latencies,
            self.networks,
            runner,
            propose,
            self.options.progress,
            self.comparison.can_win,
            self.measured_ms,
            self.end,
        )
        best = refinement.fastest(best)
        self.cut_short = refinement.cut_short
        if self.options.kept is not None and not self.cut_short:
            design, _ = predicted_design(self.latencies, best.choices, best.head)
            keep_refinement(self.options.kept, KeptRefinement(design, self.measured_ms, self.latencies.corrections))
            self.comparison.kept = self.options.kept
        return best

    def _near(self, centres: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """Networks with the segments of `centres`, and widths and depths next to theirs."""
        near = []
        for number, centre in enumerate(centres, 1):
            what = (
                "refining widths" if len(centres) == 1 else f"refining widths around {number} of {len(centres)} designs"
            )
            space = fine_search_space(self.latencies, self.options.limits, centre.choices, self.fine)
            near += self._combine(space, what)
        return near

    def _combine(self, choices: SearchSpace, what: str) -> list[NetworkCandidate]:
        """The front of networks in a search space."""
        by_first: dict[int, list[Segment]] = {}
        for segment in choices:
            by_first.setdefault(segment.first, []).append(segment)
        known: dict[tuple[Segment, int, bool], list[SegmentCandidate]] = {}

        def candidates(segment: Segment, state: State) -> list[SegmentCandidate]:
            key = (segment, state.channels, state.exact)
            if key not in known:
                known[key] = segment_candidates(
                    self.latencies, segment, choices[segment], self.options.limits, state.channels, exact=state.exact
                )
            return known[key]

        end = self.latencies.blueprint.head.source

        def heads(state: State) -> list[HeadCandidate]:
            # Runs correct branches of heads only.
            if self.latencies.blueprint.tower_count:
                return head_candidates(self.latencies, self.options.limits, {end: state})
            key = (self.latencies.version, state)
            if key not in self.heads:
                self.heads[key] = head_candidates(self.latencies, self.options.limits, {end: state})
            return self.heads[key]

        program = DynamicProgram(self.latencies, by_first, candidates, heads, self.whole)
        found = program.run(lambda done, total: self._report_progress(done, total, what))
        self.transitions += program.transitions
        return found

    def _centres(self, front: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """The networks around which the fine search looks."""
        wanted = chosen(self.options, front) or front_of(front)
        return wanted if self.options.pareto else wanted[:1]

    def _reached(self, found: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """As `chosen`; empty if the latency target is met without branches only.

        Raises:
            DesignError: no network meets the latency target.
        """
        wanted = chosen(self.options, found)
        if not wanted and not self.comparison.may_be_returned():
            raise DesignError(
                f"no design within the limits is predicted to take at most {self.options.limits.target_ms:g} ms; the fastest "
                f"takes {1e3 * front_of(found)[0].seconds:.3f} ms: raise the target, or lower min_macs, min_depth or min_width"
            )
        return wanted

    def _check_unbranched(self, statistics: Mapping[Segment, PruningStatistics], why: Infeasibility) -> None:
        """Checks that the network without branches may be returned, as no branched design is within the limits.

        Args:
            statistics: of every segment that could be branched.
            why: no design is within the limits.

        Raises:
            DesignError: it may not: nothing can be branched at all, only designs with branches or with more MACs are wanted,
                or no plan without branches can be predicted, or none meets the latency target.
        """
        is_wanted = not self.options.even_if_slower and self.options.limits.min_macs <= 1.0
        if not statistics or not is_wanted or not self.comparison.may_be_returned():
            raise DesignError(str(why))
        self.infeasible = str(why)

    # -- results --------------------------------------------------------------------------------------------------

    def _predicted(self, found: Sequence[NetworkCandidate]) -> list[tuple[Design, Prediction]]:
        """The designs of networks with their predictions, without interpolation; fastest first."""
        made: dict[str, tuple[Design, Prediction]] = {}
        for number, network in enumerate(found):
            self._report_progress(number, len(found), "predicting the chosen designs")
            design, prediction = predicted_design(self.latencies, network.choices, network.head)
            made.setdefault(design.id, (design, prediction))
        by_macs = self.options.limits.target_ms is not None

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
        latencies, pool = self.latencies, self.comparison.pool_plan()
        shares = {design.id: self.comparison.control_share(design) for design, _ in made if design.meeting_points}
        return SearchReport(
            family=self.family,
            limits=self.options.limits,
            lifted=self.lifted,
            cut_points=len(latencies.blueprint.traced.blocks) - 1,
            boundaries=tuple(boundaries[1:-1]),
            pruning=pruning_steps(boundaries, statistics, latencies.processors),
            transitions=self.transitions,
            predicted_workloads=len(latencies.rows.workloads),
            original_ms=tuple(1e3 * seconds for seconds in original_seconds(latencies)),
            measured_ms=self.measured_ms,
            cut_short=self.cut_short,
            recalled=self.recalled,
            diagnostics=tuple(notes),
            blocks=block_costs(latencies),
            head_ms=tuple(1e3 * seconds for seconds in head_seconds(latencies)),
            front=tuple(FrontPoint(1e3 * network.seconds, network.macs) for network in self.front),
            predictions={design.id: prediction for design, prediction in made},
            unpredicted=tuple(sorted(latencies.rows.unpredicted)),
            unbranched=self.comparison.fastest,
            branched_ms=self.comparison.branched_ms,
            stays_unbranched=not any(design.meeting_points for design, _ in made),
            infeasible=self.infeasible,
            head_parts=latencies.blueprint.tower_count,
            split_ms=_finite_ms(split_seconds(latencies, self.whole)) if latencies.splits else None,
            pool="" if self.options.pool is None else self.options.pool.name,
            product_macs=product_macs(latencies.blueprint),
            unbranched_ms=self.comparison.plan_ms,
            pool_ms=None if pool is None else _finite_ms(pool.seconds),
            control_shares=shares,
        )


def _finite_ms(seconds: float) -> float | None:
    """Milliseconds; None if infinite."""
    return 1e3 * seconds if math.isfinite(seconds) else None
