"""Building blocks shared by the network families. Tensors are float ``N,C,H,W`` batches unless stated otherwise.

Blocks consist of ``torch.nn`` modules alone (no functional calls except ``+``, ``*`` and ``torch.cat``), so
that ``torch.fx`` and ``torch.export`` record every layer with a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]


class Chain(nn.Module):
    """A network of three parts in sequence: ``stem``, ``stages`` and ``head``.

    ``stages`` is an ``nn.Sequential`` of stages, a stage an ``nn.Sequential`` of blocks. All blocks of a
    stage write one resolution; only its first block, which may be a pool, reads another one.
    """

    def __init__(self, stem: nn.Sequential, stages: Iterable[nn.Sequential], head: nn.Sequential) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.Sequential(*stages)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """From ``N,C,H,W`` images to ``N x classes`` logits."""
        logits: Tensor = self.head(self.stages(self.stem(x)))
        return logits


class Residual(nn.Module):
    """``activation(body(x) + shortcut(x))``; both paths write the same shape."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """From ``N,C,H,W`` to the common output shape of both paths."""
        y: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return y


class Parallel(nn.Module):
    """Paths with a common input whose outputs are concatenated along the channels, in order."""

    def __init__(self, *paths: nn.Module) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)

    def forward(self, x: Tensor) -> Tensor:
        """From ``N,C,H,W`` to the channels of all paths, at their common resolution."""
        return torch.cat([path(x) for path in self.paths], dim=1)


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation (arXiv:1709.01507): scales channels by gates in [0, 1], computed from their means.

    The two 1x1 convolutions have biases and ``squeezed`` channels between them.
    """

    def __init__(self, channels: int, squeezed: int, activation: Activation, gate: Activation) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            activation(),
            nn.Conv2d(squeezed, channels, 1),
            gate(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """From ``N,C,H,W`` to the same shape."""
        y: Tensor = x * self.gate(x)
        return y


def conv_bn(
    in_channels: int,
    out_channels: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    groups: int = 1,
    padding: int | None = None,
    activation: Activation | None = nn.ReLU,
    eps: float = 1e-5,
) -> nn.Sequential:
    """A convolution without bias, batch norm, and optionally an activation.

    The padding is ``padding`` on every side, or ``kernel // 2`` along each axis.
    """
    sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    pads = (sides[0] // 2, sides[1] // 2) if padding is None else (padding, padding)
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, out_channels, sides, stride, pads, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels, eps=eps),
    ]
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)


def conv_relu(in_channels: int, out_channels: int, kernel: int, *, stride: int = 1, padding: int = 0) -> nn.Sequential:
    """A convolution with bias and ReLU, for the families that predate batch norm."""
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, kernel, stride, padding), nn.ReLU())


def imagenet_stem(in_channels: int, out_channels: int, *, small_images: bool) -> nn.Sequential:
    """The stem of ResNet and DenseNet: 7x7/2 and a 3x3/2 max pool; for small images only 3x3/2."""
    if small_images:
        return nn.Sequential(*conv_bn(in_channels, out_channels, 3, stride=2))
    return nn.Sequential(*conv_bn(in_channels, out_channels, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1))


def classifier(channels: int, num_classes: int, *, dropout: float = 0.0) -> list[nn.Module]:
    """The layers from an ``N,C,H,W`` tensor to ``N x num_classes`` logits."""
    drop: list[nn.Module] = [nn.Dropout(dropout)] if dropout > 0 else []
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *drop, nn.Linear(channels, num_classes)]


def with_shortcut(body: nn.Sequential, in_channels: int, out_channels: int, stride: int) -> Residual:
    """``body`` with ReLU after the addition; the shortcut is a 1x1 projection where the shape changes."""
    same = stride == 1 and in_channels == out_channels
    shortcut = nn.Identity() if same else conv_bn(in_channels, out_channels, 1, stride=stride, activation=None)
    return Residual(body, shortcut, nn.ReLU())


def bottleneck(in_channels: int, out_channels: int, stride: int, *, inner: int, groups: int = 1) -> Residual:
    """1x1, 3x3 (which carries the stride), 1x1, with a shortcut: the block of ResNet-50 and of RegNetX."""
    body = nn.Sequential(
        conv_bn(in_channels, inner, 1),
        conv_bn(inner, inner, 3, stride=stride, groups=groups),
        conv_bn(inner, out_channels, 1, activation=None),
    )
    return with_shortcut(body, in_channels, out_channels, stride)
