"""Products of matrices that are computed at run time, and attention, on plain tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnstretch.devices.algorithms.attention import (
    OF_SCORES,
    attention_extents,
    attention_fits,
    attention_numbers,
    bias_strides,
    factor_strides,
)
from nnstretch.devices.algorithms.matrices import matrix_images
from nnstretch.devices.base.routine import Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import PlainRoutine, ceil_div, constant
from nnstretch.devices.opencl.routines.demand import ADDRESS_REGISTERS, Demand
from nnstretch.graph.activation import NO_ACTIVATION, float_bits
from nnstretch.graph.layer import Layer

_MOST_WIDTH = 256  # values of a head that a work item keeps
_TILES_OF_ROWS = (4, 4), (4, 2), (2, 2)
_POINTER = 2  # registers


class MatMul(PlainRoutine):
    """x · y for every image; transposed operands are read where they lie.

    Routine parameters:
        rows: of x per work item.
    """

    algorithm = "matmul"
    source = "matmul.cl"
    ops = ("MatMul",)

    def _supports(self, layer: Layer) -> bool:
        both_constant = 0 in layer.constants and 1 in layer.constants
        return not both_constant and len(matrix_images(layer)) <= 2

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return tuple({"rows": rows} for rows in ((8, 4) if self.traits.registers > 16 else (4,)))

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        if _is_of_rows(layer):
            return self._demand_of_rows(*self._tile_of_rows())
        rows = parameters["rows"]
        return Demand(self.traits.block * (rows + 1) + _POINTER * rows + ADDRESS_REGISTERS)

    def _demand_of_rows(self, rows: int, columns: int) -> Demand:
        """What a tile of vectors of partial sums demands, a row of operands, and a pointer to each row of both matrices."""
        vectors, pointers = rows * columns + rows + 1, rows + columns
        return Demand(self.traits.block * vectors + _POINTER * pointers + ADDRESS_REGISTERS)

    def _tile_of_rows(self) -> tuple[int, int]:
        """Rows of x and of y of a tile for operands that both lie along K: the largest that the device takes."""
        tiles = _TILES_OF_ROWS if self.traits.registers > 16 else _TILES_OF_ROWS[1:]
        return next((tile for tile in tiles if self._demand_of_rows(*tile).fits(self.traits)), tiles[-1])

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        operands: list[Operand] = []
        constants: list[np.ndarray] = []
        for index in (0, 1):
            if index in layer.constants:
                operands.append(constant(len(constants)))
                constants.append(self.stored(layer.constants[index]))
            else:
                operands.append(Operand("input", index))
        (outer, x_outer, y_outer), (inner, x_inner, y_inner) = ([(1, 0, 0)] * 2 + matrix_images(layer))[-2:]
        x_turned, y_turned = (bool(layer.integer(name)) for name in ("transpose_x", "transpose_y"))
        m, n = layer.outputs[0].shape[-2:]
        k = layer.type_of(0).shape[-2 if x_turned else -1]
        of_x = (x_outer, x_inner, 1 if x_turned else k, m if x_turned else 1)
        of_y = (y_outer, y_inner, 1 if y_turned else n, k if y_turned else 1)
        words = (inner, m, k, n, *of_x, *of_y, *layer.activation.words())
        if _is_of_rows(layer):
            (rows, columns), kernel = self._tile_of_rows(), "matmul_of_rows"
        else:
            rows, columns, kernel = parameters["rows"], self.traits.block, "matmul"
        size = (ceil_div(n, columns), ceil_div(m, rows), outer * inner)
        defines = (("ROWS", rows), ("COLUMNS", columns))
        return Lowering((self.call(kernel, operands, words, size, defines),), tuple(constants))


def _is_of_rows(layer: Layer) -> bool:
    """Whether the rows of both operands lie along K."""
    return bool(layer.integer("transpose_y")) and not layer.integer("transpose_x")


class Attention(PlainRoutine):
    """Softmax of scores and the sum of values that it weighs, without scores in memory.

    Routine parameters:
        queries: per work item; as many as a vector has lanes: one in each lane.
    """

    algorithm = "attention"
    source = "attention.cl"
    ops = ("Attention",)

    def _supports(self, layer: Layer) -> bool:
        fits = layer.activation == NO_ACTIVATION and attention_fits(layer)
        return fits and attention_extents(layer)["width"] <= _MOST_WIDTH

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        if not self.traits.on_cpu:
            return tuple({"queries": queries} for queries in (1, 2))
        extents = attention_extents(layer)
        fits = max(extents["depth"], extents["width"]) <= _MOST_WIDTH and extents["queries"] > 1
        return tuple({"queries": queries} for queries in ((self.traits.block, 4) if fits else (4,)))

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        """Per query pointers to it, its bias and its mask, three numbers and a vector of scores; and two vectors of operands.

        The sums of values are an array in the memory of an item.
        """
        b, queries = self.traits.block, parameters["queries"]
        return Demand(queries * (3 * _POINTER + 3 + b) + 2 * b + ADDRESS_REGISTERS)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        extents = attention_extents(layer)
        operands: list[Operand | None] = [Operand("input", index) for index in range(3)]
        constants: list[np.ndarray] = []
        for index in OF_SCORES:
            if index in layer.constants:
                operands.append(constant(len(constants)))
                constants.append(self.stored(layer.constants[index]))
            else:
                operands.append(Operand("input", index) if layer.has(index) else None)
        scale, epsilon = map(float_bits, attention_numbers(layer))
        places = [step for index in range(3) for step in _places(layer.type_of(index).shape)]
        places += _places(layer.outputs[0].shape)
        has = (int(layer.has(index)) for index in OF_SCORES)
        sizes = (extents[name] for name in ("windows", "groups", "queries", "keys", "depth"))
        strides = (*bias_strides(layer).values(), *factor_strides(layer).values())
        words = (*sizes, scale, epsilon, *has, *places, *strides)
        queries = parameters["queries"]
        size = (ceil_div(extents["queries"], queries), extents["heads"], extents["batch"] * extents["windows"])
        adjacent = all(_places(layer.type_of(index).shape)[-1] == 1 for index in (1, 2))
        defines = (
            ("QUERIES", queries),
            ("KEYS", self.traits.registers // 2),
            ("DEPTH", extents["depth"]),
            ("WIDTH", extents["width"]),
            ("ADJACENT", int(adjacent)),
            ("NORMALISED", int(epsilon > 0)),
        )
        kernel = "attention_of_queries" if queries == self.traits.block else "attention"
        return Lowering((self.call(kernel, operands, words, size, defines),), tuple(constants))


def _places(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Floats between images, windows, channels and tokens of a tensor N,C,W,L or B,L,C."""
    if len(shape) == 3:
        return math.prod(shape[1:]), 0, 1, shape[2]
    return math.prod(shape[1:]), shape[3], shape[2] * shape[3], 1


ROUTINES = (MatMul, Attention)
