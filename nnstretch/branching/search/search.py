"""The search for designs: where branches meet, on which processors they run, and their depths and widths.

Every boundary between blocks is a candidate meeting point, so the search decides their number and places.
Candidates for each segment between two boundaries (`candidates`) are combined to whole networks
(`dynamic_programming`). Widths are first searched in steps of 1/8; then widths around the best design in
steps of 1/32, and depths one block away from its own. Layers of the best designs that the predictor only
estimated are measured, and the search is repeated with the results. At the end, designs are compared with the
original network without branches (`unbranched`), which is returned if none is ahead of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nnstretch.branching.design.blueprint import Blueprint, SegmentChoice
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import choices_of, head_of, make_design
from nnstretch.branching.latency.prediction import (
    DesignRunner,
    FrontPoint,
    LatencyPredictor,
    PlacedPredictor,
    PlanRunner,
    Pool,
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
from nnstretch.branching.search.head_candidates import HeadCandidate, head_candidates
from nnstretch.branching.search.kept_refinement import (
    KeptRefinement,
    keep_plan_runs,
    keep_refinement,
    read_refinement,
)
from nnstretch.branching.search.limits import Family, SearchLimits, family_of
from nnstretch.branching.search.network_latency import (
    State,
    branch_seconds,
    confirm,
    network_prediction,
    predicted_design,
)
from nnstretch.branching.search.plan_runs import PlanRuns
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
    UnbranchedPlan,
    pool_plan,
    split_seconds,
    unbranched_plans,
    whole_blocks,
)
from nnstretch.branching.search.whole_blocks import WholeBlockWays
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import BuiltNetworks
from nnstretch.errors import DesignError
from nnstretch.support.progress import Progress, silent
from nnstretch.support.words import counted

_CONFIRMATIONS = 3  # maximum repetitions after estimated layers of the best designs were measured
# Share by which the network without branches has to be ahead of a design that ran untuned, for the design not to be tuned.
_OUT_OF_REACH = 0.05


@dataclass(frozen=True)
class SearchOptions:
    """What a search looks for.

    Attributes:
        processors: number of processors, at least two; a branched segment uses two or more.
        limits: constraints.
        designs: maximum number of designs.
        pareto: spread the designs over the front of latency and MACs instead of returning the fastest.
        runner: runs designs for measurement-guided refinement, so that their layers need no measurement before; the
            fastest design that ran comes first. Ignored with `pareto` and with a latency target.
        plan_runner: runs the network without branches, where predictions do not tell whether it is ahead of the designs that
            ran, or which of its plans is; ignored without `runner`, and with `even_if_slower`.
        kept: file for what the runs find (`refinement_file`): if it is there, no design runs; None: nothing is kept.
        fresh: run designs although the file is there, and replace it.
        time_limit: seconds after which the search runs no further designs; predictions are always completed.
        best_effort: if no design is within alpha and beta, search without these two limits.
        even_if_slower: return branched designs only, even if the network without branches is predicted to be faster.
        placed_seconds: predicts the network without branches as the scheduler runs it; None: such plans are not compared.
            Ignored with `even_if_slower`.
        pool: the cores of this machine's CPU that at least two processors compute on, as one processor; such a plan of the
            network without branches is compared, too, and is not returned with `even_if_slower`.
        splits: the layers of segments without branches may be split over the processors, as the scheduler does.
        progress: called as progress(done, total, what).
    """

    processors: int = 2
    limits: SearchLimits = field(default_factory=SearchLimits)
    designs: int = 5
    pareto: bool = False
    runner: DesignRunner | None = None
    plan_runner: PlanRunner | None = None
    kept: Path | None = None
    fresh: bool = False
    time_limit: float = math.inf
    best_effort: bool = False
    even_if_slower: bool = False
    placed_seconds: PlacedPredictor | None = None
    pool: Pool | None = None
    splits: bool = True
    progress: Progress = silent


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
        branched_ms: see `SearchReport`.
        unbranched: see `SearchReport`.
        pooled: predictions of the pool; None without one.
        placed: seconds of the network without branches as the scheduler runs it; None until it was asked.
        plan_ms: milliseconds of the plans without branches that ran, as in `PlanRuns`.
        is_kept: whether the file that is kept holds what this search has found, and not what an earlier one did.
        end: `time.monotonic()` after which no design runs.
        whole: ways to compute blocks without branches.
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
    branched_ms: float | None = field(default=None, init=False)
    unbranched: UnbranchedPlan | None = field(default=None, init=False)
    pooled: LatencyTable | None = field(default=None, init=False)
    placed: float | None = field(default=None, init=False)
    plan_ms: dict[str, float] = field(default_factory=dict, init=False)
    is_kept: bool = field(default=False, init=False)
    end: float = field(default=math.inf, init=False)
    whole: WholeBlockWays = field(init=False)
    fine: dict[SegmentChoice, SegmentOptions] = field(default_factory=dict, init=False)
    heads: dict[tuple[int, State], list[HeadCandidate]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.whole = WholeBlockWays(self.latencies)

    def run(self) -> tuple[list[Design], SearchReport]:
        """The designs and the report.

        Raises:
            DesignError: no design meets the limits.
        """
        self.end = time.monotonic() + self.options.time_limit
        if self.options.pool is not None:
            self.pooled = LatencyTable(self.latencies.blueprint, self.options.pool.predictor, 1)
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
        self._confirm_original()
        made = self._predicted(found)
        made.sort(key=lambda one: self.measured_ms.get(one[0].id, math.inf))
        made = self._ahead(made)
        self._report_progress(len(found), len(found), "predicting the chosen designs")
        return [design for design, _ in made], self._report(boundaries, statistics, notes, made)

    def _report_progress(self, done: int, total: int, what: str) -> None:
        """Reports progress with the number of distinct layers predicted so far."""
        self.options.progress(done, total, f"{what}, {counted(len(self.latencies.workloads), 'layer')} so far")

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
        self.front = self._confirmed(lambda: _front([*coarse, *self._near(centres)]), self._reached)
        self.branched_ms = 1e3 * self.front[0].seconds
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
        if not earlier.measured_ms and self._can_win(seconds):
            self.latencies.corrections.clear()
            return None
        self.recalled = self.is_kept = True
        self.measured_ms.update(earlier.measured_ms)
        self.plan_ms.update(earlier.unbranched_ms)
        return NetworkCandidate(choices, seconds, earlier.design.macs, head)

    def _improved(self, best: NetworkCandidate, choices: SearchSpace, runner: DesignRunner) -> NetworkCandidate:
        """The fastest network that measurement-guided refinement finds, which begins with the best one.

        Rebalancing searches near the network that ran last, and near the best one on the coarse grid.
        """

        def propose(network: NetworkCandidate) -> NetworkCandidate | None:
            coarse = _front(self._combine(choices, "combining segments again"))[:1]
            return next(iter(_front(self._near([network, *coarse]))), None)

        refinement = GuidedRefinement(
            self.latencies,
            self.networks,
            runner,
            propose,
            self.options.progress,
            self._can_win,
            self.measured_ms,
            self.end,
        )
        best = refinement.fastest(best)
        self.cut_short = refinement.cut_short
        if self.options.kept is not None and not self.cut_short:
            design, _ = predicted_design(self.latencies, best.choices, best.head)
            keep_refinement(self.options.kept, KeptRefinement(design, self.measured_ms, self.latencies.corrections))
            self.is_kept = True
        return best

    def _can_win(self, seconds: float) -> bool:
        """Whether a design that is predicted to take so long may be ahead of the network without branches once it is tuned."""
        plan = None if self.options.even_if_slower else self._unbranched_plan(seconds)
        return plan is None or seconds <= (1 + _OUT_OF_REACH) * plan.seconds

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
        wanted = self._wanted(front) or _front(front)
        return wanted if self.options.pareto else wanted[:1]

    def _wanted(self, found: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """The networks to return: the fastest, those with the most MACs within the target, or a spread over the front.

        Empty if no network meets the target.
        """
        front = _front(found)
        target = self.options.limits.target_ms
        if target is not None:
            return [f for f in front if f.seconds * 1e3 <= target][::-1][: self.options.designs]
        if self.options.pareto:
            places = [
                round(i * (len(front) - 1) / max(self.options.designs - 1, 1)) for i in range(self.options.designs)
            ]
            return [front[place] for place in dict.fromkeys(places)]
        return front[: self.options.designs]

    def _reached(self, found: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
        """As `_wanted`; empty if the latency target is met without branches only.

        Raises:
            DesignError: no network meets the latency target.
        """
        wanted = self._wanted(found)
        if not wanted and not self._may_stay_whole():
            raise DesignError(
                f"no design within the limits is predicted to take at most {self.options.limits.target_ms:g} ms; the fastest "
                f"takes {1e3 * _front(found)[0].seconds:.3f} ms: raise the target, or lower min_macs, min_depth or min_width"
            )
        return wanted

    # -- without branches -----------------------------------------------------------------------------------------

    def _confirm_original(self) -> None:
        """Lets the predictor measure the original's estimated layers on its fastest processor, unless networks run."""
        if self.options.runner is None and not self.options.even_if_slower:
            times = original_seconds(self.latencies)
            if confirm(self.latencies, whole_blocks(self.latencies, times.index(min(times)))):
                self.latencies.forget()
            if self.pooled is not None and confirm(self.pooled, whole_blocks(self.pooled, 0)):
                self.pooled.forget()

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
        if not statistics or not is_wanted or not self._may_stay_whole():
            raise DesignError(str(why))
        self.infeasible = str(why)

    def _may_stay_whole(self) -> bool:
        """Whether the network without branches may be returned: it can be predicted, and meets a latency target."""
        target = self.options.limits.target_ms
        plan = None if self.options.even_if_slower else self._unbranched_plan(math.inf)
        return plan is not None and math.isfinite(plan.ms) and (target is None or plan.ms <= target)

    def _unbranched_plan(self, slowest: float) -> UnbranchedPlan | None:
        """The fastest of `_unbranched_plans`; None if there is none."""
        return min(self._unbranched_plans(slowest), key=lambda plan: plan.seconds, default=None)

    def _unbranched_plans(self, slowest: float) -> list[UnbranchedPlan]:
        """As `unbranched_plans`, from the present predictions, and all cores as one; the scheduler is asked once."""
        asked = None if self.options.even_if_slower or self.options.placed_seconds is None else self._placed_seconds
        plans = unbranched_plans(self.latencies, asked, slowest, self.whole)
        pool = self._pool_plan()
        return plans if pool is None else [*plans, pool]

    def _pool_plan(self) -> UnbranchedPlan | None:
        """As `pool_plan`, from the present predictions; None without a pool."""
        pool = self.options.pool
        return None if self.pooled is None or pool is None else pool_plan(self.latencies, self.pooled, pool)

    def _placed_seconds(self) -> float:
        """The scheduler's prediction of the network without branches."""
        if self.placed is None:
            assert self.options.placed_seconds is not None
            self.options.progress(0, 0, "placing the network without branches")
            self.placed = self.options.placed_seconds()
        return self.placed

    def _ahead(self, made: Sequence[tuple[Design, Prediction]]) -> list[tuple[Design, Prediction]]:
        """The designs that are ahead of the network without branches, or else that network as a design."""
        plans = self._after_runs(self._unbranched_plans(self._slowest(made)), made)
        self.unbranched = plan = min(plans, key=lambda one: one.seconds, default=None)
        compared = self._compared(made, plan)
        if made and self.options.limits.target_ms is None:
            self.branched_ms = min(1e3 * self._seconds(*one, plan) for one in compared)
        if plan is None or self.options.even_if_slower:
            return list(made)
        if not any(self._is_ahead(*one, plan) for one in compared):
            return [self._without_branches(plan)]
        return [one for one in made if self._is_ahead(*one, plan)]

    def _compared(
        self, made: Sequence[tuple[Design, Prediction]], plan: UnbranchedPlan | None
    ) -> Sequence[tuple[Design, Prediction]]:
        """The designs that stand for all beside a plan without branches: those that ran, if it ran and some of them did."""
        ran = [one for one in made if one[0].id in self.measured_ms]
        return ran if plan is not None and plan.is_measured and ran else made

    def _after_runs(
        self, plans: list[UnbranchedPlan], made: Sequence[tuple[Design, Prediction]]
    ) -> list[UnbranchedPlan]:
        """The plans, those that compete with each other or with the best design after a run, if designs run."""
        options = self.options
        if options.runner is None or options.plan_runner is None or options.even_if_slower:
            return plans
        designs: list[float] = []
        for design, prediction in made[:1]:
            seconds = 1e-3 * self.measured_ms.get(design.id, 1e3 * prediction.seconds)
            designs = [seconds, seconds / self._control_share(design)]
        before = len(self.plan_ms)

        def announce() -> None:
            options.progress(0, 0, "tuning and running the network without branches")

        found = PlanRuns(options.plan_runner, announce, self.end, self.plan_ms).compared(plans, designs)
        if options.kept is not None and self.is_kept and len(self.plan_ms) > before:
            keep_plan_runs(options.kept, self.latencies.blueprint, self.plan_ms)
        return found

    def _control_share(self, design: Design) -> float:
        """Predicted latency of a design's equal-MACs control over the original's; 1 without branches."""
        return self.latencies.control_share(design.macs) if design.meeting_points else 1.0

    def _seconds(self, design: Design, prediction: Prediction, plan: UnbranchedPlan | None) -> float:
        """Seconds of a design beside a plan without branches: measured ones beside measured ones, if it ran."""
        is_measured = plan is not None and plan.is_measured and design.id in self.measured_ms
        return 1e-3 * self.measured_ms[design.id] if is_measured else prediction.seconds

    def _slowest(self, made: Sequence[tuple[Design, Prediction]]) -> float:
        """Seconds of the slowest design that a plan without branches may be ahead of."""
        if not made:
            return math.inf
        target = self.options.limits.target_ms
        times = [prediction.seconds for design, prediction in made if not self._has_more(design)]
        return max(times, default=0.0) if target is None or not times else 1e-3 * target

    def _is_ahead(self, design: Design, prediction: Prediction, plan: UnbranchedPlan) -> bool:
        """Whether a design is ahead of a plan without branches: in latency, or in MACs where these count.

        With a latency target, which the design meets, only MACs count.
        """
        target = self.options.limits.target_ms
        if self._has_more(design):
            return True
        seconds = self._seconds(design, prediction, plan)
        return plan.ms > target if target is not None else not plan.is_ahead_of(1e3 * seconds)

    def _has_more(self, design: Design) -> bool:
        """Whether a design has more MACs than the original, where they count beside latency."""
        counts = self.options.pareto or self.options.limits.target_ms is not None
        return counts and design.macs > design.original_macs

    def _without_branches(self, plan: UnbranchedPlan) -> tuple[Design, Prediction]:
        """A plan without branches as a design."""
        alone = [[1e3 * branch.alone for branch in part.branches] for part in plan.prediction.segments]
        return make_design(
            self.latencies.blueprint, plan.choices, alone, plan.ms, pool=bool(plan.pool)
        ), plan.prediction

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
        latencies, pool = self.latencies, self._pool_plan()
        shares = {design.id: self._control_share(design) for design, _ in made if design.meeting_points}
        return SearchReport(
            family=self.family,
            limits=self.options.limits,
            lifted=self.lifted,
            cut_points=len(latencies.blueprint.traced.blocks) - 1,
            boundaries=tuple(boundaries[1:-1]),
            pruning=pruning_steps(boundaries, statistics, latencies.processors),
            transitions=self.transitions,
            predicted_workloads=len(latencies.workloads),
            original_ms=tuple(1e3 * seconds for seconds in original_seconds(latencies)),
            measured_ms=self.measured_ms,
            cut_short=self.cut_short,
            recalled=self.recalled,
            diagnostics=tuple(notes),
            blocks=block_costs(latencies),
            head_ms=tuple(1e3 * seconds for seconds in head_seconds(latencies)),
            front=tuple(FrontPoint(1e3 * network.seconds, network.macs) for network in self.front),
            predictions={design.id: prediction for design, prediction in made},
            unpredicted=tuple(sorted(latencies.unpredicted)),
            unbranched=self.unbranched,
            branched_ms=self.branched_ms,
            stays_unbranched=not any(design.meeting_points for design, _ in made),
            infeasible=self.infeasible,
            head_parts=latencies.blueprint.tower_count,
            split_ms=_finite_ms(split_seconds(latencies, self.whole)) if latencies.splits else None,
            pool="" if self.options.pool is None else self.options.pool.name,
            product_macs=product_macs(latencies.blueprint),
            unbranched_ms=self.plan_ms,
            pool_ms=None if pool is None else _finite_ms(pool.seconds),
            control_shares=shares,
        )


def _finite_ms(seconds: float) -> float | None:
    """Milliseconds; None if infinite."""
    return 1e3 * seconds if math.isfinite(seconds) else None


def _front(found: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
    """The front of latency and MACs, fastest first."""
    front: list[NetworkCandidate] = []
    for network in sorted(found, key=lambda f: (f.seconds, -f.macs)):
        if not front or network.macs > front[-1].macs:
            front.append(network)
    return front
