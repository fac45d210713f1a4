"""The comparison of a search's designs with the original network without branches.

The network without branches is returned if no design is ahead of it. Predictions decide where they differ clearly; plans
that are close to the fastest way run, if designs run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.latency.prediction import Prediction
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.kept_refinement import keep_plan_runs
from nnstretch.branching.search.network_latency import confirm
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.plan_runs import PlanRuns
from nnstretch.branching.search.report import original_seconds
from nnstretch.branching.search.unbranched import UnbranchedPlan, pool_plan, unbranched_plans, whole_blocks
from nnstretch.branching.search.whole_blocks import WholeBlockWays

# Share by which the network without branches has to be ahead of a design that ran untuned, for the design not to be tuned.
_OUT_OF_REACH = 0.05


@dataclass(eq=False)
class UnbranchedComparison:
    """Compares the designs of one search with the network without branches.

    Attributes:
        latencies: predictions.
        options: of the search.
        ways: to compute blocks without branches.
        measured_ms: latency of the designs that ran, by id; the search adds to it.
        end: `time.monotonic()` at which no further plan runs.
        kept: file that holds what the designs' runs found, to which runs of plans are added; None: no file holds it.
        pooled: predictions of the pool; None without one.
        placed: seconds of the network without branches as the scheduler runs it; None until it was asked.
        plan_ms: milliseconds of the plans without branches that ran, as in `PlanRuns`.
        fastest: see `SearchReport.unbranched`.
        branched_ms: see `SearchReport`.
    """

    latencies: LatencyTable
    options: SearchOptions
    ways: WholeBlockWays
    measured_ms: dict[str, float]
    end: float
    kept: Path | None = field(default=None, init=False)
    pooled: LatencyTable | None = field(default=None, init=False)
    placed: float | None = field(default=None, init=False)
    plan_ms: dict[str, float] = field(default_factory=dict, init=False)
    fastest: UnbranchedPlan | None = field(default=None, init=False)
    branched_ms: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.options.pool is not None:
            self.pooled = LatencyTable(self.latencies.blueprint, self.options.pool.predictor, 1)

    def confirm_original(self) -> None:
        """Lets the predictor measure the original's estimated layers on its fastest processor, unless networks run."""
        if self.options.runner is None and not self.options.even_if_slower:
            times = original_seconds(self.latencies)
            if confirm(self.latencies, whole_blocks(self.latencies, times.index(min(times)))):
                self.latencies.forget()
            if self.pooled is not None and confirm(self.pooled, whole_blocks(self.pooled, 0)):
                self.pooled.forget()

    def may_be_returned(self) -> bool:
        """Whether the network without branches may be returned: it can be predicted, and meets a latency target."""
        target = self.options.limits.target_ms
        plan = None if self.options.even_if_slower else self._fastest_plan(math.inf)
        return plan is not None and math.isfinite(plan.ms) and (target is None or plan.ms <= target)

    def _fastest_plan(self, slowest: float) -> UnbranchedPlan | None:
        """The fastest of `_plans`; None if there is none."""
        return min(self._plans(slowest), key=lambda plan: plan.seconds, default=None)

    def _plans(self, slowest: float) -> list[UnbranchedPlan]:
        """As `unbranched_plans`, from the present predictions, and all cores as one; the scheduler is asked once."""
        asked = None if self.options.even_if_slower or self.options.placed_seconds is None else self._placed_seconds
        plans = unbranched_plans(self.latencies, asked, slowest, self.ways)
        pool = self.pool_plan()
        return plans if pool is None else [*plans, pool]

    def pool_plan(self) -> UnbranchedPlan | None:
        """As `unbranched.pool_plan`, from the present predictions; None without a pool."""
        pool = self.options.pool
        return None if self.pooled is None or pool is None else pool_plan(self.latencies, self.pooled, pool)

    def _placed_seconds(self) -> float:
        """The scheduler's prediction of the network without branches."""
        if self.placed is None:
            assert self.options.placed_seconds is not None
            self.options.progress(0, 0, "placing the network without branches")
            self.placed = self.options.placed_seconds()
        return self.placed

    def designs_ahead(self, made: Sequence[tuple[Design, Prediction]]) -> list[tuple[Design, Prediction]]:
        """The designs that are ahead of the network without branches, or else that network as a design."""
        plans = self._after_runs(self._plans(self._slowest(made)), made)
        self.fastest = plan = min(plans, key=lambda one: one.seconds, default=None)
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
            designs = [seconds, seconds / self.control_share(design)]
        before = len(self.plan_ms)

        def announce() -> None:
            options.progress(0, 0, "tuning and running the network without branches")

        found = PlanRuns(options.plan_runner, announce, self.end, self.plan_ms).compared(plans, designs)
        if self.kept is not None and len(self.plan_ms) > before:
            keep_plan_runs(self.kept, self.latencies.blueprint, self.plan_ms)
        return found

    def control_share(self, design: Design) -> float:
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

    def can_win(self, seconds: float) -> bool:
        """Whether a design that is predicted to take so long may be ahead of the network without branches once it is tuned."""
        plan = None if self.options.even_if_slower else self._fastest_plan(seconds)
        return plan is None or seconds <= (1 + _OUT_OF_REACH) * plan.seconds
