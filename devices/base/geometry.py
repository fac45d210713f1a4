"""Geometry of convolutions and pooling windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nnstretch.graph.layer import Layer

Pair = tuple[int, int]


@dataclass(frozen=True)
class KernelGeometry:
    """How a kernel or pooling window moves over an image; pairs are (vertical, horizontal).

    Attributes:
        batch: number of images.
        channels, height, width: size of the input.
        out_channels, out_height, out_width: size of the output.
        kernel, strides, dilations: of the kernel.
        pads: pixels added at the top and at the left; the output size determines those at the bottom and the right.
        groups: number of channel groups.
    """

    batch: int
    channels: int
    height: int
    width: int
    out_channels: int
    out_height: int
    out_width: int
    kernel: Pair
    strides: Pair
    pads: Pair
    dilations: Pair = (1, 1)
    groups: int = 1

    @classmethod
    def of(cls, layer: Layer) -> KernelGeometry:
        """The geometry of a Conv, MaxPool, AveragePool or GlobalPool layer."""
        if layer.op == "GlobalPool":
            shape = layer.type_of(0).shape
            return cls.between(shape, layer.outputs[0].shape, shape[2:], (1, 1), (0, 0))
        kernel = layer.type_of(1).shape[2:] if layer.op == "Conv" else layer.ints("kernel")
        dilations = layer.ints("dilations") if "dilations" in layer.attributes else (1, 1)
        groups = layer.integer("groups", 1)
        shapes = layer.type_of(0).shape, layer.outputs[0].shape
        return cls.between(*shapes, kernel, layer.ints("strides"), layer.ints("pads"), dilations, groups)

    @classmethod
    def between(
        cls,
        source: Sequence[int],
        result: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int] = (1, 1),
        groups: int = 1,
    ) -> KernelGeometry:
        """The geometry between two tensors of shapes N,C,H,W; entries of `pads` after top and left are ignored."""
        batch, channels, height, width = source
        _, out_channels, out_height, out_width = result
        sizes = (batch, channels, height, width, out_channels, out_height, out_width)
        size, step, begin, spread = ((pair[0], pair[1]) for pair in (kernel, strides, pads, dilations))
        return cls(*sizes, size, step, begin, spread, groups)

    @property
    def taps(self) -> int:
        """Number of kernel positions."""
        return self.kernel[0] * self.kernel[1]

    @property
    def pixels(self) -> int:
        """Number of output positions."""
        return self.out_height * self.out_width

    @property
    def group_in(self) -> int:
        """Input channels per group."""
        return self.channels // self.groups

    @property
    def group_out(self) -> int:
        """Output channels per group."""
        return self.out_channels // self.groups

    @property
    def size(self) -> Pair:
        """Height and width of the input."""
        return self.height, self.width

    @property
    def out_size(self) -> Pair:
        """Height and width of the output."""
        return self.out_height, self.out_width

    @property
    def extents(self) -> Pair:
        """Pixels from the first to the last tap."""
        (kh, kw), (dh, dw) = self.kernel, self.dilations
        return (kh - 1) * dh + 1, (kw - 1) * dw + 1

    @property
    def ends(self) -> Pair:
        """Padding at the bottom and at the right in pixels."""
        return self._end(0), self._end(1)

    def _end(self, axis: int) -> int:
        last = (self.out_size[axis] - 1) * self.strides[axis] - self.pads[axis]
        return max(0, last + self.extents[axis] - self.size[axis])

    @property
    def is_same(self) -> bool:
        """Whether the padding is TFLite's SAME: ceil(size / stride) outputs, half of the padding in front."""
        return all(
            result == -(-size // stride) and begin == (begin + end) // 2
            for result, size, stride, begin, end in zip(
                self.out_size, self.size, self.strides, self.pads, self.ends, strict=True
            )
        )

    @property
    def is_valid(self) -> bool:
        """Whether the padding is TFLite's VALID: no padding at all."""
        return not any((*self.pads, *self.ends))

    def counted(self, axis: int) -> list[int]:
        """Image pixels that each undilated window covers along an axis."""
        counts: list[int] = []
        for i in range(self.out_size[axis]):
            first = i * self.strides[axis] - self.pads[axis]
            last = min(first + self.kernel[axis], self.size[axis])
            counts.append(last - max(first, 0))
        return counts

    def flattened(self) -> KernelGeometry:
        """The same convolution; the plane of a pointwise one becomes a single row."""
        if self.kernel != (1, 1):
            return self
        if self.strides != (1, 1) or self.pads != (0, 0) or self.out_size != self.size:
            return replace(self, dilations=(1, 1))
        height, out_height = 1, 1
        width, out_width = self.height * self.width, self.out_height * self.out_width
        return replace(self, height=height, width=width, out_height=out_height, out_width=out_width, dilations=(1, 1))
