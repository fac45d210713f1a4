"""Dense layers on plain tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from nnstretch.devices.algorithms.int16_weights import fit_int16, peaks
from nnstretch.devices.algorithms.strided import StridedCopy
from nnstretch.devices.base.constants import Piece, Prepared, Source
from nnstretch.devices.base.routine import (
    NO_PARAMETERS,
    PLAIN,
    Descriptor,
    Layout,
    Lowering,
    Parameters,
    Routine,
    pipeline,
)
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.base import (
    as_convolution,
    has_native_operands,
    has_rows_of_pixels,
    is_convolution,
    lowering,
)
from nnstretch.devices.cpu.routines.convolution.direct import DirectConvolution
from nnstretch.devices.cpu.routines.data_movement import change_layout, copy_call
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.dtypes import DEFAULT_DTYPE, element_type
from nnstretch.graph.layer import Layer, TensorType

TRANSPOSED = 240
"""Inputs whose weights are transposed at a time; not a power of two, because rows of the copy would then share cache sets."""


def _write_panel(rows: np.ndarray, width: int, place: np.ndarray) -> None:
    """Writes weights of up to `width` outputs, O,K, as K,width, in parts that fit the cache."""
    panel = place.reshape(-1, width)
    for begin in range(0, rows.shape[1], TRANSPOSED):
        part = rows[:, begin : begin + TRANSPOSED].copy()
        panel[begin : begin + TRANSPOSED, : len(rows)] = part.T


def _write_int16_panel(rows: np.ndarray, width: int, place: np.ndarray) -> None:
    """Writes scales of outputs, width, then their weights divided by these, K,width."""
    scales = place[: 2 * width].view(np.float32)
    scales[: len(rows)] = _scales(rows)
    steps = rows / np.where(scales[: len(rows)] > 0, scales[: len(rows)], 1)[:, None]
    _write_panel(np.rint(steps).astype(np.int16), width, place[2 * width :])


def _scales(rows: np.ndarray) -> np.ndarray:
    """The step of the weights of each output, O,K, such that the largest is an int16."""
    return np.asarray(peaks(rows) / np.iinfo(np.int16).max, np.float32)


def _is_product(layer: Layer) -> bool:
    """Whether a layer is x · Wᵀ: a dense layer, or a 1 × 1 convolution of images of one pixel, as in squeeze-and-excitation."""
    if not has_native_operands(layer):
        return False
    if layer.op == "Dense":
        return len(layer.type_of(0).shape) == 2
    if not is_convolution(layer):
        return False
    shape = layer.type_of(0).shape
    if layer.type_of(1).shape[1] != shape[1]:  # groups
        return False
    return (*shape[2:], *layer.type_of(1).shape[2:], *layer.outputs[0].shape[2:]) == (1,) * 6


class Dense(Routine):
    """x · Wᵀ + bias + residual with activation; each weight is read once, at memory speed for small batches.

    Routine parameters:
        rows, vectors: the register tile, which names the kernel; none if the engine has one tile only.
    """

    descriptor = Descriptor("cpu", "float32", "dense")
    kernels: ClassVar[str] = "dense"
    """Name of the kernels' family."""
    stored: ClassVar[str] = DEFAULT_DTYPE
    """Type of the weights in memory."""
    scale_elements: ClassVar[int] = 0
    """Elements of that type that the scale of an output takes."""

    def __init__(self, isa: Isa) -> None:
        self.block = isa.block
        self.tiles = family(self.kernels).tiles(isa, "rows", "vectors")

    def supports(self, layer: Layer) -> bool:
        return _is_product(layer)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        if len(self.tiles) == 1:
            return (NO_PARAMETERS,)
        return tuple({"rows": rows, "vectors": vectors} for rows, vectors in self.tiles)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        outputs, inputs = layer.type_of(1).shape[:2]
        tile = parameters or dict(zip(("rows", "vectors"), self.tiles[0], strict=True))
        width = tile["vectors"] * self.block
        lanes = -(-outputs // width) * width
        weight, column = layer.constants[1], inputs + self.scale_elements
        matrix = weight.reshape(outputs, inputs)
        pieces = [
            Piece(first * column, width * column, partial(self.write_panel, matrix[first : first + width], width))
            for first in range(0, lanes, width)
        ]
        batch = layer.type_of(0).shape[0]
        weights = Prepared(lanes * column, pieces, self.stored, recipe=(self.kernels, Source(weight), width))
        return lowering(family(self.kernels).kernel(**tile), layer, weights, lanes, n=batch, k=inputs, m=outputs)

    write_panel = staticmethod(_write_panel)
    """Writes some rows of weights, O,K, to a panel of a number of columns."""


class DenseOfInt16Weights(Dense):
    """The same with weights stored as int16, which are half the bytes to read; all arithmetic is in float32.

    Weights of an output have one step. Rounding to it loses less than float16 would, whose numbers have 11 bits.
    """

    descriptor = Descriptor("cpu", "float32", "dense_int16")
    kernels = "dense_int16"
    stored = "int16"
    scale_elements = 2

    def supports(self, layer: Layer) -> bool:
        return super().supports(layer) and fit_int16(layer)

    write_panel = staticmethod(_write_int16_panel)


class DenseAsConvolution(Routine):
    """A childnet: the rows of the batch become the pixels of one image, and a 1 × 1 convolution computes them (figure 1a).

    For batches of two rows or more: with one row, `Dense` reads every weight once and nothing is faster.

    Routine parameters: those of the direct convolution.
    """

    descriptor = Descriptor("cpu", "float32", "conv")

    def __init__(self, isa: Isa) -> None:
        self.layout = Layout(isa.block)
        self.convolution = DirectConvolution(isa)

    def supports(self, layer: Layer) -> bool:
        if not has_rows_of_pixels(layer) or layer.has(3):
            return False
        return self.convolution.supports(as_convolution(layer))

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return self.convolution.parameter_space(as_convolution(layer))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        inner = as_convolution(layer)
        image, result = inner.type_of(0), inner.outputs[0]
        enter, leave = self._calls(image, inward=True), self._calls(result, inward=False)
        stages = [*enter, self.convolution.lower(inner, parameters), *leave]
        between = [PLAIN.bytes(image)] * (len(enter) - 1) + [self.layout.bytes(image), self.layout.bytes(result)]
        return pipeline(stages, between + [PLAIN.bytes(result)] * (len(leave) - 1))

    def _calls(self, image: TensorType, *, inward: bool) -> list[Lowering]:
        """Converts rows of channels to a blocked image N,C,H,1, or back: one copy if all blocks are full, else two."""
        _, channels, rows, _ = image.shape
        block = self.layout.block
        if channels % block == 0:
            blocks = channels // block
            outer, inner = (blocks, rows) if inward else (rows, blocks)
            strides = (block, channels, 1) if inward else (block, rows * block, 1)
            return [_copy((outer, inner, block), strides)]
        if inward:
            reordered = Lowering((change_layout(image, 0, block),))
            return [_copy((channels, rows), (1, channels)), reordered]
        return [Lowering((change_layout(image, block, 0),)), _copy((rows, channels), (1, rows))]


def _copy(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Lowering:
    return Lowering((copy_call(StridedCopy(sizes, strides, 0), element_type(DEFAULT_DTYPE)),))


ROUTINES = (Dense, DenseOfInt16Weights, DenseAsConvolution)
