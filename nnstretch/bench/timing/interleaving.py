"""Interleaved timing: candidates run in turns of a fraction of a second, for several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.api.options import TOLERANCE
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.progress import Progress

Timed = Callable[[float], np.ndarray]
"""Runs a candidate for a number of seconds and returns the seconds of every run."""

_PAUSE = 0.02  # seconds between turns, in which the machine comes to rest
_WARMUP = 2
_MAX_RUNS = 100_000
_MIN_ROUNDS = 3  # a median of fewer rounds says little


@dataclass(frozen=True)
class TimingOptions:
    """The length of a measurement.

    Attributes:
        rounds: each candidate has one turn per round.
        turn: seconds of a turn.
        budget: seconds per candidate after which no further round begins, once there were three; None for no limit.
    """

    rounds: int = 10
    turn: float = 0.15
    budget: float | None = None


@dataclass(frozen=True)
class MeasurementOptions:
    """The measurement of one network in several ways.

    Attributes:
        timing: rounds, turns and budget.
        tune: whether plans are tuned.
        seed: of the inputs.
        tolerance: largest error of a routine, where plans are tuned.
    """

    timing: TimingOptions = field(default_factory=TimingOptions)
    tune: bool = True
    seed: int = 0
    tolerance: float = TOLERANCE


DEFAULT_OPTIONS = MeasurementOptions()


def timed(session: PlanSession, feeds: Mapping[str, np.ndarray]) -> Timed:
    """A session as a candidate."""
    return lambda budget: session.time(feeds, warmup=_WARMUP, runs=_MAX_RUNS, budget=budget)


def interleave(candidates: Sequence[Timed], options: TimingOptions, progress: Progress) -> list[list[np.ndarray]]:
    """Times candidates in turns; the order rotates from round to round.

    Returns:
        Per candidate and round, the seconds of the runs.
    """
    slices: list[list[np.ndarray]] = [[] for _ in candidates]
    limit = float("inf") if options.budget is None else options.budget * len(candidates)
    begin = time.perf_counter()
    for number in range(options.rounds):
        if number >= _MIN_ROUNDS and time.perf_counter() - begin > limit:
            break
        progress(number, options.rounds, f"measuring, round {number + 1} of {options.rounds}")
        for place in range(len(candidates)):
            turn = (place + number) % len(candidates)
            time.sleep(_PAUSE)
            slices[turn].append(candidates[turn](options.turn))
    progress(options.rounds, options.rounds, "measured")
    return slices
