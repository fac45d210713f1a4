"""Learned search of large parameter spaces with few measurements (ACLTuner, section 2.2 and appendix F).

The search measures fifty random candidates first. Each following round measures three that the trees recommend and two random
ones, which reduce the bias of the trees towards their own choices. All tasks of a network share the trees.

Rounds continue while the expected gain over all runs that the network is tuned for exceeds the time of a round. The expected
gain of a candidate is its expected improvement over the best so far, with a normal error of the prediction's logarithm whose
spread is that of the last predictions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nnstretch.scheduler.costmodel.features import Machine, columns, features, matrix
from nnstretch.scheduler.costmodel.training_table import Values, estimate
from nnstretch.scheduler.costmodel.trees import Point, boost
from nnstretch.scheduler.costmodel.workload import parse_workload
from nnstretch.support.progress import Progress

_LEAST_SPREAD = 0.02
"""Lower bound of the spread, from the noise of measurements."""
_FIRST_SPREAD = 0.3
"""Spread before the first prediction was compared."""
_REMEMBERED = 30
"""Number of last predictions that determine the spread."""
_NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True)
class SearchTask:
    """Interchangeable candidates of one workload.

    Attributes:
        candidates: at least one.
        weight: number of layers with the workload.
    """

    candidates: tuple[Point, ...]
    weight: int = 1


@dataclass(frozen=True)
class Schedule:
    """Numbers of measurements.

    Attributes:
        initial: random candidates at the beginning.
        recommended: recommended candidates per round.
        random: random candidates per round.
        runs: runs of the network that tuning must pay off in.
        most: largest number of measurements, without those that find a first working candidate of a task.
    """

    initial: int = 50
    recommended: int = 3
    random: int = 2
    runs: int = 10_000
    most: int = 100_000


@dataclass(frozen=True)
class Round:
    """Record of a round.

    Attributes:
        measurements: total number at its end.
        best: sum of the best seconds of all tasks at its end.
        expected_gain: expected saving, seconds per run.
        cost: its time, seconds.
    """

    measurements: int
    best: float
    expected_gain: float
    cost: float


@dataclass(frozen=True)
class Exploration:
    """Result of a search.

    Attributes:
        measured: (task, candidate) -> seconds; None for a candidate that failed.
        best: fastest candidate of each task; None if all measured ones failed.
        rounds: rounds after the initial candidates.
        spread: standard deviation of log(measured / predicted) of the last predictions.
        candidates: number of all candidates.
    """

    measured: dict[tuple[int, int], float | None]
    best: tuple[int | None, ...]
    rounds: tuple[Round, ...]
    spread: float
    candidates: int

    @property
    def saved(self) -> float:
        """Saved share of an exhaustive search's measurements."""
        return 1 - len(self.measured) / self.candidates


class Predictor(Protocol):
    """Predictions from before the search, such as `CostTrees`."""

    def predict(self, points: Sequence[Point]) -> Values:
        """Seconds of every point; NaN where unknown."""


Measure = Callable[[int, int], float | None]
"""Seconds of a task's candidate, by their numbers; None if it fails."""


