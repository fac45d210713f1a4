"""What pointwise layers make of all 256 integers of an int8 tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nnstretch.devices.algorithms.activation import activate
from nnstretch.graph.dtypes import HIGHEST, LOWEST, QuantizationParameters
from nnstretch.graph.layer import Layer, fused_layer


def tabulate(layer: Layer) -> np.ndarray:
    """The results of -128 to 127, as int8[256]: each part of a fusion group rounds as its output's type says.

    Args:
        layer: pointwise (`nnstretch.graph.pointwise`); reads one int8 tensor and makes one.
    """
    group = layer if layer.parts else fused_layer((layer,), ((0,) * len(layer.activations),))
    given = _parameters(group.type_of(0).quantization).dequantize(np.arange(LOWEST, HIGHEST + 1))
    made: list[np.ndarray] = []
    for part, sources in zip(group.parts, group.wiring, strict=True):
        made.append(_computed(part, [given if source >= 0 else made[-1 - source] for source in sources]))
    result = _parameters(group.outputs[0].quantization)
    return result.quantize(made[-1])


def _parameters(quantization: QuantizationParameters | None) -> QuantizationParameters:
    assert quantization is not None
    return quantization


def _computed(part: Layer, reads: list[np.ndarray]) -> np.ndarray:
    """What the results of a part stand for."""
    numbers = iter(reads)
    operands = [
        part.constants[index].flat[0].astype(np.float64) if index in part.constants else next(numbers)
        for index, tensor in enumerate(part.inputs)
        if tensor is not None
    ]
    result = activate(part.activation, _FUNCTIONS[part.op](*operands))
    rounded = part.outputs[0].quantization
    return result if rounded is None else rounded.dequantize(rounded.quantize(result))


def _same(x: np.ndarray) -> np.ndarray:
    return x


_FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    **dict.fromkeys(("Activation", "Dequantize", "Quantize"), _same),  # operands are what integers stand for
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Max": np.maximum,
    "Min": np.minimum,
    "Affine": lambda x, scale, shift: x * scale + shift,
}
