"""Transpose and Slice as one strided copy, with one stride per output dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.devices.base.routine import Layout
from nnstretch.graph.layer import Layer

DIMENSIONS = 6
"""Number of output dimensions that kernels expect."""

CHANNELS_LAST = (0, 2, 3, 1)
"""The permutation to N,H,W,C; kernels for it read the blocked layout."""


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

    def padded(self) -> StridedCopy:
        """The same copy padded to `DIMENSIONS` dimensions; it must not have more."""
        missing = DIMENSIONS - len(self.sizes)
        return StridedCopy((1,) * missing + self.sizes, (0,) * missing + self.strides, self.first)


def strided_copy(layer: Layer, block: int = 0) -> StridedCopy:
    """The merged copy that computes a Transpose of plain data, or a Slice in the layout of `block`.

    A slice of blocked data must satisfy `slices_blocks`.
    """
    source, result = layer.type_of(0).shape, layer.outputs[0].shape
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


def slices_blocks(layer: Layer, block: int) -> bool:
    """Whether a Slice has rank 4, starts at the first channel of a block and has a channel step of 1."""
    return len(layer.type_of(0).shape) == 4 and layer.ints("starts")[1] % block == 0 and layer.ints("steps")[1] == 1


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a row-major tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