@dataclass(eq=False)
class Explorer:
    """Searches several tasks together.

    Attributes:
        tasks: the tasks.
        measure: measures a candidate.
        machine: the processor's part of the features.
        prior: predictions that the trees correct.
        schedule: numbers of measurements.
        seed: seed of all random draws. Equal seeds and measurements give equal searches if the clock is deterministic.
        clock: seconds; times the rounds.
        progress: called after every round with (measurements, candidates, best total).
    """

    tasks: Sequence[SearchTask]
    measure: Measure
    machine: Machine
    prior: Predictor | None = None
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    clock: Callable[[], float] = time.perf_counter
    progress: Progress | None = None

    def __post_init__(self) -> None:
        # Candidates of all tasks have consecutive numbers; `_owner` maps them to tasks.
        self._random = np.random.default_rng(self.seed)
        candidates = [c for task in self.tasks for c in task.candidates]
        self._owner = np.array([t for t, task in enumerate(self.tasks) for _ in task.candidates], np.int64)
        self._first = np.searchsorted(self._owner, np.arange(len(self.tasks)))
        self._weight = np.array([task.weight for task in self.tasks], np.float64)
        self._rows, self._base = _described(candidates, self.machine, self.prior)
        self._log = np.full(len(candidates), math.nan)  # of measured seconds; infinite for failures
        self._best = np.full(len(self.tasks), math.inf)
        self._predicted = self._base.copy()
        self._missed: list[float] = []

    def run(self) -> Exploration:
        """Searches until a round does not pay, or no candidate is left.

        Raises:
            MissingExtraError: xgboost is not installed.
        """
        rounds: list[Round] = []
        self._measure(self._initial())
        while (np.isnan(self._log)).any() and self._count() < self.schedule.most:
            begin = self.clock()
            self._learn()
            recommended, gain = self._recommended()
            cost = float(np.median([r.cost for r in rounds])) if rounds else 0.0
            if gain * self.schedule.runs < cost:
                break
            chosen = [*recommended, *self._drawn(self.schedule.random, recommended)]
            self._measure(chosen[: self.schedule.most - self._count()])
            rounds.append(Round(self._count(), self._total(), gain, self.clock() - begin))
            if self.progress:
                self.progress(self._count(), len(self._log), f"{1e3 * self._total():.3f} ms")
        self._complete()
        return self._answer(rounds)

    def _count(self) -> int:
        return int((~np.isnan(self._log)).sum())

    def _total(self) -> float:
        return float((self._weight * np.where(np.isinf(self._best), 0.0, np.exp(self._best))).sum())

    def _measure(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            task = int(self._owner[number])
            seconds = self.measure(task, number - int(self._first[task]))
            self._log[number] = math.inf if seconds is None or seconds <= 0 else math.log(seconds)
            if math.isfinite(self._log[number]):
                self._missed.append(abs(self._log[number] - self._predicted[number]))
                self._best[task] = min(self._best[task], self._log[number])

    def _initial(self) -> list[int]:
        """Random candidates of all tasks in turn, tasks with the largest total time first."""
        heaviest = np.argsort(-self._weight * np.exp(self._base[self._first]), kind="stable")
        orders = [self._random.permutation(np.flatnonzero(self._owner == task)) for task in heaviest]
        turns = max(map(len, orders), default=0)
        numbers = [int(order[turn]) for turn in range(turns) for order in orders if turn < len(order)]
        return numbers[: min(self.schedule.initial, self.schedule.most)]

    def _learn(self) -> None:
        """Trains trees on the measurements, and predicts all candidates."""
        known = np.isfinite(self._log)
        if known.sum() > 1:
            trees = boost(self._rows[known], self._log[known] - self._base[known], self.seed)
            self._predicted = self._base + trees.inplace_predict(self._rows)

    def _spread(self) -> float:
        if not self._missed:
            return _FIRST_SPREAD
        return max(_LEAST_SPREAD, _NORMAL * float(np.median(self._missed[-_REMEMBERED:])))

    def _gains(self) -> Values:
        """Expected saving of each candidate, seconds per run; -1 for measured ones."""
        hoped = np.where(np.isinf(self._best), _worst(self._predicted, self._owner, len(self._best)), self._best)
        best, spread = hoped[self._owner], self._spread()
        distance = (best - self._predicted) / spread
        gain = np.exp(best) * _normal(distance)
        gain -= np.exp(self._predicted + spread**2 / 2) * _normal(distance - spread)
        return np.where(np.isnan(self._log), np.maximum(gain, 0.0) * self._weight[self._owner], -1.0)

    def _recommended(self) -> tuple[list[int], float]:
        """Candidates with the largest expected saving, of different tasks where possible, and the sum of their savings."""
        gains = self._gains()
        order = np.argsort(-gains, kind="stable")
        order = order[gains[order] >= 0]
        _, leaders = np.unique(self._owner[order], return_index=True)
        ranked = [*order[np.sort(leaders)], *np.delete(order, leaders)]
        chosen = [int(i) for i in ranked[: self.schedule.recommended]]
        return chosen, float(gains[chosen].sum())

    def _drawn(self, count: int, besides: Sequence[int]) -> list[int]:
        left = np.setdiff1d(np.flatnonzero(np.isnan(self._log)), besides)
        return [int(i) for i in self._random.choice(left, min(count, len(left)), replace=False)]

    def _complete(self) -> None:
        """Measures candidates of tasks without a working one, by prediction, until one works."""
        for task in np.flatnonzero(np.isinf(self._best)):
            mine = np.flatnonzero((self._owner == task) & np.isnan(self._log))
            for number in mine[np.argsort(self._predicted[mine], kind="stable")]:
                self._measure([int(number)])
                if math.isfinite(self._best[task]):
                    break

    def _answer(self, rounds: Sequence[Round]) -> Exploration:
        measured: dict[tuple[int, int], float | None] = {}
        best: list[int | None] = [None] * len(self._best)
        for number in np.flatnonzero(~np.isnan(self._log)):
            task = int(self._owner[number])
            position, value = int(number - self._first[task]), float(self._log[number])
            measured[task, position] = math.exp(value) if math.isfinite(value) else None
            if value == self._best[task] and best[task] is None and math.isfinite(value):
                best[task] = position
        return Exploration(measured, tuple(best), tuple(rounds), self._spread(), len(self._log))


def _described(
    candidates: Sequence[Point], machine: Machine, prior: Predictor | None
) -> tuple[NDArray[np.float32], Values]:
    """Features of all candidates, and logarithms of their predictions before the search."""
    found = []
    for candidate in candidates:
        workload = parse_workload(candidate.workload)
        assert workload is not None, candidate.workload
        found.append(features(workload, candidate.routine, candidate.parameters, machine, candidate.state))
    base = np.log([estimate(row) for row in found])
    if prior is not None:
        predicted = prior.predict(candidates)
        base = np.where(np.isnan(predicted), base, np.log(np.where(np.isnan(predicted), 1.0, predicted)))
    return matrix(found, columns(found)), base


def _worst(predicted: Values, owner: NDArray[np.int64], tasks: int) -> Values:
    """The largest prediction of each task."""
    worst = np.full(tasks, -math.inf)
    np.maximum.at(worst, owner, predicted)
    return worst


def _normal(values: Values) -> Values:
    """Cumulative normal distribution."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in values])
