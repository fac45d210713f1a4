"""The lowering that the int8 routines for layers with weights share."""

from __future__ import annotations

import numpy as np

from nnstretch.devices.algorithms.quantized_products import float_result, multipliers, rounding_parameters
from nnstretch.devices.base.constants import Constant, Prepared
from nnstretch.devices.base.routine import INPUT, Lowering, Operand
from nnstretch.devices.cpu.manifest import Values, kernel_call
from nnstretch.graph.layer import Layer


def lowering(kernel: str, layer: Layer, weights: Prepared, bias: np.ndarray, **parameters: Values) -> Lowering:
    """One call of `kernel`, which reads input, weights, bias, multipliers and residual.

    Args:
        kernel: name of the kernel.
        layer: a layer with int8 operands.
        weights: weights as the kernel reads them.
        bias: int32 array whose last axis has the kernel's lanes.
        parameters: the kernel's parameters except the groups `rounding` and `result`.
    """
    reads = (INPUT, *(Operand("constant", i) for i in range(3)), Operand("input", 3) if layer.has(3) else None)
    constants: tuple[Constant, ...] = (weights, bias, multipliers(layer, bias.shape[-1]))
    in_place = 4 if layer.has(3) else None
    made = {"rounding": rounding_parameters(layer), "result": float_result(layer)}
    call = kernel_call(kernel, reads, in_place=in_place, **parameters, **made)
    return Lowering((call,), constants)
