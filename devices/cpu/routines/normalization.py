"""Normalisation of the channels of each pixel (LayerNorm), and of groups of channels over all pixels (GroupNorm)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from nnstretch.devices.base.routine import INPUT, PLAIN, Descriptor, Layout, Lowering, Operand, Parameters
from nnstretch.devices.cpu.manifest import activation_parameters, kernel_call
from nnstretch.devices.cpu.routines.memory_bound import BLOCK, MemoryBoundRoutine, one_call, per_channel, planes_of
from nnstretch.graph.activation import float_bits
from nnstretch.graph.layer import Layer

_FACTORS = (Operand("constant", 0), Operand("constant", 1))
_FLOAT_BYTES = 4


def factors(layer: Layer, length: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift of a normalisation, ones and zeros where it has none, as stored per channel."""
    scale = layer.constants[1] if layer.has(1) else np.ones(length, np.float32)
    shift = layer.constants[2] if layer.has(2) else np.zeros(length, np.float32)
    return per_channel(scale, block), per_channel(shift, block)


def has_constant_factors(layer: Layer, length: int) -> bool:
    """Whether scale and shift are constants with one value per channel, if there are any."""
    return all(i in layer.constants and layer.type_of(i).elements == length for i in (1, 2) if layer.has(i))


def epsilon(layer: Layer) -> int:
    """The layer's epsilon as a parameter of kernels."""
    value = layer.attributes["epsilon"]
    assert isinstance(value, float | int)
    return float_bits(float(value))


class _Normalization(MemoryBoundRoutine):
    """A routine whose run-time input and output have the same layout."""

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        layout = Layout(parameters[BLOCK]) if parameters[BLOCK] else PLAIN
        return (layout,), (layout,)


class LayerNormRoutine(_Normalization):
    """LayerNorm over any axis of a plain tensor, or the channels of a blocked one."""

    descriptor = Descriptor("cpu", "float32", "layer_norm")
    operators = frozenset({"LayerNorm"})

    def covers(self, layer: Layer) -> bool:
        shape = layer.type_of(0).shape
        return 0 not in layer.constants and has_constant_factors(layer, shape[layer.integer("axis")])

    def blockable(self, layer: Layer) -> bool:
        """If the channels of an image are normalised."""
        return len(layer.type_of(0).shape) == 4 and layer.integer("axis") == 1

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape, axis, block = layer.type_of(0).shape, layer.integer("axis"), parameters[BLOCK]
        dimensions = {
            "images": math.prod(shape[:axis]),
            "channels": shape[axis],
            "pixels": math.prod(shape[axis + 1 :]),
            "block": block,
            "rms": layer.integer("rms", 0),
            "epsilon": epsilon(layer),
        }
        return one_call(
            "norm/layer", layer, dimensions, (INPUT, *_FACTORS), factors(layer, shape[axis], block), in_place=0
        )


class GroupNormRoutine(_Normalization):
    """GroupNorm: the moments of each channel, then the normalisation by those of its group."""

    descriptor = Descriptor("cpu", "float32", "group_norm")
    operators = frozenset({"GroupNorm"})

    def covers(self, layer: Layer) -> bool:
        shape = layer.type_of(0).shape
        return 0 not in layer.constants and len(shape) >= 2 and has_constant_factors(layer, shape[1])

    def blockable(self, layer: Layer) -> bool:
        return len(layer.type_of(0).shape) == 4

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape, block = layer.type_of(0).shape, parameters[BLOCK]
        planes = planes_of(shape, block)
        statistics = Operand("workspace", 0)
        rows = {"rows": planes.planes, "pixels": planes.pixels, "lanes": planes.lanes}
        first = replace(kernel_call("norm/statistics", (INPUT,), **rows), writes=(statistics,))
        second = kernel_call(
            "norm/groups",
            (INPUT, *_FACTORS, statistics),
            in_place=0,
            images=shape[0],
            channels=shape[1],
            pixels=planes.pixels,
            lanes=planes.lanes,
            groups=layer.integer("groups"),
            epsilon=epsilon(layer),
            activation=activation_parameters(layer.activation),
        )
        workspace = planes.planes * 2 * planes.lanes * _FLOAT_BYTES
        return Lowering((first, second), factors(layer, shape[1], block), (workspace,))


ROUTINES = (LayerNormRoutine, GroupNormRoutine)
