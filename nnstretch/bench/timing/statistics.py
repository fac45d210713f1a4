"""Statistics of many runs: medians, percentiles, bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Latency:
    """Median, 90th percentile and minimum of a run's duration, in milliseconds.

    `spread` is the interquartile range of the rounds' medians divided by their median.
    """

    p50_ms: float
    p90_ms: float
    min_ms: float
    spread: float = 0.0

    def to_json(self) -> dict[str, float]:
        """The fields, to five significant digits."""
        return {name: significant(getattr(self, name)) for name in ("p50_ms", "p90_ms", "min_ms", "spread")}


def latency(slices: Sequence[np.ndarray]) -> Latency:
    """Statistics over rounds, each an array of seconds: the median of the rounds' medians and of their 90th percentiles.

    A disturbed round counts once, whatever its number of runs.
    """
    medians = [float(np.median(s)) for s in slices]
    p50 = float(np.median(medians))
    p90 = float(np.median([np.percentile(s, 90) for s in slices]))
    low, high = (float(np.percentile(medians, q)) for q in (25, 75))
    return Latency(p50 * 1e3, p90 * 1e3, float(min(s.min() for s in slices)) * 1e3, (high - low) / p50)


CONFIDENCE = 0.95
"""Confidence level of the intervals."""
_RESAMPLES = 2000

Interval = tuple[float, float]
"""Lower and upper end."""


def resampled(candidates: Sequence[Sequence[np.ndarray]], seed: int = 0) -> np.ndarray:
    """Medians of the rounds' medians in milliseconds, as in `latency`, of resampled rounds (bootstrap).

    All candidates share the drawn rounds, since a disturbance may affect all turns of a round.

    Args:
        candidates: per candidate one array of seconds per round; equal numbers of rounds.
        seed: of the resampling.

    Returns:
        Candidates × resamples.
    """
    medians = np.array([[np.median(s) for s in slices] for slices in candidates]) * 1e3
    rounds = medians.shape[1]
    drawn = np.random.default_rng(seed).integers(0, rounds, (_RESAMPLES, rounds))
    return np.asarray(np.median(medians[:, drawn], axis=2))


def interval(samples: np.ndarray) -> Interval:
    """The central interval that holds `CONFIDENCE` of the samples."""
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(samples, (tail, 100 - tail))
    return float(low), float(high)


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean of positive numbers, or None if there are none."""
    return float(np.exp(np.mean(np.log(values)))) if values else None


def perfect_split(latencies: Sequence[float]) -> float:
    """1 / Σ (1 / tᵢ): time of work divided without loss among processors that each need tᵢ for all of it.

    tᵢ is infinite for a processor that cannot do the work.
    """
    rate = sum(1.0 / t for t in latencies)
    return 1.0 / rate if rate else math.inf


def significant(value: float, digits: int = 5) -> float:
    """`value` rounded to a number of significant digits."""
    return float(f"{value:.{digits}g}")
