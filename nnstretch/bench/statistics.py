"""Latencies of many runs as the numbers that are reported."""

from __future__ import annotations

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


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean of positive numbers, or None if there are none."""
    return float(np.exp(np.mean(np.log(values)))) if values else None


def significant(value: float, digits: int = 5) -> float:
    """`value` rounded to so many significant digits."""
    return float(f"{value:.{digits}g}")
