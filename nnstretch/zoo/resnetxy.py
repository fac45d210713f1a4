"""ResNetXY of ACLTuner (table 5): ResNet-50 with odd channel counts and even kernel sizes.

The table gives kernels, widths and output sizes. As in the zoo's ResNet-50, shortcuts that change the shape
are 1x1 projections and a stage's stride is on its first 6x6 convolution; padding keeps the resolution
wherever the stride is 1.
"""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, Residual, classifier, conv_bn, with_shortcut

_STEM_WIDTH = 51
_STAGES = ((3, 77), (4, 97), (6, 279), (3, 511))  # blocks, and width of their first two convolutions
_EXPANSION = 2


def _even_conv(in_channels: int, out_channels: int, kernel: int, stride: int) -> nn.Sequential:
    """Pads an even kernel asymmetrically at stride 1: one pixel more at the bottom and right."""
    before = (kernel - 1) // 2
    after = kernel - 1 - before if stride == 1 else before
    convolution = conv_bn(in_channels, out_channels, kernel, stride=stride, padding=0)
    return nn.Sequential(nn.ZeroPad2d((before, after, before, after)), *convolution)


def _block(in_channels: int, inner: int, stride: int) -> Residual:
    out_channels = inner * _EXPANSION
    body = nn.Sequential(
        _even_conv(in_channels, inner, 4, 1),
        _even_conv(inner, inner, 6, stride),
        conv_bn(inner, out_channels, 1, activation=None),
    )
    return with_shortcut(body, in_channels, out_channels, stride)


def resnetxy(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """ResNetXY; for small images the stem is 4x4/2 without a pool instead of 14x14/2 with one."""
    stem = list(
        conv_bn(in_channels, _STEM_WIDTH, 4 if small_images else 14, stride=2, padding=1 if small_images else 6)
    )
    if not small_images:
        stem.append(nn.MaxPool2d(3, stride=2, padding=1))
    stages: list[nn.Sequential] = []
    width = _STEM_WIDTH
    for index, (depth, inner) in enumerate(_STAGES):
        blocks = []
        for number in range(depth):
            blocks.append(_block(width, inner, 2 if index and not number else 1))
            width = inner * _EXPANSION
        stages.append(nn.Sequential(*blocks))
    return Chain(nn.Sequential(*stem), stages, nn.Sequential(*classifier(width, num_classes)))
