"""Layers that move elements as one strided copy, with one stride per output dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.devices.base.routine import Layout
from nnstretch.graph.layer import Layer

DIMENSIONS = 6  # number of output dimensions that kernels expect
WIDEST = 16  # most bytes of an element that kernels copy
CHANNELS_LAST = (0, 2, 3, 1)  # the permutation to N,H,W,C; kernels for it read the blocked layout
CHANNELS_FIRST = (
    0,
    3,
    1,
    2,
)  # the permutation from N,H,W,C; whole blocks of channels are written in the blocked layout


@dataclass(frozen=True)
class StridedCopy:
    """Element (i0, i1, …) of the output is element `first` + i0 * strides[0] + i1 * strides[1] + … of the input.

    Attributes:
        sizes: output dimensions, outermost first; the output is dense.
        strides: input elements between neighbouring indices of each dimension.
        first: input element of output index 0.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    first: int

    def merged(self) -> StridedCopy:
        """The same copy with neighbouring dimensions merged where possible; at least one dimension remains."""
        sizes: list[int] = []
        strides: list[int] = []
        for size, stride in zip(self.sizes, self.strides, strict=True):
            if size == 1:
                continue
            if sizes and strides[-1] == size * stride:
                sizes[-1] *= size
                strides[-1] = stride
            else:
                sizes.append(size)
                strides.append(stride)
        return StridedCopy(tuple(sizes) or (1,), tuple(strides) or (1,), self.first)

    def widened(self, size: int) -> tuple[StridedCopy, int]:
        """The same copy with runs of the last dimension as one element, and the bytes of an element.

        Unless it is a run of neighbours, which together are an element that kernels copy, the copy stays as it is.

        Args:
            size: bytes of an element.
        """
        (*sizes, run), (*strides, step) = self.sizes, self.strides
        wide = run * size
        is_element = wide <= WIDEST and wide & (wide - 1) == 0
        if not sizes or step != 1 or not is_element or any(place % run for place in (*strides, self.first)):
            return self, size
        return StridedCopy(tuple(sizes), tuple(stride // run for stride in strides), self.first // run), wide

    def padded(self) -> StridedCopy:
        """The same copy padded to `DIMENSIONS` dimensions; it must not have more."""
        missing = DIMENSIONS - len(self.sizes)
        return StridedCopy((1,) * missing + self.sizes, (0,) * missing + self.strides, self.first)


def strided_copy(layer: Layer, block: int = 0) -> StridedCopy:
    """The merged copy that computes a Transpose or Expand of plain data, or another layer in the layout of `block`.

    A layer on blocked data must satisfy `moves_blocks`. With a block, the Transpose `CHANNELS_FIRST` writes blocked data, and
    `CHANNELS_LAST` reads it; the channels must be whole blocks.
    """
    source, result = layer.type_of(0).shape, layer.outputs[0].shape
    if layer.op in _TILES:
        return _TILES[layer.op](layer, block or 1).merged()
    if layer.op == "Expand":
        padded = (1,) * (len(result) - len(source)) + source
        strides = dense_strides(padded)
        spread = zip(padded, strides, strict=True)
        return StridedCopy(result, tuple(0 if size == 1 else stride for size, stride in spread), 0).merged()
    if layer.op == "Transpose" and block and layer.ints("perm") == CHANNELS_LAST:
        images, channels, height, width = source
        pixels = height * width
        strides = (channels * pixels, block, pixels * block, 1)
        return StridedCopy((images, pixels, channels // block, block), strides, 0).merged()
    if layer.op == "Transpose" and block:
        images, height, width, channels = source
        strides = (height * width * channels, block, channels, 1)
        return StridedCopy((images, channels // block, height * width, block), strides, 0).merged()
    if layer.op == "Transpose":
        strides = dense_strides(source)
        return StridedCopy(result, tuple(strides[axis] for axis in layer.ints("perm")), 0).merged()
    starts, steps = layer.ints("starts"), layer.ints("steps")
    if block:
        layout = Layout(block)
        source, result = layout.storage_shape(source), layout.storage_shape(result)
        starts = (starts[0], starts[1] // block, *starts[2:], 0)
        steps = (*steps, 1)
    strides = dense_strides(source)
    first = sum(start * stride for start, stride in zip(starts, strides, strict=True))
    return StridedCopy(result, tuple(a * b for a, b in zip(strides, steps, strict=True)), first).merged()


def _depth_to_space(layer: Layer, lanes: int) -> StridedCopy:
    """Output dimensions n, c, h, y, w, x, lane, where pixel (h, w) of the input becomes a tile of (y, x)."""
    images, channels, height, width = layer.outputs[0].shape
    size = layer.integer("size")
    height, width = height // size, width // size
    plane = height * width
    tile, channel = (channels * plane, plane) if layer.attributes["mode"] == "DCR" else (plane, size * size * plane)
    return StridedCopy(
        (images, channels // lanes, height, size, width, size, lanes),
        (size * size * channels * plane, channel * lanes, width * lanes, size * tile, lanes, tile, 1),
        0,
    )


def _space_to_depth(layer: Layer, lanes: int) -> StridedCopy:
    """Output dimensions n, y, x, c, h, w, lane, where (y, x) is the place in the tile."""
    images, channels, height, width = layer.type_of(0).shape
    size = layer.integer("size")
    plane, row = height * width, width * lanes
    return StridedCopy(
        (images, size, size, channels // lanes, height // size, width // size, lanes),
        (channels * plane, row, lanes, plane * lanes, size * row, size * lanes, 1),
        0,
    )


def _rearrange(layer: Layer, lanes: int) -> StridedCopy:
    """Output dimensions: factors of the images, blocks of channels, factors of the pixels, lane."""
    _, channels, height, width = layer.type_of(0).shape
    blocks, pixels = -(-channels // lanes), height * width
    sizes, perm = layer.ints("sizes"), layer.ints("perm")
    # A stride of a whole image counts its blocks, too. The factors of images come first: their product is the batch.
    places = dense_strides(sizes)
    strides = [(stride * blocks if stride >= pixels else stride) * lanes for stride in places]
    outer: list[int] = []
    while math.prod(sizes[axis] for axis in outer) < layer.outputs[0].shape[0]:
        outer.append(perm[len(outer)])
    inner = perm[len(outer) :]
    return StridedCopy(
        (*(sizes[axis] for axis in outer), blocks, *(sizes[axis] for axis in inner), lanes),
        (*(strides[axis] for axis in outer), pixels * lanes, *(strides[axis] for axis in inner), 1),
        0,
    )


_TILES = {"DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "Rearrange": _rearrange}


def moves_blocks(layer: Layer, block: int) -> bool:
    """Whether a layer can be a copy of whole blocks of channels, in at most `DIMENSIONS` dimensions."""
    if layer.op == "Slice":
        return slices_blocks(layer, block)
    if layer.op == "Rearrange":
        return len(strided_copy(layer, block).sizes) <= DIMENSIONS
    if layer.op not in _TILES or layer.attributes.get("mode", "DCR") != "DCR":
        return False
    channels = (layer.outputs[0] if layer.op == "DepthToSpace" else layer.type_of(0)).shape[1]
    return channels % block == 0 and len(strided_copy(layer, block).sizes) <= DIMENSIONS


def slices_blocks(layer: Layer, block: int) -> bool:
    """Whether a Slice has rank 4, starts at the first channel of a block and has a channel step of 1."""
    return len(layer.type_of(0).shape) == 4 and layer.ints("starts")[1] % block == 0 and layer.ints("steps")[1] == 1


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a row-major tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
