"""References of a comparison: the frequency that times are normalised to, and the answers that candidates must give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.devices.base.routine import REORDER, Layout
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.measurement.runner.single_layer import packed_inputs, random_inputs


@dataclass(frozen=True)
class ReferenceFrequency:
    """The frequency that times on a processor are normalised to.

    Core frequencies change by several percent within tenths of a second, above all on shared machines, and the times of all
    layers change with them. Times are normalised to one frequency, which is the same for all measurements in a store.

    Attributes:
        gflops: GFLOP/s of the processor's first core at this frequency (`Engine.clock_gflops`); None if unknown.
    """

    gflops: float | None

    def ratio(self, reading: float | None) -> float:
        """A core's frequency over the reference frequency, by its GFLOP/s; 1 if either is unknown."""
        return 1.0 if reading is None or self.gflops is None else reading / self.gflops


@dataclass(frozen=True, eq=False)
class ReferenceCase:
    """Random inputs of a layer, and ONNX Runtime's answers to check candidates against.

    Attributes:
        layer: the layer.
        inputs: row-major inputs.
        reference: its outputs; None for a layout change, which is not checked.
    """

    layer: Layer
    inputs: Sequence[np.ndarray]
    reference: Sequence[np.ndarray] | None
    _packed: dict[tuple[Layout, ...], tuple[np.ndarray, ...]] = field(default_factory=dict)

    def packed(self, candidate: Candidate) -> tuple[np.ndarray, ...]:
        """The inputs as a candidate reads them; candidates with equal layouts share the arrays."""
        layouts, _ = candidate.routine.layouts(self.layer, candidate.parameters)
        if layouts not in self._packed:
            self._packed[layouts] = packed_inputs(self.layer, self.inputs, layouts)
        return self._packed[layouts]


class ReferenceCases:
    """Reference cases of layers. Keeps only the last one, since weights differ between equal workloads."""

    def __init__(self) -> None:
        self._last: ReferenceCase | None = None

    def of(self, layer: Layer) -> ReferenceCase:
        """The layer's case; consecutive calls with one layer return the same."""
        if self._last is None or self._last.layer is not layer:
            inputs = random_inputs(layer)
            self._last = ReferenceCase(layer, inputs, None if layer.op == REORDER else _answers(layer, inputs))
        return self._last


def _answers(layer: Layer, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    from nnstretch.graph.reference import run_layer  # loads ONNX Runtime, which a known layer does not need

    return run_layer(layer, *inputs)
