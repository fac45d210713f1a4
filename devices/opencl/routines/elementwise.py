"""Activations, arithmetic of two tensors, scaling by channel, and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnstretch.devices.base.constants import padded_rows
from nnstretch.devices.base.routine import INPUT, NO_PARAMETERS, Layout, Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import OpenCLRoutine, PlainRoutine, ceil_div, constant, is_image
from nnstretch.graph.layer import Layer

_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
"""In the order of the kernels' numbers."""
_MAX_RANK = 6


class AnyLayout(OpenCLRoutine):
    """Kernels that work on flat arrays in any layout, the same for all tensors.

    Parameters: `blocked` 1 or 0, for tensors of four dimensions.
    """

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """Blocked first, as convolutions read and write it."""
        if not is_image(layer.outputs[0]) or not self._keeps_padding_finite(layer):
            return (NO_PARAMETERS,)
        return {"blocked": 1}, {"blocked": 0}

    def _keeps_padding_finite(self, layer: Layer) -> bool:
        """Whether padding lanes stay finite: a quotient of arbitrary numbers may not."""
        return layer.op != "Div" or layer.outputs[0].shape[1] % self.traits.block == 0

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        layout = self.blocked if parameters.get("blocked") else self.plain
        return (layout,) * len(layer.activations), (layout,)

    def numbers(self, layer: Layer, parameters: Parameters) -> int:
        """Number of stored elements of the output."""
        layout = self.layouts(layer, parameters)[1][0]
        return math.prod(layout.storage_shape(layer.outputs[0].shape))


class Map(AnyLayout):
    """A separate activation, and Reshape of an image to its own shape: the float form of Dequantize."""

    algorithm = "map"
    source = "elementwise.cl"
    ops = ("Activation", "Reshape")
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        stays = is_image(layer.outputs[0]) and layer.type_of(0).shape == layer.outputs[0].shape
        return stays or layer.op == "Activation"

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        count = self.numbers(layer, parameters)
        each = self.flat_per_item(count)
        return self.lowering("map", layer, (count, each), (ceil_div(count, each),))


class BinarySame(AnyLayout):
    """Arithmetic of two run-time tensors of one shape."""

    algorithm = "binary"
    stores_half = True
    source = "elementwise.cl"
    ops = _BINARY

    def _supports(self, layer: Layer) -> bool:
        shape = layer.outputs[0].shape
        return not layer.constants and layer.type_of(0).shape == shape and layer.type_of(1).shape == shape

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        count = self.numbers(layer, parameters)
        each = self.flat_per_item(count)
        words, reads = (count, each, _BINARY.index(layer.op)), (INPUT, Operand("input", 1))
        return self.lowering("binary_same", layer, words, (ceil_div(count, each),), reads)


class BinaryChannel(OpenCLRoutine):
    """Arithmetic of a blocked tensor and one number per channel, constant or computed (N or 1, C, 1, 1)."""

    algorithm = "binary_channel"
    stores_half = True
    source = "elementwise.cl"
    ops = _BINARY

    def _supports(self, layer: Layer) -> bool:
        x, y = layer.type_of(0), layer.type_of(1)
        if 0 in layer.constants or not is_image(x) or x.shape != layer.outputs[0].shape:
            return False
        n, c = x.shape[:2]
        if layer.op == "Div" and c % self.traits.block:
            return False  # padding lanes would be quotients of arbitrary numbers
        if 1 in layer.constants:
            return _per_channel(y.shape, c)
        return y.shape in ((n, c, 1, 1), (1, c, 1, 1))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        blocks, plane, each, size = self.planes(layer)
        operand, stride = Operand("input", 1), 0
        constants: tuple[np.ndarray, ...] = ()
        if 1 in layer.constants:
            values = np.broadcast_to(layer.constants[1].ravel(), layer.outputs[0].shape[1:2])
            operand, constants = constant(0), (self.stored(padded_rows(values, blocks * self.traits.block)),)
        elif layer.type_of(1).shape[0] > 1:
            stride = blocks * self.traits.block
        words = (blocks, plane, stride, each, _BINARY.index(layer.op))
        return self.lowering("binary_channel", layer, words, size, (INPUT, operand), constants)


def _per_channel(shape: tuple[int, ...], channels: int) -> bool:
    """Whether `shape` broadcasts to (1, channels, 1, 1)."""
    full = (1,) * (4 - len(shape)) + shape
    return len(full) == 4 and full[0] == full[2] == full[3] == 1 and full[1] in (1, channels)


class BinaryBroadcast(PlainRoutine):
    """Arithmetic of two plain tensors with any broadcasting; either may be constant."""

    algorithm = "binary_broadcast"
    source = "elementwise.cl"
    ops = _BINARY

    def _supports(self, layer: Layer) -> bool:
        return len(layer.outputs[0].shape) <= _MAX_RANK

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape = layer.outputs[0].shape
        full = (1,) * (_MAX_RANK - len(shape)) + shape
        operands: list[Operand] = []
        constants: list[np.ndarray] = []
        for index in (0, 1):
            if index in layer.constants:
                operands.append(constant(len(constants)))
                constants.append(np.ascontiguousarray(layer.constants[index], np.float32).ravel())
            else:
                operands.append(Operand("input", index))
        strides = (*_strides(layer.type_of(0).shape), *_strides(layer.type_of(1).shape))
        words, rows = (*full[1:], *strides, _BINARY.index(layer.op)), layer.outputs[0].elements // full[-1]
        return self.lowering("binary_broadcast", layer, words, (rows,), operands, tuple(constants))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in floats along each of six dimensions, 0 where the tensor is broadcast."""
    result: list[int] = []
    step = 1
    for size in reversed(shape):
        result.append(0 if size == 1 else step)
        step *= size
    return (0,) * (_MAX_RANK - len(shape)) + tuple(reversed(result))


class Affine(OpenCLRoutine):
    """A constant factor and summand per channel, blocked in and out."""

    algorithm = "affine"
    source = "elementwise.cl"
    ops = ("Affine",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return is_image(layer.type_of(0)) and 1 in layer.constants and 2 in layer.constants

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        blocks, plane, each, size = self.planes(layer)
        factors = tuple(
            self.stored(padded_rows(layer.constants[i].reshape(-1), blocks * self.traits.block)) for i in (1, 2)
        )
        reads = (INPUT, constant(0), constant(1))
        return self.lowering("affine", layer, (blocks, plane, each), size, reads, factors)


class PRelu(OpenCLRoutine):
    """A constant factor per channel for negative numbers, blocked in and out."""

    algorithm = "prelu"
    source = "elementwise.cl"
    ops = ("PRelu",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return is_image(layer.type_of(0)) and 1 in layer.constants

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        blocks, plane, each, size = self.planes(layer)
        slope = self.stored(padded_rows(layer.constants[1].reshape(-1), blocks * self.traits.block))
        return self.lowering("prelu", layer, (blocks, plane, each), size, (INPUT, constant(0)), (slope,))


class Softmax(PlainRoutine):
    """Softmax of a plain tensor along any axis."""

    algorithm = "softmax"
    source = "softmax.cl"
    ops = ("Softmax",)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        axis, shape = layer.integer("axis"), layer.outputs[0].shape
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        if self.traits.on_cpu and inner == 1:
            return self.lowering("softmax_of_rows", layer, (shape[axis], inner), (outer,))
        lanes = self.traits.block if self.traits.on_cpu else 1
        return self.lowering("softmax", layer, (shape[axis], inner), (ceil_div(inner, lanes), outer))


ROUTINES = (Map, BinarySame, BinaryChannel, BinaryBroadcast, Affine, PRelu, Softmax)
