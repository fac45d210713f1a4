"""ResNet (He et al., 2015, arXiv:1512.03385), with the stride of a bottleneck on its 3x3 convolution."""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import (
    Chain,
    Residual,
    bottleneck,
    classifier,
    conv_bn,
    imagenet_stem,
    with_shortcut,
)

_STEM_WIDTH = 64
_BOTTLENECK_EXPANSION = 4


def _basic_block(in_channels: int, out_channels: int, stride: int) -> Residual:
    body = nn.Sequential(
        conv_bn(in_channels, out_channels, 3, stride=stride),
        conv_bn(out_channels, out_channels, 3, activation=None),
    )
    return with_shortcut(body, in_channels, out_channels, stride)


def _bottleneck_block(in_channels: int, out_channels: int, stride: int) -> Residual:
    return bottleneck(in_channels, out_channels, stride, inner=out_channels // _BOTTLENECK_EXPANSION)


def _resnet(
    depths: tuple[int, ...], *, bottlenecks: bool, num_classes: int, in_channels: int, small_images: bool
) -> Chain:
    block = _bottleneck_block if bottlenecks else _basic_block
    stages: list[nn.Sequential] = []
    width = _STEM_WIDTH
    for index, depth in enumerate(depths):
        out = (_STEM_WIDTH << index) * (_BOTTLENECK_EXPANSION if bottlenecks else 1)
        first_stride = 1 if index == 0 else 2
        stages.append(nn.Sequential(block(width, out, first_stride), *(block(out, out, 1) for _ in range(depth - 1))))
        width = out
    stem = imagenet_stem(in_channels, _STEM_WIDTH, small_images=small_images)
    return Chain(stem, stages, nn.Sequential(*classifier(width, num_classes)))


def resnet18(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """ResNet-18: basic blocks, depths 2, 2, 2, 2."""
    return _resnet(
        (2, 2, 2, 2),
        bottlenecks=False,
        num_classes=num_classes,
        in_channels=in_channels,
        small_images=small_images,
    )


def resnet34(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """ResNet-34: basic blocks, depths 3, 4, 6, 3."""
    return _resnet(
        (3, 4, 6, 3),
        bottlenecks=False,
        num_classes=num_classes,
        in_channels=in_channels,
        small_images=small_images,
    )


def resnet50(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """ResNet-50: bottleneck blocks, depths 3, 4, 6, 3."""
    return _resnet(
        (3, 4, 6, 3),
        bottlenecks=True,
        num_classes=num_classes,
        in_channels=in_channels,
        small_images=small_images,
    )


def resnet101(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """ResNet-101: bottleneck blocks, depths 3, 4, 23, 3."""
    return _resnet(
        (3, 4, 23, 3),
        bottlenecks=True,
        num_classes=num_classes,
        in_channels=in_channels,
        small_images=small_images,
    )


def resnet152(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """ResNet-152: bottleneck blocks, depths 3, 8, 36, 3."""
    return _resnet(
        (3, 8, 36, 3),
        bottlenecks=True,
        num_classes=num_classes,
        in_channels=in_channels,
        small_images=small_images,
    )
