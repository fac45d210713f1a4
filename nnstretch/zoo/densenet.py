"""DenseNet (Huang et al., 2016, arXiv:1608.06993), with bottlenecks and compression (DenseNet-BC)."""

from __future__ import annotations

from functools import partial

from torch import nn

from nnstretch.zoo.blocks import Chain, Parallel, classifier, imagenet_stem

_BOTTLENECK = 4


def _bn_relu_conv(in_channels: int, out_channels: int, kernel: int) -> list[nn.Module]:
    return [
        nn.BatchNorm2d(in_channels),
        nn.ReLU(),
        nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False),
    ]


def _dense_layer(in_channels: int, growth: int) -> Parallel:
    """Appends ``growth`` channels to its input."""
    inner = _BOTTLENECK * growth
    body = nn.Sequential(*_bn_relu_conv(in_channels, inner, 1), *_bn_relu_conv(inner, growth, 3))
    return Parallel(nn.Identity(), body)


def _transition(in_channels: int) -> nn.Sequential:
    """Halves channels and resolution."""
    return nn.Sequential(*_bn_relu_conv(in_channels, in_channels // 2, 1), nn.AvgPool2d(2))


def _densenet(depths: tuple[int, ...], growth: int, num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """A stage is a transition (except in the first stage) and its dense layers; the stem is twice ``growth`` wide."""
    stages: list[nn.Sequential] = []
    stem_width = width = 2 * growth
    for index, depth in enumerate(depths):
        blocks: list[nn.Module] = []
        if index > 0:
            blocks.append(_transition(width))
            width //= 2
        for _ in range(depth):
            blocks.append(_dense_layer(width, growth))
            width += growth
        stages.append(nn.Sequential(*blocks))
    head = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), *classifier(width, num_classes))
    return Chain(imagenet_stem(in_channels, stem_width, small_images=small_images), stages, head)


# Depths, and growth.
densenet121 = partial(_densenet, (6, 12, 24, 16), 32)
densenet161 = partial(_densenet, (6, 12, 36, 24), 48)
densenet169 = partial(_densenet, (6, 12, 32, 32), 32)
densenet201 = partial(_densenet, (6, 12, 48, 32), 32)
