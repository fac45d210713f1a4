"""MobileNetV2 at width 1.0 (Sandler et al., 2018, arXiv:1801.04381, table 2)."""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, InvertedRow, classifier, conv_bn, inverted_stages

_STEM_WIDTH = 32
_HEAD_WIDTH = 1280
_ROWS = (
    InvertedRow(expansion=1, width=16, repeats=1, stride=1),
    InvertedRow(expansion=6, width=24, repeats=2, stride=2),
    InvertedRow(expansion=6, width=32, repeats=3, stride=2),
    InvertedRow(expansion=6, width=64, repeats=4, stride=2),
    InvertedRow(expansion=6, width=96, repeats=3, stride=1),
    InvertedRow(expansion=6, width=160, repeats=3, stride=2),
    InvertedRow(expansion=6, width=320, repeats=1, stride=1),
)


def mobilenetv2(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """MobileNetV2; its stem is 3x3/2 for images of every size."""
    del small_images
    return Chain(
        nn.Sequential(*conv_bn(in_channels, _STEM_WIDTH, 3, stride=2, activation=nn.ReLU6)),
        inverted_stages(_STEM_WIDTH, _ROWS),
        nn.Sequential(
            conv_bn(_ROWS[-1].width, _HEAD_WIDTH, 1, activation=nn.ReLU6),
            *classifier(_HEAD_WIDTH, num_classes, dropout=0.2),
        ),
    )
