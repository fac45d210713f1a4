"""Latencies of many runs as the numbers that are reported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Latency:
    """Median, 90th percentile and minimum of a run's duration, in milliseconds.

    `spread` is the distance between the quartiles of the rounds' medians as a share of their median: how far the rounds agree.
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

    A round that was disturbed as a whole counts once, however many runs it holds.
    """
    medians = [float(np.median(s)) for s in slices]
    p50 = float(np.median(medians))
    p90 = float(np.median([np.percentile(s, 90) for s in slices]))
    low, high = (float(np.percentile(medians, q)) for q in (25, 75))
    return Latency(p50 * 1e3, p90 * 1e3, float(min(s.min() for s in slices)) * 1e3, (high - low) / p50)


CONFIDENCE = 0.95
"""That the true value lies in an interval."""
_RESAMPLES = 2000

Interval = tuple[float, float]
"""Lower and upper end."""


def resampled(candidates: Sequence[Sequence[np.ndarray]], seed: int = 0) -> np.ndarray:
    """Medians of the rounds' medians in milliseconds, as in `latency`, of rounds drawn again and again (bootstrap).

    All candidates have the same rounds drawn, because what disturbs one of a round's turns may disturb the others too.

    Args:
        candidates: for each of them arrays of seconds, one per round; all have equally many rounds.
        seed: of the drawing.

    Returns:
        Candidates × resamples.
    """
    medians = np.array([[np.median(s) for s in slices] for slices in candidates]) * 1e3
    rounds = medians.shape[1]
    drawn = np.random.default_rng(seed).integers(0, rounds, (_RESAMPLES, rounds))
    return np.asarray(np.median(medians[:, drawn], axis=2))


def interval(samples: np.ndarray) -> Interval:
    """The interval that holds `CONFIDENCE` of the samples, equally many left out on both sides."""
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(samples, (tail, 100 - tail))
    return float(low), float(high)


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean of positive numbers, or None if there are none."""
    return float(np.exp(np.mean(np.log(values)))) if values else None


def perfect_split(latencies: Sequence[float]) -> float:
    """1 / Σ (1 / tᵢ): what work takes on several processors together that takes tᵢ on each of them alone.

    A processor that cannot do it has infinite tᵢ; if none can, the answer is infinite too.
    """
    rate = sum(1.0 / t for t in latencies)
    return 1.0 / rate if rate else math.inf


def significant(value: float, digits: int = 5) -> float:
    """`value` rounded to so many significant digits."""
    return float(f"{value:.{digits}g}")
