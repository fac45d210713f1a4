"""Networks of residual blocks: ResNet, RegNetX and ResNetXY.

ResNet: He et al., 2015, arXiv:1512.03385, with the stride of a bottleneck on its 3x3 convolution.
RegNetX: Radosavovic et al., 2020, arXiv:2003.13678; its stem is 3x3/2 for all image sizes.
ResNetXY (ACLTuner, table 5) is ResNet-50 with odd channel counts and even kernel sizes. The table gives kernels, widths and
output sizes. As in ResNet-50, shortcuts that change the shape are 1x1 projections and a stage's stride is on its first 6x6
convolution; padding keeps the resolution wherever the stride is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from nnstretch.zoo.blocks import Chain, Residual, bottleneck, classifier, conv_bn, imagenet_stem, with_shortcut

_RESNET_STEM, _REGNET_STEM, _XY_STEM = 64, 32, 51  # widths
_BOTTLENECK_EXPANSION = 4
_XY_EXPANSION = 2

_Block = Callable[[int, int, int], Residual]
"""Makes a block from input channels, output channels and stride."""


def _stages(width: int, block: _Block, depths: Sequence[int], widths: Sequence[int], first: int) -> list[nn.Sequential]:
    """Stages of equal blocks: the first block of a stage has stride 2, that of the first stage the stride `first`."""
    stages: list[nn.Sequential] = []
    for depth, out in zip(depths, widths, strict=True):
        stride = 2 if stages else first
        stages.append(nn.Sequential(block(width, out, stride), *(block(out, out, 1) for _ in range(depth - 1))))
        width = out
    return stages


def _basic_block(in_channels: int, out_channels: int, stride: int) -> Residual:
    body = nn.Sequential(
        conv_bn(in_channels, out_channels, 3, stride=stride), conv_bn(out_channels, out_channels, 3, activation=None)
    )
    return with_shortcut(body, in_channels, out_channels, stride)


def _bottleneck(in_channels: int, out_channels: int, stride: int) -> Residual:
    return bottleneck(in_channels, out_channels, stride, inner=out_channels // _BOTTLENECK_EXPANSION)


def _resnet(block: _Block, depths: tuple[int, ...], num_classes: int, in_channels: int, small_images: bool) -> Chain:
    first_width = _RESNET_STEM if block is _basic_block else _RESNET_STEM * _BOTTLENECK_EXPANSION
    widths = [first_width << index for index in range(len(depths))]
    return Chain(
        imagenet_stem(in_channels, _RESNET_STEM, small_images=small_images),
        _stages(_RESNET_STEM, block, depths, widths, 1),
        nn.Sequential(*classifier(widths[-1], num_classes)),
    )


# Kind of block, and depths.
resnet18 = partial(_resnet, _basic_block, (2, 2, 2, 2))
resnet34 = partial(_resnet, _basic_block, (3, 4, 6, 3))
resnet50 = partial(_resnet, _bottleneck, (3, 4, 6, 3))
resnet101 = partial(_resnet, _bottleneck, (3, 4, 23, 3))
resnet152 = partial(_resnet, _bottleneck, (3, 8, 36, 3))


def _regnet_x(
    group_width: int,
    depths: tuple[int, ...],
    widths: tuple[int, ...],
    num_classes: int,
    in_channels: int,
    small_images: bool,
) -> Chain:
    del small_images

    def block(width: int, out: int, stride: int) -> Residual:
        return bottleneck(width, out, stride, inner=out, groups=out // group_width)

    return Chain(
        nn.Sequential(*conv_bn(in_channels, _REGNET_STEM, 3, stride=2)),
        _stages(_REGNET_STEM, block, depths, widths, 2),
        nn.Sequential(*classifier(widths[-1], num_classes)),
    )


# Channels per group, depths and widths.
regnet_x_1_6gf = partial(_regnet_x, 24, (2, 4, 10, 2), (72, 168, 408, 912))
regnet_x_4gf = partial(_regnet_x, 40, (2, 5, 14, 2), (80, 240, 560, 1360))


def _even_conv(in_channels: int, out_channels: int, kernel: int, stride: int) -> nn.Sequential:
    """Pads an even kernel asymmetrically at stride 1: one pixel more at the bottom and right."""
    before = (kernel - 1) // 2
    after = kernel - 1 - before if stride == 1 else before
    convolution = conv_bn(in_channels, out_channels, kernel, stride=stride, padding=0)
    return nn.Sequential(nn.ZeroPad2d((before, after, before, after)), *convolution)


def _xy_block(in_channels: int, out_channels: int, stride: int) -> Residual:
    inner = out_channels // _XY_EXPANSION
    body = nn.Sequential(
        _even_conv(in_channels, inner, 4, 1),
        _even_conv(inner, inner, 6, stride),
        conv_bn(inner, out_channels, 1, activation=None),
    )
    return with_shortcut(body, in_channels, out_channels, stride)


def resnetxy(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """ResNetXY; for small images the stem is 4x4/2 without a pool instead of 14x14/2 with one."""
    kernel, padding = (4, 1) if small_images else (14, 6)
    stem = list(conv_bn(in_channels, _XY_STEM, kernel, stride=2, padding=padding))
    if not small_images:
        stem.append(nn.MaxPool2d(3, stride=2, padding=1))
    widths = [_XY_EXPANSION * inner for inner in (77, 97, 279, 511)]
    stages = _stages(_XY_STEM, _xy_block, (3, 4, 6, 3), widths, 1)
    return Chain(nn.Sequential(*stem), stages, nn.Sequential(*classifier(widths[-1], num_classes)))
