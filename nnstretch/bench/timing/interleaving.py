"""Timing several things on one machine: in turns of a fraction of a second, one after another, for several rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.progress import Progress

Timed = Callable[[float], np.ndarray]
"""Runs something for so many seconds; returns the seconds of every run."""

_PAUSE = 0.02  # seconds between turns, for the machine to come to rest
_WARMUP = 2
_MOST_RUNS = 100_000


@dataclass(frozen=True)
class Settings:
    """How something is measured: rounds, seconds of a turn (above 0), whether plans are tuned, seed of the inputs."""

    rounds: int = 10
    turn: float = 0.15
    tune: bool = True
    seed: int = 0


def timed(session: PlanSession, feeds: Mapping[str, np.ndarray]) -> Timed:
    """Runs of a session."""
    return lambda budget: session.time(feeds, warmup=_WARMUP, runs=_MOST_RUNS, budget=budget)


def take_turns(candidates: Sequence[Timed], settings: Settings, progress: Progress) -> list[list[np.ndarray]]:
    """Seconds of all runs, per candidate and round; the order shifts from round to round."""
    slices: list[list[np.ndarray]] = [[] for _ in candidates]
    for number in range(settings.rounds):
        progress(number, settings.rounds, f"measuring, round {number + 1} of {settings.rounds}")
        for place in range(len(candidates)):
            turn = (place + number) % len(candidates)
            time.sleep(_PAUSE)
            slices[turn].append(candidates[turn](settings.turn))
    progress(settings.rounds, settings.rounds, "measured")
    return slices
