"""Predicted seconds of rows of layers, with what routines save that compute two layers at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nnstretch.branching.latency.prediction import LatencyPredictor
from nnstretch.branching.latency.workloads import LayerRow
from nnstretch.graph.layer import Layer


@dataclass(eq=False)
class RowSeconds:
    """Predictions of rows of layers.

    Attributes:
        predictor: of latencies.
        processors: number of processors.
        workloads: distinct layers predicted so far, with the processor.
        unpredicted: operators without a routine on any processor. They take the same time in every design, so they
            count as zero.
        fuses: whether some fused routine was predicted to save time.
    """

    predictor: LatencyPredictor
    processors: int
    workloads: set[tuple[int, str]] = field(default_factory=set, init=False)
    unpredicted: set[str] = field(default_factory=set, init=False)
    fuses: bool = field(default=False, init=False)
    _gains: dict[tuple[Layer, Layer, int], float] = field(default_factory=dict, init=False)

    def seconds(self, row: LayerRow, processor: int) -> float:
        """Seconds of a row of layers in sequence on a processor, each layer alone or fused with the next, as is faster."""
        self.workloads.update((processor, layer.workload) for layer in row.layers)
        seconds = self.predictor.seconds(list(row.layers), processor)
        if math.isfinite(seconds):
            return seconds - self.saved(row, processor)
        return self.predictor.seconds([layer for layer in row.layers if self._is_predicted(layer)], processor)

    def saved(self, row: LayerRow, processor: int) -> float:
        """Seconds saved by fused routines for pairs of layers, each layer in one pair at most."""
        before = saved = 0.0  # without and with the current layer
        for number in range(len(row.layers) - 1):
            gain = self._gain(row, number, processor) if number in row.pairs else 0.0
            before, saved = saved, max(saved, before + gain)
        return saved

    def forget(self) -> None:
        """Clears what fused routines save, because the predictor has new measurements."""
        self._gains.clear()

    def _gain(self, row: LayerRow, number: int, processor: int) -> float:
        """Seconds by which a fused routine is faster than the two layers in sequence, or zero."""
        first, second = row.layers[number : number + 2]
        key = (first, second, processor)
        if key not in self._gains:
            together = self.predictor.fused_seconds(row.joined[number], processor)
            alone = self.predictor.seconds([first, second], processor) if math.isfinite(together) else 0.0
            self._gains[key] = max(0.0, alone - together)
            self.fuses = self.fuses or self._gains[key] > 0
        return self._gains[key]

    def _is_predicted(self, layer: Layer) -> bool:
        """Whether some processor can compute a layer; if not, records its operator."""
        if any(math.isfinite(self.predictor.seconds([layer], p)) for p in range(self.processors)):
            return True
        self.unpredicted.add(layer.op.removeprefix("onnx:"))
        return False
