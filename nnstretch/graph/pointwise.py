"""Layers each of whose results depends on one number of one tensor: of int8, all that they may make are 256 results."""

from __future__ import annotations

import numpy as np

from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import FUSION_GROUP, Layer, TensorType

_POINTWISE = frozenset({"Activation", "Add", "Affine", "Dequantize", "Div", "Max", "Min", "Mul", "Quantize", "Sub"})


def is_pointwise(layer: Layer) -> bool:
    """Whether equal numbers of the run-time inputs give equal results, wherever they stand.

    Run-time inputs have the shape of the result, and constants hold one number each. All are float32, or int8 that stands for
    float32. A fusion group is pointwise if its parts are, and if it reads one tensor.
    """
    if layer.op == FUSION_GROUP:
        return len(layer.inputs) == len(layer.outputs) == 1 and all(map(is_pointwise, layer.parts))
    if layer.op not in _POINTWISE or not layer.activations:
        return False
    tensors = [*(layer.type_of(index) for index in layer.activations), *layer.outputs]
    alike = {tensor.shape for tensor in tensors} == {layer.outputs[0].shape}
    return alike and all(map(_is_number, tensors)) and all(map(_is_uniform, layer.constants.values()))


def _is_number(tensor: TensorType) -> bool:
    return tensor.dtype == DEFAULT_DTYPE or tensor.quantization is not None


def _is_uniform(constant: np.ndarray) -> bool:
    return bool(constant.size and (constant == constant.flat[0]).all())
