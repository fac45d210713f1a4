"""Width-agnostic modules inserted into traced graphs: each works at any width as it does at full width."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

PER_CHANNEL: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "truediv": torch.div,
}
"""Operations between a tensor and one number per channel, by name."""

DROPPING = frozenset({"StochasticDepth", "DropPath"})
"""Class names of stochastic-depth modules: they drop whole samples in training and do nothing in evaluation mode."""


class ChannelNorm(nn.Module):
    """Layer normalisation over dimension 1: per pixel of an `N,C,H,W` map (ConvNeXt), or of an `N,C` vector.

    Attributes:
        weight, bias: one element per channel, or None.
        eps: added to the variance.
    """

    def __init__(self, weight: nn.Parameter | None, bias: nn.Parameter | None, eps: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = weight, bias, eps

    def forward(self, x: Tensor) -> Tensor:
        """From `N,C(,H,W)` to the same shape."""
        last = x.movedim(1, -1)
        normed = functional.layer_norm(last, last.shape[-1:], self.weight, self.bias, self.eps)
        return normed.movedim(-1, 1)


class PerChannel(nn.Module):
    """One element-wise operation between every channel and a number of its own, such as a layer scale.

    Attributes:
        operation: called with the tensor and the numbers, in this order.
        value: one number per channel, with any number of axes of length 1; becomes a parameter if it is one, else a buffer.
    """

    value: Tensor

    def __init__(self, operation: Callable[[Tensor, Tensor], Tensor], value: Tensor) -> None:
        super().__init__()
        self.operation = operation
        flat = value.detach().reshape(-1)
        if isinstance(value, nn.Parameter):
            self.value = nn.Parameter(flat, value.requires_grad)
        else:
            self.register_buffer("value", flat)

    def forward(self, x: Tensor) -> Tensor:
        """From `N,C(,H,W)` to the same shape."""
        return self.operation(x, self.value.reshape(-1, *[1] * (x.dim() - 2)))


class ChannelSlice(nn.Module):
    """The channels `first` to `stop` (exclusive) of `total`. A narrower input yields the same share of its channels.

    Attributes:
        first: first channel at full width.
        stop: end of the range at full width.
        total: channels of the full-width input.
    """

    def __init__(self, first: int, stop: int, total: int) -> None:
        super().__init__()
        self.first, self.stop, self.total = first, stop, total

    @property
    def regular(self) -> bool:
        """Whether it is one of several slices of equal size that partition the input."""
        length = self.stop - self.first
        return self.total % length == 0 and self.first % length == 0

    def bounds(self, channels: int) -> tuple[int, int]:
        """First channel and end of the slice of an input with `channels` channels."""
        return self.first * channels // self.total, self.stop * channels // self.total

    def forward(self, x: Tensor) -> Tensor:
        """From `N,C(,H,W)` to the slice's share of the channels."""
        first, stop = self.bounds(x.shape[1])
        return x[:, first:stop]

    def extra_repr(self) -> str:
        return f"{self.first}, {self.stop}, {self.total}"


class HeadSlice(nn.Module):
    """The channels `first` to `stop` (exclusive) of every head of `width` channels. A narrower input has fewer whole heads.

    Attributes:
        first: first channel of a head's slice.
        stop: end of the slice.
        width: channels of a head.
    """

    def __init__(self, first: int, stop: int, width: int) -> None:
        super().__init__()
        self.first, self.stop, self.width = first, stop, width

    @property
    def length(self) -> int:
        """Channels of a head's slice."""
        return self.stop - self.first

    def forward(self, x: Tensor) -> Tensor:
        """From `N,heads*width,H,W` to `N,heads*length,H,W`."""
        heads = torch.unflatten(x, 1, (x.shape[1] // self.width, self.width))
        return heads[:, :, self.first : self.stop].flatten(1, 2)

    def extra_repr(self) -> str:
        return f"{self.first}, {self.stop}, {self.width}"


class ChannelShuffle(nn.Module):
    """ShuffleNet's channel shuffle: interleaves `groups` equal parts.

    Attributes:
        groups: number of parts.
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """From `N,C,H,W` to the same shape."""
        parts = torch.unflatten(x, 1, (self.groups, x.shape[1] // self.groups))
        return parts.transpose(1, 2).flatten(1, 2)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"
