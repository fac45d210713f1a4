"""RegNetX (Radosavovic et al., 2020, arXiv:2003.13678)."""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, bottleneck, classifier, conv_bn

_STEM_WIDTH = 32


def _regnet_x(
    depths: tuple[int, ...], widths: tuple[int, ...], group_width: int, num_classes: int, in_channels: int
) -> Chain:
    """The stem is 3x3/2 for all image sizes."""
    stages: list[nn.Sequential] = []
    width = _STEM_WIDTH
    for depth, out in zip(depths, widths, strict=True):
        blocks = [bottleneck(width, out, 2, inner=out, groups=out // group_width)]
        blocks += [bottleneck(out, out, 1, inner=out, groups=out // group_width) for _ in range(depth - 1)]
        stages.append(nn.Sequential(*blocks))
        width = out
    return Chain(
        nn.Sequential(*conv_bn(in_channels, _STEM_WIDTH, 3, stride=2)),
        stages,
        nn.Sequential(*classifier(width, num_classes)),
    )


def regnet_x_1_6gf(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """RegNetX-1.6GF: groups of 24 channels."""
    del small_images
    return _regnet_x((2, 4, 10, 2), (72, 168, 408, 912), 24, num_classes, in_channels)


def regnet_x_4gf(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """RegNetX-4GF: groups of 40 channels."""
    del small_images
    return _regnet_x((2, 5, 14, 2), (80, 240, 560, 1360), 40, num_classes, in_channels)
