"""What the int8 routines for layers with weights share: supported layers, prepared constants and rounding."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from nnstretch.devices.base.constants import Constant, Prepared
from nnstretch.devices.base.routine import INPUT, Lowering, Operand, has_constant_weights
from nnstretch.devices.cpu.manifest import Values, family, kernel_call
from nnstretch.devices.cpu.routines.int8.rounding import is_quantized, only_clips, parameters_of, ratio_bits, result_of
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.dtypes import HIGHEST, LOWEST, QuantizationParameters
from nnstretch.graph.layer import Layer

QUAD = 4
"""Input channels whose products one instruction adds up; weights of a quad are neighbours."""

QUAD_PRODUCTS = frozenset({"amx_int8", "avx512_vnni", "avx_vnni"})
"""Features of x86-64 CPUs that multiply quads of bytes."""

SUM_SCALE, SUM_ZERO = "sum_scale", "sum_zero"
"""Attributes of a convolution whose sums become int8 before a residual is added: the quantization parameters of these."""

LEAST_BLOCK = 4
"""Floats in the vectors of instruction sets without kernels for narrow weights."""

_SIGN = -LOWEST
"""What kernels that take inputs as uint8 add to them."""
_FACTORS = -LOWEST * (HIGHEST - LOWEST)
"""Largest product of a weight and the distance of an input from its zero point."""
_MOST_FLOAT = float(np.finfo(np.float32).max)


def has_int8_operands(layer: Layer) -> bool:
    """Whether a Conv or Dense layer computes with int8, and its constants are such that the kernels' sums are exact.

    Its activation must be one that the kernels' bounds express: none, ReLU or Clip.
    """
    images = (layer.type_of(0), layer.outputs[0], *([layer.type_of(3)] if layer.has(3) else []))
    return (
        all(map(is_quantized, images))
        and layer.has(4)
        and layer.has(1)
        and layer.type_of(1).dtype == "int8"
        and (not layer.has(2) or layer.type_of(2).dtype == "int32")
        and has_constant_weights(layer)
        and 4 in layer.constants
        and not {0, 3} & layer.constants.keys()
        and only_clips(layer.activation)
        and _sums_fit(layer)
    )


def _sums_fit(layer: Layer) -> bool:
    """Whether no sum of products and bias exceeds int32."""
    products = int(np.prod(layer.type_of(1).shape[1:], dtype=np.int64))
    bias = layer.constants[2].astype(np.int64) if layer.has(2) else np.zeros(1, np.int64)
    return products * _FACTORS + int(np.abs(bias).max(initial=0)) < 1 << 31


def rounding_parameters(layer: Layer) -> Mapping[str, int]:
    """The kernels' parameter group `rounding_parameters`."""
    result, between = parameters_of(layer.outputs[0]), _before_residual(layer)
    made = {**result_of(layer), "residual_scale": 0, "residual_zero": 0, "sum_scale": 0, "sum_zero": 0}
    if layer.has(3):
        residual = parameters_of(layer.type_of(3))
        made |= {"residual_scale": ratio_bits(residual, result), "residual_zero": residual.zero_point}
    if between is not None:
        made |= {"sum_scale": ratio_bits(between, result), "sum_zero": between.zero_point}
    return made


def _before_residual(layer: Layer) -> QuantizationParameters | None:
    """What sums are rounded to before a residual is added, if they are."""
    scale, zero = layer.attributes.get(SUM_SCALE), layer.attributes.get(SUM_ZERO)
    return QuantizationParameters(scale, zero) if isinstance(scale, float) and isinstance(zero, int) else None


def padded(values: np.ndarray, lanes: int) -> np.ndarray:
    """Values per output channel with zeros appended along the last axis up to `lanes`."""
    return np.pad(values, (*((0, 0),) * (values.ndim - 1), (0, lanes - values.shape[-1])))


def multipliers(layer: Layer, lanes: int) -> np.ndarray:
    """For each output channel the step of its sums in steps of what they are rounded to, as float32[lanes]."""
    scales = layer.constants[4].reshape(-1).astype(np.float64)
    rounded = _before_residual(layer) or parameters_of(layer.outputs[0])
    steps = scales * parameters_of(layer.type_of(0)).scale / rounded.scale
    return padded(np.minimum(steps, _MOST_FLOAT).astype(np.float32), lanes)


def corrected_bias(layer: Layer, lanes: int) -> np.ndarray:
    """The bias as int32[2][lanes] for sums of products with inputs that keep their zero point.

    The first row is for inputs as they are, the second for inputs with 128 added.
    """
    weights = layer.constants[1]
    sums = weights.reshape(len(weights), -1).sum(axis=1, dtype=np.int64)
    bias = layer.constants[2].reshape(-1).astype(np.int64) if layer.has(2) else 0
    rows = [bias - sums * (parameters_of(layer.type_of(0)).zero_point + added) for added in (0, _SIGN)]
    return padded(np.stack(rows).astype(np.int32), lanes)


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
        parameters: the kernel's parameters except the group `rounding`.
    """
    reads = (INPUT, *(Operand("constant", i) for i in range(3)), Operand("input", 3) if layer.has(3) else None)
    constants: tuple[Constant, ...] = (weights, bias, multipliers(layer, bias.shape[-1]))
    in_place = 4 if layer.has(3) else None
    call = kernel_call(kernel, reads, in_place=in_place, **parameters, rounding=rounding_parameters(layer))
    return Lowering((call,), constants)
