"""Ranges of activations: which numbers the 256 integers of a tensor stand for.

A method chooses a range from a tensor's values on the calibration data; what lies outside is clipped.

==========  ==========================================================================================================
minmax      all values
percentile  all but one in 100,000, those farthest from 0
entropy     the range whose integers keep most information: the least Kullback-Leibler divergence of the values'
            distribution from that of the integers (Migacz, 8-bit inference with TensorRT, GTC 2017)
mse         the range with the least mean squared error of clipping and rounding
==========  ==========================================================================================================

Ranges hold 0, and their ends are chosen one by one: the values of a swish, say, lie between -0.3 and a large number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from nnstretch.quantization.activations import BINS, Activations, Histogram

Method = Literal["minmax", "entropy", "percentile", "mse"]
Range = tuple[float, float]

_STEPS = 255
_INSIDE = 0.99999
_SHARES = np.geomspace(1.0, 0.02, 80)
"""Ends of ranges that are tried, as shares of the extremes, the widest first."""
_UNSEEN = 1e-6
"""Probability of integers that no value of the clipped distribution has, so that logarithms are finite."""


def activation_ranges(activations: Activations, method: Method) -> dict[str, Range]:
    """The range of every tensor.

    Raises:
        ModelError: a run fails, or a tensor has NaN or infinite numbers.
    """
    if method == "minmax":
        return activations.extremes()
    choose = _CHOICES[method]
    histograms = activations.histograms()
    return {name: (h.low, h.high) if h.is_flat else choose(h) for name, h in histograms.items()}


def write_ranges(ranges: Mapping[str, Range], file: Path) -> None:
    """Stores ranges as ONNX Runtime's quantiser reads them."""
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData, save_tensors_data

    ends = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, ends), file)


def percentile_range(histogram: Histogram) -> Range:
    """All values but the share of 1e-5 that is farthest from 0."""
    distances = np.abs(histogram.centres)
    order = np.argsort(distances)
    below = (histogram.zeros + np.cumsum(histogram.counts[order])) / (histogram.zeros + histogram.counts.sum())
    width = (histogram.high - histogram.low) / BINS
    limit = float(distances[order][np.searchsorted(below, _INSIDE)]) + width / 2
    return max(histogram.low, -limit), min(histogram.high, limit)


def entropy_range(histogram: Histogram) -> Range:
    """The range with the least Kullback-Leibler divergence."""
    return _search(histogram, _divergence)


def mse_range(histogram: Histogram) -> Range:
    """The range with the least mean squared error."""
    return _search(histogram, _squared_error)


_CHOICES: dict[str, Callable[[Histogram], Range]] = {
    "percentile": percentile_range,
    "entropy": entropy_range,
    "mse": mse_range,
}


def _search(histogram: Histogram, cost: Callable[[Histogram, float, float], float]) -> Range:
    """The cheapest range: both ends first moved together, then each alone. The widest of equal ones."""
    low, high = histogram.low, histogram.high
    best, least = (low, high), cost(histogram, low, high)

    def attempt(candidate: Range) -> None:
        nonlocal best, least
        if (found := cost(histogram, *candidate)) < least:
            best, least = candidate, found

    for share in _SHARES[1:]:
        attempt((low * share, high * share))
    for _ in range(2 if low < 0 < high else 0):
        for share in _SHARES:
            attempt((low * share, best[1]))
        for share in _SHARES:
            attempt((best[0], high * share))
    return best


def _squared_error(histogram: Histogram, low: float, high: float) -> float:
    """Sum of the squared errors of all values."""
    step, centres = (high - low) / _STEPS, histogram.centres
    zero = np.round(-low / step)
    rounded = (np.round(centres / step).clip(-zero, _STEPS - zero)) * step
    return float(histogram.counts @ (centres - rounded) ** 2)


def _divergence(histogram: Histogram, low: float, high: float) -> float:
    """Divergence of the values, clipped to a range, from what integers keep of those that lie in it.

    An integer keeps the number of values that become it; within the bins of the histogram that become one integer, and
    that hold any value, it spreads them evenly. A range has a bin for every integer or more: the cost of a narrower one is
    infinite. Values that are clipped are missing in what is kept: scaled to probabilities again, as in the original method, a
    range in which almost none lie would seem to keep everything.
    """
    width = (histogram.high - histogram.low) / BINS
    first = round((low - histogram.low) / width)
    last = round((high - histogram.low) / width)
    if last - first <= _STEPS:
        return float("inf")
    inside = histogram.counts[first:last].astype(np.float64)
    clipped = inside.copy()
    clipped[0] += histogram.counts[:first].sum()
    clipped[-1] += histogram.counts[last:].sum()
    integer = np.arange(last - first) * (_STEPS + 1) // (last - first)
    held = inside > 0
    totals, bins = np.bincount(integer, inside), np.bincount(integer, held)
    spread = np.where(held, totals[integer] / np.maximum(bins[integer], 1), 0.0)
    some = clipped > 0
    values, kept = clipped[some] / clipped.sum(), np.maximum(spread[some] / clipped.sum(), _UNSEEN)
    return float(values @ np.log(values / kept))
