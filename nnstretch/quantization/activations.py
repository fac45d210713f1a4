"""What a network's activations are on the calibration data: extremes and histograms, collected run by run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from nnstretch.errors import ModelError
from nnstretch.quantization.feeds import Feeds
from nnstretch.quantization.runs import open_tensors
from nnstretch.support.progress import Progress, silent

BINS = 2048
"""Of a histogram: eight per step of an int8 range."""
_SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass
class Histogram:
    """Values of one tensor in `BINS` bins of equal width between its extremes, or 0 where that lies outside.

    Attributes:
        low, high: ends of the first and the last bin; low <= 0 <= high.
        counts: values per bin, without those that are exactly 0: integers stand for 0 in every range.
        zeros: number of values that are exactly 0.
    """

    low: float
    high: float
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    zeros: int = 0

    @property
    def is_flat(self) -> bool:
        """Whether all values are 0, or too close to it for float32 to divide by their range."""
        return self.high - self.low < _SMALLEST

    @property
    def centres(self) -> NDArray[np.float64]:
        """Middle of every bin."""
        return np.linspace(self.low, self.high, 2 * BINS + 1)[1::2]

    def add(self, values: np.ndarray) -> None:
        """Counts values that lie between the ends."""
        zeros = values.size - int(np.count_nonzero(values))
        self.zeros += zeros
        if not self.is_flat:
            self.counts += self._histogram(values) - zeros * self._histogram(np.zeros(1, np.float32))

    def _histogram(self, values: np.ndarray) -> NDArray[np.int64]:
        return np.histogram(values, BINS, (self.low, self.high))[0]


class Activations:
    """The float32 tensors of a network as it computes the calibration data.

    Args:
        model: standard ONNX operators; it stays as it is.
        feeds: one run each.
        folder: for temporary files.
        progress: called before every run.
    """

    def __init__(self, model: ir.Model, feeds: Sequence[Feeds], folder: Path, progress: Progress = silent) -> None:
        self._inputs = [str(value.name) for value in model.graph.inputs if _is_float(value)]
        self._computed = [str(value.name) for node in model.graph for value in node.outputs if _is_float(value)]
        self._run = open_tensors(model, self._computed, folder)
        self._feeds, self._progress = feeds, progress

    def extremes(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest value of every tensor, and 0 where all values are on one side of it.

        Raises:
            ModelError: a run fails, or a tensor has NaN or infinite numbers.
        """
        found: dict[str, tuple[float, float]] = {}
        for name, values in self._values():
            low, high = (float(edge(values, initial=0.0)) for edge in (np.min, np.max))
            if not np.isfinite(low) or not np.isfinite(high):
                raise ModelError(f"the model computes NaN or infinite numbers from an example, in the tensor {name!r}")
            before = found.get(name, (0.0, 0.0))
            found[name] = min(before[0], low), max(before[1], high)
        return found

    def histograms(self) -> dict[str, Histogram]:
        """A histogram of every tensor, between its extremes.

        Raises:
            ModelError: a run fails, or a tensor has NaN or infinite numbers.
        """
        found = {name: Histogram(*ends) for name, ends in self.extremes().items()}
        for name, values in self._values():
            found[name].add(values)
        return found

    def _values(self) -> Iterator[tuple[str, np.ndarray]]:
        for number, feed in enumerate(self._feeds):
            self._progress(number, len(self._feeds), "calibrating")
            yield from ((name, feed[name]) for name in self._inputs)
            yield from zip(self._computed, self._run(feed), strict=True)


def _is_float(value: ir.Value) -> bool:
    """Whether a value is a float32 tensor; an output that a node leaves out has no name."""
    return bool(value.name) and isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT
