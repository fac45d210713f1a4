"""DenseNet (Huang et al., 2016, arXiv:1608.06993), with bottlenecks and compression (DenseNet-BC)."""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, Parallel, classifier, imagenet_stem

_STEM_WIDTH = 64
_GROWTH = 32
_BOTTLENECK = 4
_DEPTHS_121 = (6, 12, 24, 16)


def _bn_relu_conv(in_channels: int, out_channels: int, kernel: int) -> list[nn.Module]:
    return [
        nn.BatchNorm2d(in_channels),
        nn.ReLU(),
        nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False),
    ]


def _dense_layer(in_channels: int) -> Parallel:
    """Reads ``in_channels`` and appends ``_GROWTH`` channels to them."""
    inner = _BOTTLENECK * _GROWTH
    body = nn.Sequential(*_bn_relu_conv(in_channels, inner, 1), *_bn_relu_conv(inner, _GROWTH, 3))
    return Parallel(nn.Identity(), body)


def _transition(in_channels: int) -> nn.Sequential:
    """Halves channels and resolution."""
    return nn.Sequential(*_bn_relu_conv(in_channels, in_channels // 2, 1), nn.AvgPool2d(2))


def densenet121(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """DenseNet-121. A stage is a transition (but for the first) and its dense layers."""
    stages: list[nn.Sequential] = []
    width = _STEM_WIDTH
    for index, depth in enumerate(_DEPTHS_121):
        blocks: list[nn.Module] = []
        if index > 0:
            blocks.append(_transition(width))
            width //= 2
        for _ in range(depth):
            blocks.append(_dense_layer(width))
            width += _GROWTH
        stages.append(nn.Sequential(*blocks))
    head = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), *classifier(width, num_classes))
    return Chain(imagenet_stem(in_channels, _STEM_WIDTH, small_images=small_images), stages, head)
