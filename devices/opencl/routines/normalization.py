"""Normalisation of the channels of each pixel (LayerNorm), and of groups of channels over all pixels (GroupNorm)."""

from __future__ import annotations

import math

import numpy as np

from nnstretch.devices.base.constants import padded_rows
from nnstretch.devices.base.routine import INPUT, Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import SUM_BYTES, OpenCLRoutine, PlainRoutine, ceil_div, constant, is_image
from nnstretch.graph.activation import float_bits
from nnstretch.graph.layer import Layer

_READS = (INPUT, constant(0), constant(1))


def _factors(layer: Layer, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift, ones and zeros where the layer has none."""
    scale = layer.constants[1] if layer.has(1) else np.ones(length, np.float32)
    shift = layer.constants[2] if layer.has(2) else np.zeros(length, np.float32)
    return scale.reshape(-1), shift.reshape(-1)


def _has_constant_factors(layer: Layer, length: int) -> bool:
    return all(i in layer.constants and layer.type_of(i).elements == length for i in (1, 2) if layer.has(i))


def _epsilon(layer: Layer) -> int:
    value = layer.attributes["epsilon"]
    assert isinstance(value, float | int)
    return float_bits(float(value))


class BlockedLayerNorm(OpenCLRoutine):
    """LayerNorm of the channels of a blocked image."""

    algorithm = "layer_norm_blocked"
    source = "normalization.cl"
    ops = ("LayerNorm",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        shape = layer.type_of(0).shape
        return is_image(layer.type_of(0)) and layer.integer("axis") == 1 and _has_constant_factors(layer, shape[1])

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        n, c, h, w = layer.outputs[0].shape
        each = self.plane_per_item(h * w, n * self.blocks(c))
        padded = self.blocks(c) * self.traits.block
        factors = tuple(self.stored(padded_rows(values, padded)) for values in _factors(layer, c))
        words = (c, h * w, each, layer.integer("rms", 0), _epsilon(layer))
        return self.lowering("layer_norm_blocked", layer, words, (ceil_div(h * w, each), n), _READS, factors)


class LayerNorm(PlainRoutine):
    """LayerNorm of a plain tensor along any axis."""

    algorithm = "layer_norm"
    source = "normalization.cl"
    ops = ("LayerNorm",)

    def _supports(self, layer: Layer) -> bool:
        return _has_constant_factors(layer, layer.type_of(0).shape[layer.integer("axis")])

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        axis, shape = layer.integer("axis"), layer.outputs[0].shape
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        factors = tuple(self.stored(values) for values in _factors(layer, shape[axis]))
        words = (shape[axis], inner, layer.integer("rms", 0), _epsilon(layer))
        return self.lowering("layer_norm", layer, words, (inner, outer), _READS, factors)


class GroupNorm(OpenCLRoutine):
    """GroupNorm of a blocked image: the moments of each channel, then the normalisation by those of its group."""

    algorithm = "group_norm"
    source = "normalization.cl"
    ops = ("GroupNorm",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return is_image(layer.type_of(0)) and _has_constant_factors(layer, layer.type_of(0).shape[1])

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        n, c = layer.outputs[0].shape[:2]
        blocks, plane, each, size = self.planes(layer)
        moments, padded = Operand("workspace", 0), blocks * self.traits.block
        first = self.call("channel_moments", (INPUT,), (blocks, plane), (blocks, n), writes=(moments,))
        words = (c, blocks, plane, each, layer.integer("groups"), _epsilon(layer), *layer.activation.words())
        second = self.call("group_norm", (*_READS, moments), words, size)
        factors = tuple(self.stored(padded_rows(values, padded)) for values in _factors(layer, c))
        return Lowering((first, second), factors, (n * padded * 2 * SUM_BYTES,))


ROUTINES = (BlockedLayerNorm, LayerNorm, GroupNorm)
