"""Racing: candidates are timed in interleaved rounds, and slow ones are eliminated early (as in irace).

A disturbance affects neighbouring runs alike. So each round runs every candidate once, and a round in which most candidates are
slower than before is repeated. If a disturbance lasts longer, candidates that it eliminated race again. A candidate's time is
the median of its samples, with a distribution-free confidence interval.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

Timer = Callable[[Sequence[int]], Sequence[float | None]]
"""Candidate numbers -> seconds of one run of each, in this order; None for a candidate that failed."""

_CONFIDENCE = 0.9


@dataclass(frozen=True)
class RaceRules:
    """When candidates are eliminated and when a race ends.

    Attributes:
        least: rounds before the first elimination.
        most: largest number of rounds.
        hopeless: after `least` rounds, a candidate is out if its fastest run takes this many times the fastest of all.
        separate: from this round on, a candidate is out if its confidence interval is above the leader's.
        narrow: the race ends when all intervals are narrower than this share of their lower end.
        budget: seconds after which no new round begins, from `least` rounds on.
        disturbed: a round does not count if its median candidate takes this many times its median so far.
        repeats: number of disturbed rounds that are repeated. If more are disturbed, the machine has changed for good.
    """

    least: int = 3
    most: int = 15
    hopeless: float = 1.25
    separate: int = 5
    narrow: float = 0.015
    budget: float = 1.0
    disturbed: float = 1.08
    repeats: int = 6


class Race:
    """A race of numbered candidates. Candidates may enter after others have run."""

    def __init__(self, timer: Timer, rules: RaceRules) -> None:
        self._timer = timer
        self._rules = rules
        self._samples: dict[int, list[float]] = {}
        self._rounds_of: dict[int, list[int]] = {}  # numbers of the rounds of each sample
        self._alive: list[int] = []
        self._hopeless: list[int] = []
        self._rounds = 0
        self._end = rules.most
        self._spent = 0.0
        self._repeated = 0
        self._random = random.Random(0)
        self._last = -1

    def enter(self, number: int) -> None:
        """Adds a candidate, which runs from the next round on."""
        self._samples[number], self._rounds_of[number] = [], []
        self._alive.append(number)

    def first_rounds(self, rounds: int) -> dict[int, float]:
        """Runs a few rounds of the race; the fastest run so far of each working candidate, seconds."""
        for _ in range(rounds):
            self._round()
        return {number: min(samples) for number, samples in self._samples.items() if samples}

    def run(self) -> dict[int, list[float]]:
        """Runs the race to its end; samples of every candidate."""
        self._run_to_end()
        if suspects := self._disturbed_losers():
            self._alive, self._hopeless = [self._winner()], []
            for number in suspects:
                self.enter(number)
            self._end, self._spent = self._rounds + self._rules.most, 0.0
            self._run_to_end()
        return self._samples

    def _run_to_end(self) -> None:
        while self._alive and self._rounds < self._end and not self._is_decided():
            self._round()
            self._eliminate()

    def _round(self) -> None:
        times = self._times()
        self._spent += sum(times.values())
        if self._disturbed(times):
            self._repeated += 1
            return
        for number, seconds in times.items():
            self._samples[number].append(seconds)
            self._rounds_of[number].append(self._rounds)
        self._rounds += 1

    def _times(self) -> dict[int, float]:
        """One run of each remaining candidate in random order; none runs twice in a row."""
        order = self._alive[:]
        self._random.shuffle(order)
        if order and order[0] == self._last:
            order.append(order.pop(0))
        self._last = order[-1] if order else -1
        times = dict(zip(order, self._timer(order), strict=True))
        self._alive = [n for n in self._alive if times[n] is not None]
        return {n: seconds for n, seconds in times.items() if seconds is not None}

    def _disturbed(self, times: dict[int, float]) -> bool:
        known = {n: statistics.median(self._samples[n]) for n in times if len(self._samples[n]) > 1}
        ratios = [times[n] / median for n, median in known.items() if median > 0]  # a coarse clock may not advance
        slower = bool(ratios) and statistics.median(ratios) > self._rules.disturbed
        return slower and self._repeated < self._rules.repeats

    def _eliminate(self) -> None:
        rules = self._rules
        if self._runs() < rules.least or not self._alive:
            return
        fastest = min(min(self._samples[n]) for n in self._alive)
        self._hopeless += [n for n in self._alive if min(self._samples[n]) > rules.hopeless * fastest]
        self._alive = [n for n in self._alive if n not in self._hopeless]
        if self._runs() >= rules.separate:
            _, ceiling = min((interval(self._samples[n]) for n in self._alive), key=lambda i: i[1])
            self._alive = [n for n in self._alive if interval(self._samples[n])[0] <= ceiling]

    def _winner(self) -> int:
        """The candidate of the least median."""
        return min((n for n, found in self._samples.items() if found), key=lambda n: typical(self._samples[n]))

    def _disturbed_losers(self) -> list[int]:
        """Candidates that counted as hopeless by rounds in all of which the winner, too, was slower than usual."""
        if not self._hopeless:
            return []
        winner = self._winner()
        usual = typical(self._samples[winner])
        in_round = dict(zip(self._rounds_of[winner], self._samples[winner], strict=True))
        found = []
        for number in self._hopeless:
            beside = [in_round[r] for r in self._rounds_of[number] if r in in_round]
            if beside and min(beside) > self._rules.disturbed * usual:
                found.append(number)
        return found

    def _is_decided(self) -> bool:
        if self._runs() >= self._rules.least and self._spent > self._rules.budget:
            return True
        return self._runs() >= self._rules.separate and all(
            _width(interval(self._samples[n])) <= self._rules.narrow for n in self._alive
        )

    def _runs(self) -> int:
        """Number of runs that every remaining candidate has had."""
        return min((len(self._samples[n]) for n in self._alive), default=0)


def typical(samples: Sequence[float] | np.ndarray) -> float:
    """The samples' median."""
    return float(np.median(samples))


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Confidence interval of the median, 90 %: two order statistics.

    Each sample is below the median with probability 1/2, so the number of those below it is binomial.
    """
    ordered = sorted(samples)
    low, high = _ranks(len(ordered))
    return ordered[low], ordered[high]


@cache
def _ranks(count: int) -> tuple[int, int]:
    """Indices of the interval's ends in `count` ordered samples; the first and the last if there are too few."""
    below = [math.comb(count, k) / 2**count for k in range(count + 1)]
    tail = (1 - _CONFIDENCE) / 2
    low = high = 0
    total = 0.0
    for position, probability in enumerate(below):
        if total + probability <= tail:
            low = position + 1
        total += probability
        if total < 1 - tail:
            high = position + 1
    return min(max(low - 1, 0), count - 1), min(high, count - 1)


def _width(ends: tuple[float, float]) -> float:
    low, high = ends
    return (high - low) / low if low > 0 else 0.0
