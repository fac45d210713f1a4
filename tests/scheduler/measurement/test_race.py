"""Races between candidates with synthetic times: winners, early elimination and disturbed rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.scheduler.measurement.race import Race, RaceRules, Timer, interval, typical

RULES = RaceRules()


def race(timer: Timer, candidates: int, rules: RaceRules) -> list[list[float]]:
    """Samples of every candidate. Eliminated ones have few; one that failed has those from before."""
    made = Race(timer, rules)
    for number in range(candidates):
        made.enter(number)
    samples = made.run()
    return [samples[number] for number in range(candidates)]


class Clockwork:
    """Candidates with true times and noise that only ever adds; `factor(round)` disturbs whole rounds."""

    def __init__(
        self,
        times: Sequence[float],
        noise: float = 0.002,
        factor: Callable[[int], float] = lambda _: 1.0,
        seed: int = 0,
    ) -> None:
        self._times, self._noise, self._factor = times, noise, factor
        self._rng = np.random.default_rng(seed)
        self.rounds: list[list[int]] = []

    def __call__(self, order: Sequence[int]) -> list[float | None]:
        factor = self._factor(len(self.rounds))
        self.rounds.append(list(order))
        return [self._times[n] * factor * (1 + self._rng.exponential(self._noise)) for n in order]

    @property
    def runs(self) -> int:
        return sum(len(order) for order in self.rounds)


def test_the_fastest_is_found_and_losers_leave_early() -> None:
    times = [0.002, 0.001, 0.00104, 0.0013, 0.005]
    clock = Clockwork(times)
    samples = race(clock, len(times), RULES)
    found = [typical(s) for s in samples]
    assert min(range(len(times)), key=found.__getitem__) == 1
    for number in (0, 3, 4):
        assert len(samples[number]) == RULES.least
    assert len(samples[2]) == RULES.separate
    assert found == pytest.approx(times, rel=0.01)


def test_nobody_follows_itself() -> None:
    clock = Clockwork([0.001, 0.001, 0.001], noise=0.01)
    race(clock, 3, RULES)
    runs = [number for order in clock.rounds for number in order]
    assert all(a != b for a, b in itertools.pairwise(runs))
    assert len({tuple(order) for order in clock.rounds}) > 2


@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_close_candidates_are_told_apart_within_the_noise(seed: int, count: int) -> None:
    times = [0.001 * (1 + 0.03 * i) for i in range(count)]
    clock = Clockwork(times, noise=0.004, seed=seed)
    found = [typical(s) for s in race(clock, count, RULES)]
    assert min(range(count), key=found.__getitem__) == 0
    assert clock.runs <= count * RULES.most


def test_a_disturbed_round_is_repeated() -> None:
    quiet = race(Clockwork([0.001, 0.0012]), 2, RULES)
    noisy = race(Clockwork([0.001, 0.0012], factor=lambda r: 3.0 if r in (3, 4) else 1.0), 2, RULES)
    assert max(map(max, noisy)) < 0.002
    assert typical(noisy[0]) == pytest.approx(typical(quiet[0]), rel=0.01)


def test_one_that_a_long_disturbance_eliminates_races_again() -> None:
    """The faster one enters when a disturbance begins that outlasts the rounds which are repeated."""
    times, enters, ends = [0.0002, 0.0001], 2, 3 + RULES.repeats + RULES.least
    rounds: list[list[int]] = []

    def timer(order: Sequence[int]) -> list[float | None]:
        late = 0.0015 if enters <= len(rounds) < ends else 0.0
        rounds.append(list(order))
        return [times[n] + (n + 1) * late for n in order]

    made = Race(timer, RULES)
    made.enter(0)
    made.first_rounds(enters)
    made.enter(1)
    samples = made.run()
    assert typical(samples[1]) == pytest.approx(times[1])
    assert typical(samples[0]) == pytest.approx(times[0])
    assert len(rounds) <= 2 * RULES.most + RULES.repeats


def test_a_machine_that_stays_slow_is_believed() -> None:
    clock = Clockwork([0.001], factor=lambda r: 1.0 if r < 3 else 2.0)
    (samples,) = race(clock, 1, RULES)
    assert max(samples) > 0.0019
    assert len(clock.rounds) <= RULES.most + RULES.repeats


def test_one_that_fails_is_left_out_and_the_others_go_on() -> None:
    def timer(order: Sequence[int]) -> list[float | None]:
        return [None if number == 1 else 0.001 for number in order]

    samples = race(timer, 3, RULES)
    assert samples[1] == []
    assert len(samples[0]) == len(samples[2]) == RULES.separate
    assert race(lambda order: [None] * len(order), 2, RULES) == [[], []]
    assert race(timer, 0, RULES) == []


def test_a_clock_that_does_not_advance_ends_no_race() -> None:
    samples = race(Clockwork([0.0, 0.0], noise=0), 2, RULES)
    assert all(samples)
    assert not any(map(any, samples))


def test_long_runs_stop_at_the_budget() -> None:
    clock = Clockwork([0.5, 0.51], noise=0.1)
    race(clock, 2, RULES)
    assert len(clock.rounds) == RULES.least


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60))
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    low, high = interval(samples)
    assert min(samples) <= low <= high <= max(samples)
    assert low <= np.median(samples) * (1 + 1e-12)
    assert high >= np.median(samples) * (1 - 1e-12)


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    truth = math.log(2)  # median of the exponential distribution
    for count in (12, 15, 40):
        inside = 0
        for _ in range(2000):
            low, high = interval(list(rng.exponential(size=count)))
            inside += low <= truth <= high
        assert inside / 2000 > 0.88
