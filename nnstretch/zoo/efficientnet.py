"""EfficientNet-Lite4: EfficientNet (Tan and Le, 2019, arXiv:1905.11946) for edge processors.

Against EfficientNet: no squeeze-and-excitation, ReLU6 for SiLU, and the rest is made wider (x 1.4) and deeper
(x 1.8) while stem and head keep their width and the first and the last row their depth.
"""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, InvertedRow, classifier, conv_bn, inverted_stages

_STEM_WIDTH = 32
_HEAD_WIDTH = 1280
_EPS = 1e-3
_ROWS = (
    InvertedRow(expansion=1, width=24, repeats=1, stride=1, kernel=3),
    InvertedRow(expansion=6, width=32, repeats=4, stride=2, kernel=3),
    InvertedRow(expansion=6, width=56, repeats=4, stride=2, kernel=5),
    InvertedRow(expansion=6, width=112, repeats=6, stride=2, kernel=3),
    InvertedRow(expansion=6, width=160, repeats=6, stride=1, kernel=5),
    InvertedRow(expansion=6, width=272, repeats=8, stride=2, kernel=5),
    InvertedRow(expansion=6, width=448, repeats=1, stride=1, kernel=3),
)


def efficientnet_lite4(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """EfficientNet-Lite4; its stem is 3x3/2 for images of every size."""
    del small_images
    return Chain(
        nn.Sequential(*conv_bn(in_channels, _STEM_WIDTH, 3, stride=2, activation=nn.ReLU6, eps=_EPS)),
        inverted_stages(_STEM_WIDTH, _ROWS, eps=_EPS),
        nn.Sequential(
            conv_bn(_ROWS[-1].width, _HEAD_WIDTH, 1, activation=nn.ReLU6, eps=_EPS),
            *classifier(_HEAD_WIDTH, num_classes, dropout=0.3),
        ),
    )
