"""SqueezeNet 1.0 (Iandola et al., 2016, arXiv:1602.07360) and its lighter revision 1.1."""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, Parallel, conv_relu

# Per stage, the squeeze widths of its fire modules; each of the two expansions is four times as wide.
_SQUEEZES_1_0 = ((16, 16, 32), (32, 48, 48, 64), (64,))
_SQUEEZES_1_1 = ((16, 16), (32, 32), (48, 48, 64, 64))
_EXPANSION = 4


def _fire(in_channels: int, squeeze: int) -> nn.Sequential:
    expand = squeeze * _EXPANSION
    return nn.Sequential(
        conv_relu(in_channels, squeeze, 1),
        Parallel(conv_relu(squeeze, expand, 1), conv_relu(squeeze, expand, 3, padding=1)),
    )


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _squeezenet(stem: nn.Sequential, width: int, squeezes: tuple[tuple[int, ...], ...], classes: int) -> Chain:
    stages: list[nn.Sequential] = []
    for index, stage in enumerate(squeezes):
        blocks: list[nn.Module] = [] if index == 0 else [_pool()]
        for squeeze in stage:
            blocks.append(_fire(width, squeeze))
            width = 2 * squeeze * _EXPANSION
        stages.append(nn.Sequential(*blocks))
    head = nn.Sequential(
        nn.Dropout(0.5), nn.Conv2d(width, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return Chain(stem, stages, head)


def _stem(in_channels: int, width: int, kernel: int, *, small_images: bool) -> nn.Sequential:
    if small_images:
        return conv_relu(in_channels, width, 3, stride=2, padding=1)
    return nn.Sequential(*conv_relu(in_channels, width, kernel, stride=2), _pool())


def squeezenet1_0(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """SqueezeNet as published: 7x7/2 stem of 96 channels. For small images the stem is 3x3/2 without a pool."""
    return _squeezenet(_stem(in_channels, 96, 7, small_images=small_images), 96, _SQUEEZES_1_0, num_classes)


def squeezenet1_1(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """SqueezeNet 1.1: 3x3/2 stem of 64 channels, pools earlier. For small images the stem has no pool."""
    return _squeezenet(_stem(in_channels, 64, 3, small_images=small_images), 64, _SQUEEZES_1_1, num_classes)
