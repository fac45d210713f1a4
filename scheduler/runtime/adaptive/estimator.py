"""Latency estimator: expected seconds of every plan, from recent runs of all plans, within a window."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PlanFacts:
    """Undisturbed times of a plan.

    Attributes:
        name: of the plan.
        seconds: of a run.
        busy: processor -> seconds that it computes in a run, for all processors of the plan.
    """

    name: str
    seconds: float
    busy: Mapping[str, float]


@dataclass(frozen=True)
class Observation:
    """The outcome of a run.

    Attributes:
        plan: its plan.
        seconds: its duration, up to the failure if it failed.
        busy: processor -> seconds that it computed; None if the run was not traced.
        failed: whether it failed.
        lost: parts of the plan that made it fail; empty if unknown.
    """

    plan: str
    seconds: float
    busy: Mapping[str, float] | None = None
    failed: bool = False
    lost: Collection[str] = ()


FEWEST = 5
SPAN = 0.02
"""Seconds that the window covers at least. Short runs are disturbed rarely, but by a whole time slice each time."""
MOST = 64


class Recent:
    """The last runs with their undisturbed times: more of them where runs are short."""

    def __init__(self) -> None:
        """Begins empty."""
        self._values: deque[tuple[float, float, float]] = deque()  # ratio, seconds, undisturbed seconds
        self._seconds = 0.0
        self._undisturbed = 0.0
        self._slowest = (0.0, 0.0, 0.0)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_full(self) -> bool:
        """Whether the window has its final length."""
        return len(self._values) >= MOST or (len(self._values) >= FEWEST and self._seconds >= SPAN)

    @property
    def slowness(self) -> float:
        """Mean time over undisturbed time, without the slowest run, which may be an outlier; 1 if unknown."""
        if not self._values:
            return 1.0
        if len(self._values) < 3:
            return min(self._values)[0]
        _, seconds, undisturbed = self._slowest
        return (self._seconds - seconds) / (self._undisturbed - undisturbed)

    def add(self, seconds: float, undisturbed: float) -> None:
        """Adds a run of `seconds` that takes `undisturbed` seconds if nothing disturbs it."""
        values = self._values
        added = (seconds / undisturbed, seconds, undisturbed)
        values.append(added)
        self._seconds += seconds
        self._undisturbed += undisturbed
        self._slowest = max(self._slowest, added)
        while len(values) > FEWEST and (len(values) > MOST or self._seconds - values[0][1] >= SPAN):
            oldest = values.popleft()
            self._seconds -= oldest[1]
            self._undisturbed -= oldest[2]
            if oldest == self._slowest:
                self._slowest = max(values)


SLOWED = 1.15
"""Ratio to its undisturbed time from which a plan or processor counts as slowed."""
_FASTER = 0.97
_LEARNING = 0.05  # step by which the undisturbed time follows faster runs


@dataclass
class _Known:
    """State of a plan.

    Attributes:
        facts: as given.
        seconds: current estimate of an undisturbed run.
        recent: its last runs.
        blame: ratio to its undisturbed time that the current slowness of its processors explains.
        blamed: `blame` at its last run.
        is_consistent: whether its last traced run agreed with the known slowness of its processors.
    """

    facts: PlanFacts
    seconds: float
    recent: Recent = field(default_factory=Recent)
    blame: float = 1.0
    blamed: float = 1.0
    is_consistent: bool = True


class LatencyEstimator:
    """Estimates how slow processors are, and the latency of plans from that.

    A plan's own runs come first. Runs of other plans count through shared processors: a processor that takes
    twice as long slows every plan that uses it, in proportion to its busy time there. Only a traced run shows
    which of several processors is slow.
    """

    def __init__(self, plans: Sequence[PlanFacts]) -> None:
        """Begins with no plan disturbed."""
        self._plans = {plan.name: _Known(plan, plan.seconds) for plan in plans}
        self._processors = {name: Recent() for plan in plans for name in plan.busy}
        self._slowness = dict.fromkeys(self._processors, 1.0)

    def observe(self, run: Observation) -> None:
        """Updates the estimates with a successful run."""
        plan = self._plans[run.plan]
        if not _is_close(plan.blame, plan.blamed):
            plan.recent = Recent()  # older runs met other speeds of its processors
        plan.recent.add(run.seconds, plan.seconds)
        slowness = plan.recent.slowness
        if slowness < _FASTER and plan.recent.is_full:
            plan.seconds *= 1.0 - _LEARNING * (1.0 - slowness)
        if run.busy is not None:
            times = {name: (seconds, plan.facts.busy[name]) for name, seconds in run.busy.items()}
            self._update_processors(times)
            plan.is_consistent = all(_is_close(a / b, self._slowness[name]) for name, (a, b) in times.items())
        elif self._is_informative(plan):
            self._update_processors(dict.fromkeys(plan.facts.busy, (run.seconds, plan.seconds)))
        plan.blamed = plan.blame

    def slowness(self, name: str) -> float:
        """Time of a plan's recent runs over its undisturbed time."""
        return self._plans[name].recent.slowness

    def undisturbed(self, name: str) -> float:
        """Seconds of an undisturbed run."""
        return self._plans[name].seconds

    def expected(self, name: str) -> float:
        """Expected seconds of a run: those of its last runs, corrected by how its processors have changed since."""
        plan = self._plans[name]
        now = plan.recent.slowness * min(1.0, plan.blame / plan.blamed)
        return plan.seconds * (max(now, plan.blame) if plan.blame > plan.blamed * SLOWED else now)

    def hoped(self, name: str, seen: Collection[str]) -> float:
        """Expected seconds of a run if all processors outside `seen` are undisturbed."""
        plan = self._plans[name]
        return plan.seconds * _blame(plan, {n: s for n, s in self._slowness.items() if n in seen})

    def is_diagnosed(self, name: str) -> bool:
        """Whether the known slowness of its processors explains the slowness of a plan."""
        plan = self._plans[name]
        return plan.is_consistent and plan.recent.slowness < plan.blame * SLOWED

    @staticmethod
    def _is_informative(plan: _Known) -> bool:
        """Whether a plan's last untraced runs tell how slow each of its processors is."""
        if plan.recent.slowness < SLOWED:
            return plan.blame >= SLOWED
        return len(plan.facts.busy) == 1

    def _update_processors(self, times: Mapping[str, tuple[float, float]]) -> None:
        """Updates processors by their (seconds, undisturbed seconds) in a run."""
        for name, (seconds, undisturbed) in times.items():
            self._processors[name].add(seconds, undisturbed)
            self._slowness[name] = self._processors[name].slowness
        for plan in self._plans.values():
            plan.blame = _blame(plan, self._slowness)


def _is_close(one: float, other: float) -> bool:
    return other / SLOWED < one < other * SLOWED


def _blame(plan: _Known, slowness: Mapping[str, float]) -> float:
    """Ratio to its undisturbed time of a plan with this slowness of processors: that of the processor that delays it most."""
    shares = {name: min(1.0, busy / plan.seconds) for name, busy in plan.facts.busy.items()}
    return max(1.0, *(1.0 + share * (slowness.get(name, 1.0) - 1.0) for name, share in shares.items()))
