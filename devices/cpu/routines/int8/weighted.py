"""The lowering that the int8 routines for layers with weights share."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from nnstretch.devices.algorithms.quantized_products import float_result, multipliers, rounding_parameters
from nnstretch.devices.base.constants import Constant, Prepared
from nnstretch.devices.base.routine import INPUT, Lowering, Operand
from nnstretch.devices.cpu.manifest import Values, family, kernel_call
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Layer

QUAD_PRODUCTS = frozenset({"amx_int8", "avx512_vnni", "avx_vnni"})
"""Features of x86-64 CPUs that multiply quads of bytes."""

LEAST_BLOCK = 4
"""Floats in the vectors of instruction sets without kernels for narrow weights."""


def gains_by_narrow_weights(isa: Isa, features: Collection[str]) -> bool:
    """Whether kernels for narrow weights are faster than those for any on CPUs with an instruction set and these features."""
    return isa.block > LEAST_BLOCK and QUAD_PRODUCTS.isdisjoint(features)


def has_narrow_kernels(layer: Layer, block: int) -> bool:
    """Whether engines with vectors of `block` floats have kernels for the narrow weights of a layer."""
    return layer.has_narrow_weights and block > LEAST_BLOCK


def kernel_for(layer: Layer, block: int, name: str, **tile: int) -> str:
    """The kernel of a family for the weights of a layer, by its tile, in engines with vectors of `block` floats."""
    found = family(name)
    return found.narrow_kernel(**tile) if has_narrow_kernels(layer, block) else found.kernel(**tile)


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
