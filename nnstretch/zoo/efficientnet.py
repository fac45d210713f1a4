"""EfficientNet (Tan and Le, 2019, arXiv:1905.11946), and EfficientNet-Lite for edge processors.

All variants scale the widths and depths of one table. EfficientNet-Lite has no squeeze-and-excitation, uses
ReLU6 instead of SiLU, and does not scale the width of stem and head or the depth of the first and last row.
"""

from __future__ import annotations

from torch import nn

from nnstretch.zoo.blocks import Chain, InvertedRow, InvertedStyle, inverted_chain

_EPS = 1e-3
# Width times 1.4 (rounded to multiples of 8), depth times 1.8.
_LITE4 = (
    InvertedRow(expansion=1, width=24, repeats=1, stride=1, kernel=3),
    InvertedRow(expansion=6, width=32, repeats=4, stride=2, kernel=3),
    InvertedRow(expansion=6, width=56, repeats=4, stride=2, kernel=5),
    InvertedRow(expansion=6, width=112, repeats=6, stride=2, kernel=3),
    InvertedRow(expansion=6, width=160, repeats=6, stride=1, kernel=5),
    InvertedRow(expansion=6, width=272, repeats=8, stride=2, kernel=5),
    InvertedRow(expansion=6, width=448, repeats=1, stride=1, kernel=3),
)
# Width times 1.6, depth times 2.2.
_B5 = (
    InvertedRow(expansion=1, width=24, repeats=3, stride=1, kernel=3),
    InvertedRow(expansion=6, width=40, repeats=5, stride=2, kernel=3),
    InvertedRow(expansion=6, width=64, repeats=5, stride=2, kernel=5),
    InvertedRow(expansion=6, width=128, repeats=7, stride=2, kernel=3),
    InvertedRow(expansion=6, width=176, repeats=7, stride=1, kernel=5),
    InvertedRow(expansion=6, width=304, repeats=9, stride=2, kernel=5),
    InvertedRow(expansion=6, width=512, repeats=3, stride=1, kernel=3),
)


def efficientnet_lite4(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """EfficientNet-Lite4."""
    del small_images
    style = InvertedStyle(nn.ReLU6, _EPS)
    return inverted_chain(_LITE4, style, (32, 1280), num_classes=num_classes, in_channels=in_channels, dropout=0.3)


def efficientnet_b5(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """EfficientNet-B5; its squeeze-and-excitation has a quarter of the block's input channels inside."""
    del small_images
    style = InvertedStyle(nn.SiLU, _EPS, squeeze=4)
    return inverted_chain(_B5, style, (48, 2048), num_classes=num_classes, in_channels=in_channels, dropout=0.4)
