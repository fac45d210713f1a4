"""RegNetX (Radosavovic et al., 2020, arXiv:2003.13678)."""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, bottleneck, classifier, conv_bn

_STEM_WIDTH = 32
_GROUP_WIDTH = 24
_DEPTHS = (2, 4, 10, 2)
_WIDTHS = (72, 168, 408, 912)


def regnet_x_1_6gf(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """RegNetX-1.6GF; its stem is 3x3/2 for images of every size."""
    del small_images
    stages: list[nn.Sequential] = []
    width = _STEM_WIDTH
    for depth, out in zip(_DEPTHS, _WIDTHS, strict=True):
        blocks = [bottleneck(width, out, 2, inner=out, groups=out // _GROUP_WIDTH)]
        blocks += [bottleneck(out, out, 1, inner=out, groups=out // _GROUP_WIDTH) for _ in range(depth - 1)]
        stages.append(nn.Sequential(*blocks))
        width = out
    return Chain(
        nn.Sequential(*conv_bn(in_channels, _STEM_WIDTH, 3, stride=2)),
        stages,
        nn.Sequential(*classifier(width, num_classes)),
    )
