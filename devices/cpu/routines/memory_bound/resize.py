"""Resize: converts coordinates to tables, so that kernels need no coordinate modes."""

from __future__ import annotations

import numpy as np

from nnstretch.devices.base.routine import Descriptor, Lowering, Operand, Parameters
from nnstretch.devices.cpu.manifest import activation_parameters, kernel_call
from nnstretch.devices.cpu.routines.memory_bound.base import BLOCK, INPUT, OUTPUT, MemoryBoundRoutine, planes_of
from nnstretch.graph.layer import Layer

COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def source_positions(size: int, result: int, scale: float, coordinates: str) -> np.ndarray:
    """Positions of `result` pixels among `size` source pixels (ONNX, Resize).

    Computed in float32 as in other engines, because rounding decides which of two neighbours is nearest.
    """
    index, factor = np.arange(result, dtype=np.float32), np.float32(scale)
    half = np.float32(0.5)
    if coordinates == "asymmetric":
        return index / factor
    if coordinates == "align_corners":
        return index * np.float32(size - 1) / np.float32(max(result - 1, 1))
    if coordinates == "pytorch_half_pixel" and result == 1:
        return np.zeros(1, np.float32)
    positions: np.ndarray = (index + half) / factor - half
    return positions


def nearest_table(positions: np.ndarray, size: int, rule: str) -> np.ndarray:
    """Index of the source pixel of each position, int32."""
    if rule == "floor":
        rounded = np.floor(positions)
    elif rule == "ceil":
        rounded = np.ceil(positions)
    elif rule == "round_prefer_floor":
        rounded = np.ceil(positions - np.float32(0.5))
    else:
        rounded = np.floor(positions + np.float32(0.5))
    indices: np.ndarray = np.clip(rounded, 0, size - 1).astype(np.int32)
    return indices


def linear_table(positions: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the two neighbours of each position (n,2; int32), and weights of the second neighbours (n; float32)."""
    inside = np.clip(positions, 0, size - 1)
    first = np.floor(inside).astype(np.int32)
    second = np.minimum(first + 1, size - 1)
    return np.stack([first, second], axis=1), (inside - first).astype(np.float32)


class ResizeRoutine(MemoryBoundRoutine):
    """Nearest and linear Resize over H and W."""

    descriptor = Descriptor("cpu", "float32", "resize")
    operators = frozenset({"Resize"})

    def covers(self, layer: Layer) -> bool:
        """Rank 4, and known coordinate and rounding modes."""
        attributes = layer.attributes
        return (
            len(layer.type_of(0).shape) == 4
            and attributes["coordinates"] in COORDINATES
            and (
                attributes["mode"] == "linear" or (attributes["mode"] == "nearest" and attributes["nearest"] in NEAREST)
            )
        )

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call; its constants are the tables."""
        shape, result = layer.type_of(0).shape, layer.outputs[0].shape
        scales, coordinates = layer.attributes["scales"], str(layer.attributes["coordinates"])
        assert isinstance(scales, tuple)
        positions = [
            source_positions(shape[2 + axis], result[2 + axis], scales[axis], coordinates) for axis in range(2)
        ]
        tables: tuple[np.ndarray, ...]
        if layer.attributes["mode"] == "nearest":
            kernel, rule = "resize/nearest", str(layer.attributes["nearest"])
            tables = tuple(nearest_table(positions[axis], shape[2 + axis], rule) for axis in range(2))
        else:
            kernel = "resize/linear"
            rows, columns = (linear_table(positions[axis], shape[2 + axis]) for axis in range(2))
            tables = (*rows, *columns)
        planes = planes_of(shape, parameters[BLOCK])
        reads = (INPUT, *(Operand("constant", i) for i in range(len(tables))))
        call = kernel_call(
            kernel,
            reads,
            (OUTPUT,),
            planes=planes.planes,
            lanes=planes.lanes,
            height=shape[2],
            width=shape[3],
            out_height=result[2],
            out_width=result[3],
            activation=activation_parameters(layer.activation),
        )
        return Lowering((call,), tables)
