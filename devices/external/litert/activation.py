"""Activations in TFLite: fused into the preceding operator if its options allow it, else separate operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnstretch.devices.external.litert.flatbuffer import FlatModel
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.quantization import QuantizationParameters

_FUSED = {
    NO_ACTIVATION: "NONE",
    Activation(ActivationKind.RELU): "RELU",
    Activation(ActivationKind.CLIP, 0.0, 6.0): "RELU6",
    Activation(ActivationKind.CLIP, -1.0, 1.0): "RELU_N1_TO_1",
}
FIXED_QUANTIZATION = {
    "LOGISTIC": QuantizationParameters(1 / 256, -128),
    "SOFTMAX": QuantizationParameters(1 / 256, -128),
    "TANH": QuantizationParameters(1 / 128),
}
"""Fixed quantization parameters of int8 results in TFLite, by operator."""

_WITHOUT_FUSION = ("MEAN", "SOFTMAX", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "CONCATENATION")
_BOUNDED = "MaximumMinimumOptions"
_OPERATORS = {
    ActivationKind.SIGMOID: "LOGISTIC",
    ActivationKind.TANH: "TANH",
    ActivationKind.RELU: "RELU",
    ActivationKind.EXP: "EXP",
}


class Activations:
    """Writes operators with their activations."""

    def __init__(self, file: FlatModel) -> None:
        self._file = file

    def emit(
        self,
        name: str,
        inputs: Sequence[int],
        result: int,
        activation: Activation,
        options: Mapping[str, object],
        table: str,
        version: int = 1,
    ) -> None:
        """Writes an operator and its activation, whose result is the tensor `result`."""
        fusable = name not in _WITHOUT_FUSION
        if activation == NO_ACTIVATION or (fusable and activation in _FUSED):
            self._file.operator(
                name, inputs, [result], {**options, **self._fused(activation, fusable)}, table=table, version=version
            )
            return
        before = self._like(result)
        self._file.operator(name, inputs, [before], options, table=table, version=version)
        self.apply(before, result, activation)

    def emit_fixed(self, name: str, source: int, result: int, options: Mapping[str, object], table: str) -> None:
        """Writes an operator; a result with fixed int8 parameters is requantized to those of `result`."""
        quantization = self._file.quantization(result)
        made = result
        if quantization is not None and FIXED_QUANTIZATION.get(name, quantization) != quantization:
            made = self._file.tensor(self._file.shape(result), f"fixed:{result}", FIXED_QUANTIZATION[name])
        self._file.operator(name, [source], [made], options, table=table)
        if made != result:
            self._file.quantize(made, result)

    def apply(self, source: int, result: int, activation: Activation) -> None:
        """Writes an activation as separate operators."""
        kind = activation.kind
        if kind in _OPERATORS:
            table = "ExpOptions" if kind == ActivationKind.EXP else ""
            self.emit_fixed(_OPERATORS[kind], source, result, {}, table)
        elif kind == ActivationKind.SILU:
            sigmoid = self._like(result)
            self._file.operator("LOGISTIC", [source], [sigmoid])
            self._multiply([source, sigmoid], result)
        elif kind == ActivationKind.HARD_SWISH:
            self._file.operator("HARD_SWISH", [source], [result], table="HardSwishOptions")
        elif kind == ActivationKind.HARD_SIGMOID:
            self._hard_sigmoid(source, result, activation)
        elif kind == ActivationKind.LEAKY_RELU:
            self._file.operator("LEAKY_RELU", [source], [result], {"alpha": activation.a}, table="LeakyReluOptions")
        else:
            self._clip(source, result, activation)

    def _fused(self, activation: Activation, fusable: bool) -> dict[str, int]:
        if not fusable:
            return {}
        return {"fusedActivationFunction": getattr(self._file.schema.ActivationFunctionType, _FUSED[activation])}

    def _hard_sigmoid(self, source: int, result: int, activation: Activation) -> None:
        """Writes min(max(a x + b, 0), 1) as relu6(6 a x + 6 b) / 6, which needs fused activations only."""
        scaled = source
        if activation.a * 6 != 1.0:
            scaled = self._like(result)
            self._multiply([source, self._scalar(activation.a * 6)], scaled)
        clipped = self._like(result)
        six = self._file.schema.ActivationFunctionType.RELU6
        shift = self._scalar(activation.b * 6)
        self._file.operator("ADD", [scaled, shift], [clipped], {"fusedActivationFunction": six}, table="AddOptions")
        self._multiply([clipped, self._scalar(1 / 6)], result)

    def _clip(self, source: int, result: int, activation: Activation) -> None:
        if (activation.a, activation.b) == (0.0, 6.0):
            self._file.operator("RELU6", [source], [result])
            return
        raised, source = self._like(result), self._file.requantized(source, self._file.quantization(result))
        self._file.operator("MAXIMUM", [source, self._file.number(activation.a, result)], [raised], table=_BOUNDED)
        self._file.operator("MINIMUM", [raised, self._file.number(activation.b, result)], [result], table=_BOUNDED)

    def _multiply(self, inputs: Sequence[int], result: int) -> None:
        self._file.operator("MUL", inputs, [result], table="MulOptions")

    def _scalar(self, value: float) -> int:
        return self._file.constant(np.array(value, np.float32), f"scalar:{value:g}")

    def _like(self, tensor: int) -> int:
        return self._file.like(tensor, f"part:{tensor}")
