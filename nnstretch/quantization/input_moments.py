"""Second moments of what the weights of a layer are multiplied with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import helper

from nnstretch.quantization.rounding_search import Floats

_PLACES = 8192
"""Places of the output that moments are taken of, spread evenly over the examples; more where weights are many."""
_PLACES_PER_INPUT = 4
"""Places per input of an output channel at least, if there are as many: with fewer, moments say little."""


class WeightMatrix:
    """The weights of a layer as matrices, one per group, and its inputs as their factors.

    Args:
        node: Conv, Gemm without transposed input, or MatMul, whose second input is constant.
        shape: of the weights.
    """

    def __init__(self, node: onnx.NodeProto, shape: Sequence[int]) -> None:
        self._attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        self._is_convolution, self._shape = node.op_type == "Conv", tuple(shape)
        self.groups = int(self._attributes.get("group", 1)) if self._is_convolution else 1
        self._outputs_first = self._is_convolution or bool(self._attributes.get("transB", 0))

    @property
    def inputs(self) -> int:
        """Number of weights of an output channel."""
        return int(np.prod(self._shape[1:])) if self._outputs_first else self._shape[0]

    def of(self, weights: np.ndarray) -> Floats:
        """Weights as groups × inputs of an output × outputs of a group."""
        wide = weights.astype(np.float64)
        if not self._outputs_first:
            return wide[None].copy()
        return np.ascontiguousarray(np.swapaxes(wide.reshape(self.groups, -1, self.inputs), 1, 2))

    def back(self, matrices: Floats) -> Floats:
        """Such matrices as weights."""
        return np.asarray((np.swapaxes(matrices, 1, 2) if self._outputs_first else matrices).reshape(self._shape))

    def moments(self, exact: Sequence[np.ndarray], rounded: Sequence[np.ndarray]) -> tuple[Floats, Floats]:
        """X̂X̂ᵀ and X̂Xᵀ of the layer's inputs: groups × inputs × inputs.

        Args:
            exact: its input in float32, for every example.
            rounded: its input behind layers in int8.
        """
        per_example = -(-max(_PLACES, _PLACES_PER_INPUT * self.inputs) // len(exact))
        shape = (self.groups, self.inputs, self.inputs)
        hessian, cross = np.zeros(shape), np.zeros(shape)
        for number, (x, near) in enumerate(zip(exact, rounded, strict=True)):
            one = self._factors(x, per_example, number)
            other = one if near is x else self._factors(near, per_example, number)
            hessian += other @ np.swapaxes(other, 1, 2)
            cross += other @ np.swapaxes(one, 1, 2)
        return hessian, cross

    def _factors(self, x: np.ndarray, count: int, number: int) -> np.ndarray:
        """What the weights are multiplied with at some places: groups × inputs × places.

        Args:
            x: input of the layer.
            count: places at most.
            number: of the example; different examples have different places.
        """
        if not self._is_convolution:
            rows = x.reshape(-1, x.shape[-1])
            return np.ascontiguousarray(rows[_spread(len(rows), count, number)].T)[None]
        places = self._places(x)
        columns = _spread(len(places[0][0]) * len(x), count, number)
        images, at = np.divmod(columns, len(places[0][0]))
        padded = self._padded(x)
        maps = padded.reshape(*padded.shape[:2], -1)
        taps = np.stack([maps[images, :, offsets[at]] for offsets in self._offsets(places, padded.shape[2:])])
        # taps × places × channels -> groups × (channels of a group × taps) × places
        grouped = taps.reshape(len(taps), len(columns), self.groups, -1)
        return np.ascontiguousarray(grouped.transpose(2, 3, 0, 1)).reshape(self.groups, self.inputs, -1)

    def _axes(self, name: str) -> list[int]:
        rank = len(self._shape) - 2
        return [int(v) for v in self._attributes.get(name, [1] * rank)]

    def _pads(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Pads of every axis, before and after."""
        rank, kernel = len(sizes), self._shape[2:]
        how = self._attributes.get("auto_pad", b"NOTSET")
        if how in (b"NOTSET", b"VALID"):
            pads = self._attributes.get("pads", [0] * 2 * rank) if how == b"NOTSET" else [0] * 2 * rank
            return [(int(pads[i]), int(pads[i + rank])) for i in range(rank)]
        found = []
        for size, k, stride, dilation in zip(
            sizes, kernel, self._axes("strides"), self._axes("dilations"), strict=True
        ):
            total = max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size)
            small = total // 2
            found.append((small, total - small) if how == b"SAME_UPPER" else (total - small, small))
        return found

    def _padded(self, x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, 0), (0, 0), *self._pads(x.shape[2:])])

    def _places(self, x: np.ndarray) -> list[np.ndarray]:
        """First coordinates of every output place along each axis: axes × 1 × places."""
        counts = []
        for size, pads, k, stride, dilation in zip(
            x.shape[2:], self._pads(x.shape[2:]), self._shape[2:], self._axes("strides"), self._axes("dilations"),
            strict=True,
        ):  # fmt: skip
            counts.append((size + sum(pads) - (k - 1) * dilation - 1) // stride + 1)
        grid = np.indices(counts).reshape(len(counts), 1, -1)
        return [axis * stride for axis, stride in zip(grid, self._axes("strides"), strict=True)]

    def _offsets(self, places: Sequence[np.ndarray], sizes: Sequence[int]) -> Iterator[np.ndarray]:
        """For every tap of the kernel, the index of its number in a flat padded map, at all places."""
        for tap in np.ndindex(*self._shape[2:]):
            at = [p[0] + t * d for p, t, d in zip(places, tap, self._axes("dilations"), strict=True)]
            yield np.ravel_multi_index(at, tuple(sizes))


def _spread(total: int, count: int, number: int) -> np.ndarray:
    """At most `count` of `total` indices, evenly spread; shifted from example to example."""
    if total <= count:
        return np.arange(total)
    shift = number * 0.618033988749895 % 1.0  # golden ratio: shifts of any number of examples lie apart
    return ((np.arange(count) + shift) * total / count).astype(np.int64)
