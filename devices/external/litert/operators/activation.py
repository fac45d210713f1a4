"""Activations in TFLite: fused into the preceding operator if its options allow it, else separate operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nnstretch.devices.external.litert.flatbuffer import FlatModel
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters

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

_WITH_FUSION = (
    *("ADD", "SUB", "MUL", "DIV", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "MAX_POOL_2D", "AVERAGE_POOL_2D"),
)
"""Operators whose options have a fused activation that LiteRT applies."""
_BOUNDED = "MaximumMinimumOptions"
_OPERATORS = {
    ActivationKind.SIGMOID: "LOGISTIC",
    ActivationKind.TANH: "TANH",
    ActivationKind.RELU: "RELU",
    ActivationKind.EXP: "EXP",
}


_ERF_SLOPE = 0.3275911
_ERF_POLYNOMIAL = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""Coefficients of t^5 to t."""


class Activations:
    """Writes operators with their activations."""

    def __init__(self, file: FlatModel) -> None:
        self._file = file
        kinds = ActivationKind
        self._writers: Mapping[ActivationKind, Callable[[int, int, Activation], None]] = {
            **dict.fromkeys(_OPERATORS, self._single),
            **dict.fromkeys((kinds.SILU, kinds.SWISH), self._swish),
            **dict.fromkeys((kinds.GELU, kinds.GELU_TANH), self._gelu),
            **dict.fromkeys((kinds.ELU, kinds.SELU), self._elu),
            kinds.NONE: self._copy,
            kinds.CLIP: self._clip,
            kinds.HARD_SWISH: self._hard_swish,
            kinds.HARD_SIGMOID: self._hard_sigmoid,
            kinds.LEAKY_RELU: self._leaky_relu,
            kinds.SOFTPLUS: self._softplus,
            kinds.MISH: self._mish,
            kinds.ERF: self._erf,
        }

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
        fusable = name in _WITH_FUSION
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
        self._writers[activation.kind](source, result, activation)

    def _single(self, source: int, result: int, activation: Activation) -> None:
        table = "ExpOptions" if activation.kind == ActivationKind.EXP else ""
        self.emit_fixed(_OPERATORS[activation.kind], source, result, {}, table)

    def _copy(self, source: int, result: int, activation: Activation) -> None:
        shape = self._file.constant(np.array(self._file.shape(result), np.int32), f"shape:{result}")
        self._file.operator("RESHAPE", [source, shape], [result], table="ReshapeOptions")

    def _swish(self, source: int, result: int, activation: Activation) -> None:
        """Writes x sigmoid(a x); SiLU has a = 1."""
        scaled = source
        if activation.kind == ActivationKind.SWISH:
            scaled = self._like(result)
            self._multiply([source, self._scalar(activation.a)], scaled)
        sigmoid = self._like(result)
        self._file.operator("LOGISTIC", [scaled], [sigmoid])
        self._multiply([source, sigmoid], result)

    def _hard_swish(self, source: int, result: int, activation: Activation) -> None:
        self._file.operator("HARD_SWISH", [source], [result], table="HardSwishOptions")

    def _leaky_relu(self, source: int, result: int, activation: Activation) -> None:
        self._file.operator("LEAKY_RELU", [source], [result], {"alpha": activation.a}, table="LeakyReluOptions")

    def _gelu(self, source: int, result: int, activation: Activation) -> None:
        approximate = activation.kind == ActivationKind.GELU_TANH
        self._file.operator("GELU", [source], [result], {"approximate": approximate}, table="GeluOptions")

    def _mish(self, source: int, result: int, activation: Activation) -> None:
        softplus, gate = self._like(result), self._like(result)
        self._softplus(source, softplus, activation)
        self._file.operator("TANH", [softplus], [gate])
        self._multiply([source, gate], result)

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

    def _softplus(self, source: int, result: int, activation: Activation) -> None:
        """Writes max(x, 0) + ln(1 + e^-|x|), which no x makes too large."""
        size, negative, power, positive = (self._like(result) for _ in range(4))
        self._file.operator("ABS", [source], [size], table="AbsOptions")
        self._file.operator("NEG", [size], [negative], table="NegOptions")
        self._file.operator("EXP", [negative], [power], table="ExpOptions")
        total, logarithm = self._like(result), self._like(result)
        self._file.operator("ADD", [power, self._scalar(1.0)], [total], table="AddOptions")
        self._file.operator("LOG", [total], [logarithm])
        self._file.operator("RELU", [source], [positive])
        self._file.operator("ADD", [positive, logarithm], [result], table="AddOptions")

    def _erf(self, source: int, result: int, activation: Activation) -> None:
        """Writes erf(x) = sign(x) (1 - p(t) e^(-x^2)) with t = 1 / (1 + 0.3275911 |x|) and a polynomial p.

        Abramowitz and Stegun, 7.1.26; the error is below 1.5e-7, as that of float32.
        """

        def made(name: str, *operands: int, table: str = "") -> int:
            part = self._like(result)
            self._file.operator(name, list(operands), [part], table=table)
            return part

        def product(*operands: int) -> int:
            return made("MUL", *operands, table="MulOptions")

        def total(operand: int, number: float) -> int:
            return made("ADD", operand, self._scalar(number), table="AddOptions")

        size = made("ABS", source, table="AbsOptions")
        t = made("DIV", self._scalar(1.0), total(product(size, self._scalar(_ERF_SLOPE)), 1.0), table="DivOptions")
        polynomial = product(t, self._scalar(_ERF_POLYNOMIAL[0]))
        for coefficient in _ERF_POLYNOMIAL[1:]:
            polynomial = product(t, total(polynomial, coefficient))
        negative = made("NEG", product(source, source), table="NegOptions")
        tail = product(polynomial, made("EXP", negative, table="ExpOptions"))
        rest = made("SUB", self._scalar(1.0), tail, table="SubOptions")
        self._multiply([rest, made("SIGN", source, table="SignOptions")], result)

    def _elu(self, source: int, result: int, activation: Activation) -> None:
        """Writes x < 0 ? a * (e^(b * x) - 1) : x, and for SELU b times that without b in the exponent."""
        scaled = activation.kind == ActivationKind.SELU
        below, power, outer, positive = (self._like(result) for _ in range(4))
        factor = 1.0 if scaled else activation.b
        self._multiply([source, self._scalar(factor)], below)
        self._file.operator("MINIMUM", [below, self._scalar(0.0)], [power], table=_BOUNDED)
        self._file.operator("ELU", [power], [outer])
        self._multiply([outer, self._scalar(activation.a)], below := self._like(result))
        self._file.operator("RELU", [source], [positive])
        if not scaled:
            self._file.operator("ADD", [positive, below], [result], table="AddOptions")
            return
        total = self._like(result)
        self._file.operator("ADD", [positive, below], [total], table="AddOptions")
        self._multiply([total, self._scalar(activation.b)], result)

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
