"""Modules on tokens and windows as maps `N,C,H,W`: each works at any width and batch size as it does at full width."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from nnstretch.passes.tokens.movement import Factor, Movement


class Rearranged(nn.Module):
    """Reshapes and transpositions of a map, such as a partition into windows or patches.

    Attributes:
        sizes: sizes that height, width and batch are divided into, in the order of the map; 0 stands for the channels,
            -1 for what contains the batch.
        order: permutation of `sizes`.
        shape: of the result; 0 and -1 as before.
    """

    def __init__(self, movement: Movement, channels: Factor) -> None:
        """Makes the module.

        Args:
            movement: from a map to the result.
            channels: the channels of the map. Where an axis of the result is exactly these, any width is accepted.
        """
        super().__init__()
        factors = [factor for axis in movement.axes for factor in axis]
        ordered = sorted(factors, key=lambda factor: -factor.stride)
        kept = any(axis == (channels,) for axis in movement.axes)
        self.sizes = [-1, *(0 if kept and factor == channels else factor.size for factor in ordered[1:])]
        self.order = [ordered.index(factor) for factor in factors]
        self.shape = [
            -1 if ordered[0] in axis else 0 if axis == (channels,) else math.prod(factor.size for factor in axis)
            for axis in movement.axes
        ]

    @property
    def transposes(self) -> bool:
        """Whether it exchanges height and width."""
        return len(self.shape) == 4 and self.sizes[1] == self.shape[1] and self.order == [0, 1, 3, 2]

    @property
    def makes_map(self) -> bool:
        """Whether the result is a map with the same channels, at any width."""
        return len(self.shape) == 4 and self.shape[1] == 0

    def forward(self, x: Tensor) -> Tensor:
        """From `N,C,H,W` to `shape`."""
        channels = x.shape[1]
        parts = x.reshape([size or channels for size in self.sizes]).permute(self.order)
        return parts.reshape([size or channels for size in self.shape])

    def extra_repr(self) -> str:
        return f"{self.sizes}, {self.order}, {self.shape}"


class ToMap(nn.Module):
    """Tokens whose channels come last, `N,…,C`, as a map `N,C,L,1`."""

    def forward(self, x: Tensor) -> Tensor:
        """From `N,…,C` to `N,C,L,1`, where L is the product of the axes between."""
        return x.flatten(1, -2).transpose(1, 2).unsqueeze(3)


class PerElement(nn.Module):
    """A sum of every element of a map with a number of its own, such as a position embedding.

    Attributes:
        value: `C,H,W`.
    """

    value: Tensor

    def __init__(self, value: Tensor, *, learned: bool) -> None:
        super().__init__()
        if learned:
            self.value = nn.Parameter(value)
        else:
            self.register_buffer("value", value)

    def forward(self, x: Tensor) -> Tensor:
        """From `N,C,H,W` to the same shape."""
        return x + self.value


class WithTokens(nn.Module):
    """A map as a row of tokens between constant tokens, such as a class token.

    Attributes:
        before: `C,K`: tokens before the pixels.
        after: `C,K`: tokens after them.
    """

    before: Tensor
    after: Tensor

    def __init__(self, before: Tensor, after: Tensor, *, learned: bool) -> None:
        super().__init__()
        for name, value in (("before", before), ("after", after)):
            if learned and value.numel():
                setattr(self, name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        """From `N,C,H,W` to `N,C,K+H*W,1`."""
        ends = (value.expand(x.shape[0], -1, -1) for value in (self.before, self.after))
        first, last = ends
        return torch.cat([first, x.flatten(2), last], 2).unsqueeze(3)


class Tokens(nn.Module):
    """Some tokens of a map in row-major order.

    Attributes:
        first: first token.
        stop: end of the range; None for the token `first` alone, without its axis.
    """

    def __init__(self, first: int, stop: int | None) -> None:
        super().__init__()
        self.first, self.stop = first, stop

    def forward(self, x: Tensor) -> Tensor:
        """From `N,C,H,W` to `N,C`, or to `N,C,L,1` for a range of L tokens."""
        tokens = x.flatten(2)
        if self.stop is None:
            return tokens[:, :, self.first]
        return tokens[:, :, self.first : self.stop].unsqueeze(3)

    def extra_repr(self) -> str:
        return f"{self.first}, {self.stop}"


class Attention(nn.Module):
    """Attention of some heads between the pixels of maps.

    Attributes:
        query_width: channels of a head's queries and keys.
        value_width: channels of a head's values.
        shared: whether all heads read the same keys and values, so that these maps have the channels of one head.
        scale: factor of the scores.
        bias: `W,heads,L,L` added to the scores, with axes of length 1 where it is equal; None if there is none. Image i
            of a batch has the windows `i*W` to `i*W+W`.
    """

    bias: Tensor | None

    def __init__(
        self, query_width: int, value_width: int, scale: float, bias: Tensor | None, *, shared: bool, learned: bool
    ) -> None:
        super().__init__()
        self.query_width, self.value_width, self.scale, self.shared = query_width, value_width, scale, shared
        if bias is not None and learned:
            self.bias = nn.Parameter(bias)
        else:
            self.register_buffer("bias", bias)

    @property
    def has_head_bias(self) -> bool:
        """Whether the bias differs between heads."""
        return self.bias is not None and self.bias.shape[1] > 1

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attends.

        Args:
            query: `N,heads*query_width,H,W`.
            key: `N,heads*query_width,H',W'`; `shared`: of one head.
            value: `N,heads*value_width,H',W'`; `shared`: of one head.

        Returns:
            `N,heads*value_width,H,W`.
        """
        heads = query.shape[1] // self.query_width
        parts = (
            tensor.reshape(tensor.shape[0], tensor.shape[1] // width, width, -1).transpose(2, 3)
            for tensor, width in ((query, self.query_width), (key, self.query_width), (value, self.value_width))
        )
        q, k, v = (part.expand(-1, heads, -1, -1) for part in parts)
        bias = self.bias
        if bias is not None and bias.shape[0] > 1:
            bias = bias.repeat(query.shape[0] // bias.shape[0], 1, 1, 1)
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
        # Exported attention has other strides, so that nothing may rely on those found here.
        rows = found.transpose(2, 3).clone(memory_format=torch.contiguous_format)
        return rows.reshape(query.shape[0], heads * self.value_width, *query.shape[2:])

    def extra_repr(self) -> str:
        return f"{self.query_width}, {self.value_width}, scale={self.scale:g}, shared={self.shared}"
