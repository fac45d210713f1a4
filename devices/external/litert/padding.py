"""Windows as TFLite has them: SAME, VALID, or pixels that are added before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """How a window runs over an image; all pairs are (vertical, horizontal).

    Attributes:
        kernel, strides, dilations: of the window.
        begins: pixels added at top and left.
        size: of the image that is read.
        result: of the image that is made.
    """

    kernel: Pair
    strides: Pair
    dilations: Pair
    begins: Pair
    size: Pair
    result: Pair

    @property
    def extents(self) -> Pair:
        """How many pixels the window reaches over."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))  # type: ignore[return-value]

    @property
    def ends(self) -> Pair:
        """Pixels at bottom and right beyond the image that windows read; what a model pads beyond that is not read."""
        reach = zip(self.result, self.strides, self.extents, self.begins, self.size, strict=True)
        return tuple(  # type: ignore[return-value]
            max(0, (result - 1) * stride + extent - begin - size) for result, stride, extent, begin, size in reach
        )

    @property
    def is_same(self) -> bool:
        """Whether it is what TFLite calls SAME: as many pixels made as strides fit, and half of the pads before."""
        if any(
            result != -(-size // stride)
            for result, size, stride in zip(self.result, self.size, self.strides, strict=True)
        ):
            return False
        return all(begin == (begin + end) // 2 for begin, end in zip(self.begins, self.ends, strict=True))

    @property
    def is_valid(self) -> bool:
        """Whether it never leaves the image."""
        return not any((*self.begins, *self.ends))


def make_window(
    source: Sequence[int],
    result: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int] = (1, 1),
) -> Window:
    """The window of a layer from its shapes (N,C,H,W) and attributes."""
    return Window(
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        (pads[0], pads[1]),
        (source[2], source[3]),
        (result[2], result[3]),
    )


def counted(window: Window, axis: int) -> list[int]:
    """How many pixels of the image each window covers along an axis."""
    counts: list[int] = []
    for i in range(window.result[axis]):
        first = i * window.strides[axis] - window.begins[axis]
        last = min(first + window.kernel[axis], window.size[axis])
        counts.append(last - max(first, 0))
    return counts
