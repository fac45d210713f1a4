"""Reference cases of layers, which the answers of candidates are checked against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import REORDER, Layout
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.measurement.runner.single_layer import packed_inputs, random_inputs
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement

_CASE_BYTES = 1 << 25
"""Most bytes of the reference cases that are kept, beside the last one."""


class WrongAnswerError(Exception):
    """A candidate's answer whose `error` exceeds the tolerance."""

    def __init__(self, error: float, tolerance: float) -> None:
        super().__init__(too_wrong(error, tolerance))
        self.error = error

    def measurement(self, state: CacheState) -> Measurement:
        """What the store keeps of the candidate."""
        return Measurement(
            None, failure=str(self), error=self.error if math.isfinite(self.error) else None, state=state
        )


def too_wrong(error: float, tolerance: float) -> str:
    """The reason why an answer with this error is wrong."""
    return f"wrong answer: relative error {error:.1e} exceeds {tolerance:.0e}"


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

    @property
    def bytes(self) -> int:
        """Bytes of inputs and answers."""
        return sum(array.nbytes for array in (*self.inputs, *(self.reference or ())))

    def packed(self, candidate: Candidate) -> tuple[np.ndarray, ...]:
        """The inputs as a candidate reads them; candidates with equal layouts share the arrays."""
        layouts, _ = candidate.routine.layouts(self.layer, candidate.parameters)
        if layouts not in self._packed:
            self._packed[layouts] = packed_inputs(self.layer, self.inputs, layouts)
        return self._packed[layouts]


class ReferenceCases:
    """Reference cases of layers, which differ even between equal workloads: their weights do. Keeps the last ones."""

    def __init__(self) -> None:
        self._cases: dict[int, ReferenceCase] = {}  # by the layer's id; a case keeps its layer
        self._bytes = 0

    def of(self, layer: Layer) -> ReferenceCase:
        """The layer's case; calls with one layer return the same while it is kept, consecutive ones always.

        Raises:
            ModelError: ONNX Runtime cannot compute the layer on random inputs.
        """
        if id(layer) not in self._cases:
            made = _reference_case(layer)
            while self._cases and self._bytes + made.bytes > _CASE_BYTES:
                self._bytes -= self._cases.pop(next(iter(self._cases))).bytes
            self._cases[id(layer)] = made
            self._bytes += made.bytes
        return self._cases[id(layer)]


def _reference_case(layer: Layer) -> ReferenceCase:
    inputs = random_inputs(layer)
    answers = None
    if layer.op != REORDER:
        from nnstretch.graph.reference import run_layer  # loads ONNX Runtime, which a known layer does not need

        answers = run_layer(layer, *inputs)
    return ReferenceCase(layer, inputs, answers)


@dataclass(frozen=True, eq=False)
class LayerUnderTest:
    """A layer on a processor, with what all its candidates share.

    Attributes:
        processor: the processor.
        case: inputs and reference outputs.
        state: where the network leaves the weights.
        tolerance: largest error of an answer, relative to the output's range.
    """

    processor: Processor
    case: ReferenceCase
    state: CacheState
    tolerance: float

    @property
    def layer(self) -> Layer:
        """The layer."""
        return self.case.layer

    def error_of(self, candidate: Candidate, stored: Sequence[np.ndarray]) -> float:
        """The largest error of a candidate's outputs relative to their range.

        Args:
            candidate: one for a layer whose case has reference outputs.
            stored: its outputs in its layouts.

        Raises:
            WrongAnswerError: the error exceeds the tolerance.
        """
        from nnstretch.graph.reference import answer_error  # loads ONNX Runtime, see above

        _, layouts = candidate.routine.layouts(self.layer, candidate.parameters)
        assert self.case.reference is not None
        worst = 0.0
        for index, expected in enumerate(self.case.reference):
            found = layouts[index].unpack(stored[index], self.layer.outputs[index])
            error = answer_error(self.layer, index, found, expected)
            if not error <= self.tolerance:
                raise WrongAnswerError(error, self.tolerance)
            worst = max(worst, error)
        return worst
