"""Measuring candidates against each other: interleaved rounds, an early end for losers, and no trust in disturbed rounds.

Whatever disturbs a run disturbs neighbouring runs alike. So every round runs each candidate once; a round in which all of them
are slower than before is repeated; and the median of a candidate's samples counts, as it does of a network's runs, with a
confidence interval that needs no assumption about how they are distributed.
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
"""Seconds of one run of each of the candidates given by number, in this order; None for one that has failed."""

_CONFIDENCE = 0.9


@dataclass(frozen=True)
class Rules:
    """When a race is over.

    Attributes:
        least: rounds that decide who is hopeless.
        most: rounds at most.
        hopeless: a candidate whose fastest run takes so many times as long as the fastest one's is out after `least` rounds.
        separate: from so many rounds on, one is out whose interval lies above the leader's.
        narrow: an interval of so small a part of its middle is narrow enough.
        budget: seconds after which no further round begins, once there are `least`.
        disturbed: a round in which the median candidate takes so many times its usual time does not count.
        repeats: rounds that may be repeated for that. If more are disturbed, the machine has changed for good.
    """

    least: int = 3
    most: int = 15
    hopeless: float = 1.25
    separate: int = 5
    narrow: float = 0.015
    budget: float = 1.0
    disturbed: float = 1.08
    repeats: int = 6


def race(timer: Timer, candidates: int, rules: Rules) -> list[list[float]]:
    """Samples of every candidate; of those that lose early, few. One that fails has those from before."""
    made = Race(timer, rules)
    for number in range(candidates):
        made.enter(number)
    samples = made.run()
    return [samples[number] for number in range(candidates)]


class Race:
    """Candidates, known by numbers, that are run against each other. Some may enter when others have run for a while."""

    def __init__(self, timer: Timer, rules: Rules) -> None:
        self._timer = timer
        self._rules = rules
        self._samples: dict[int, list[float]] = {}
        self._alive: list[int] = []
        self._rounds = 0
        self._spent = 0.0
        self._repeated = 0
        self._random = random.Random(0)
        self._last = -1

    def enter(self, number: int) -> None:
        """Has one more candidate run from the next round on."""
        self._samples[number] = []
        self._alive.append(number)

    def heat(self, rounds: int) -> dict[int, float]:
        """Runs a few rounds that count for the race, too; the fastest run so far of each candidate that works."""
        for _ in range(rounds):
            self._round()
        return {number: min(samples) for number, samples in self._samples.items() if samples}

    def run(self) -> dict[int, list[float]]:
        """Runs the race to its end; the samples of every candidate, of those that lose early, few."""
        while self._alive and self._rounds < self._rules.most and not self._settled():
            self._round()
            self._drop_losers()
        return self._samples

    def _round(self) -> None:
        times = self._times()
        self._spent += sum(times.values())
        if self._disturbed(times):
            self._repeated += 1
            return
        for number, seconds in times.items():
            self._samples[number].append(seconds)
        self._rounds += 1

    def _times(self) -> dict[int, float]:
        """One run of each that is left, in a new order, in which nobody follows itself or always the same neighbour."""
        order = self._alive[:]
        self._random.shuffle(order)
        if order and order[0] == self._last:
            order.append(order.pop(0))
        self._last = order[-1] if order else -1
        times = dict(zip(order, self._timer(order), strict=True))
        self._alive = [n for n in self._alive if times[n] is not None]
        return {n: seconds for n, seconds in times.items() if seconds is not None}

    def _disturbed(self, times: dict[int, float]) -> bool:
        ratios = [t / statistics.median(self._samples[n]) for n, t in times.items() if len(self._samples[n]) > 1]
        slower = bool(ratios) and statistics.median(ratios) > self._rules.disturbed
        return slower and self._repeated < self._rules.repeats

    def _drop_losers(self) -> None:
        rules = self._rules
        if self._runs() < rules.least or not self._alive:
            return
        fastest = min(min(self._samples[n]) for n in self._alive)
        self._alive = [n for n in self._alive if min(self._samples[n]) <= rules.hopeless * fastest]
        if self._runs() >= rules.separate:
            _, ceiling = min((interval(self._samples[n]) for n in self._alive), key=lambda i: i[1])
            self._alive = [n for n in self._alive if interval(self._samples[n])[0] <= ceiling]

    def _settled(self) -> bool:
        if self._runs() >= self._rules.least and self._spent > self._rules.budget:
            return True
        return self._runs() >= self._rules.separate and all(
            _width(interval(self._samples[n])) <= self._rules.narrow for n in self._alive
        )

    def _runs(self) -> int:
        """Runs that every candidate has had that is left."""
        return min((len(self._samples[n]) for n in self._alive), default=0)


def typical(samples: Sequence[float] | np.ndarray) -> float:
    """The median."""
    return float(np.median(samples))


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Confidence interval of the median: the two order statistics between which it lies with 90 % probability.

    Each sample lies below the median with probability 1/2, so that their number is binomial.
    """
    ordered = sorted(samples)
    low, high = _ranks(len(ordered))
    return ordered[low], ordered[high]


@cache
def _ranks(count: int) -> tuple[int, int]:
    """Positions of the interval's ends among `count` ordered samples; the outermost ones where there are too few."""
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
