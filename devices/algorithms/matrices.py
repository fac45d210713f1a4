"""Images of a MatMul: the axes in front of the matrices, merged."""

from __future__ import annotations

import math

from nnstretch.graph.layer import Layer


def matrix_images(layer: Layer) -> list[tuple[int, int, int]]:
    """Size and the strides of x and y of each dimension of images, outermost first, with as few dimensions as possible."""
    shape = layer.outputs[0].shape[:-2]
    strides = [_strides(layer.type_of(index).shape, len(shape)) for index in (0, 1)]
    found: list[tuple[int, int, int]] = []
    for size, of_x, of_y in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if found and found[-1][1:] == (size * of_x, size * of_y):
            found[-1] = (found[-1][0] * size, of_x, of_y)
        else:
            found.append((size, of_x, of_y))
    return found


def _strides(shape: tuple[int, ...], dimensions: int) -> list[int]:
    """Floats between images of an operand along each dimension of the result's images; 0 where it is repeated."""
    padded = (1,) * (dimensions + 2 - len(shape)) + shape
    return [0 if padded[axis] == 1 else math.prod(padded[axis + 1 :]) for axis in range(dimensions)]
