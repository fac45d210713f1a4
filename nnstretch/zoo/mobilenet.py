"""MobileNetV2 (Sandler et al., 2018, arXiv:1801.04381) and V3 (Howard et al., 2019, arXiv:1905.02244) at width 1.0."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from nnstretch.zoo.blocks import (
    Activation,
    Chain,
    InvertedRow,
    InvertedStyle,
    SqueezeExcite,
    conv_bn,
    inverted_block,
    inverted_chain,
)

# Table 2 of MobileNetV2.
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
    """MobileNetV2; the stem is 3x3/2 for all image sizes."""
    del small_images
    style = InvertedStyle(nn.ReLU6)
    return inverted_chain(_ROWS, style, (32, 1280), num_classes=num_classes, in_channels=in_channels, dropout=0.2)


class _Row(NamedTuple):
    """One block of a table of MobileNetV3."""

    kernel: int
    inner: int
    width: int
    squeezes: bool
    activation: Activation
    stride: int


# Table 1 of MobileNetV3.
_LARGE = (
    _Row(3, 16, 16, False, nn.ReLU, 1),
    _Row(3, 64, 24, False, nn.ReLU, 2),
    _Row(3, 72, 24, False, nn.ReLU, 1),
    _Row(5, 72, 40, True, nn.ReLU, 2),
    _Row(5, 120, 40, True, nn.ReLU, 1),
    _Row(5, 120, 40, True, nn.ReLU, 1),
    _Row(3, 240, 80, False, nn.Hardswish, 2),
    _Row(3, 200, 80, False, nn.Hardswish, 1),
    _Row(3, 184, 80, False, nn.Hardswish, 1),
    _Row(3, 184, 80, False, nn.Hardswish, 1),
    _Row(3, 480, 112, True, nn.Hardswish, 1),
    _Row(3, 672, 112, True, nn.Hardswish, 1),
    _Row(5, 672, 160, True, nn.Hardswish, 2),
    _Row(5, 960, 160, True, nn.Hardswish, 1),
    _Row(5, 960, 160, True, nn.Hardswish, 1),
)
# Table 2 of MobileNetV3.
_SMALL = (
    _Row(3, 16, 16, True, nn.ReLU, 2),
    _Row(3, 72, 24, False, nn.ReLU, 2),
    _Row(3, 88, 24, False, nn.ReLU, 1),
    _Row(5, 96, 40, True, nn.Hardswish, 2),
    _Row(5, 240, 40, True, nn.Hardswish, 1),
    _Row(5, 240, 40, True, nn.Hardswish, 1),
    _Row(5, 120, 48, True, nn.Hardswish, 1),
    _Row(5, 144, 48, True, nn.Hardswish, 1),
    _Row(5, 288, 96, True, nn.Hardswish, 2),
    _Row(5, 576, 96, True, nn.Hardswish, 1),
    _Row(5, 576, 96, True, nn.Hardswish, 1),
)
_V3_STEM_WIDTH = 16
_V3_EPS = 1e-3


def _squeeze_excite(inner: int) -> SqueezeExcite:
    """Squeeze-and-excitation with a quarter of the channels inside, rounded to a multiple of 8 as in the paper."""
    quarter = inner // 4
    squeezed = max(8, (quarter + 4) // 8 * 8)
    squeezed += 8 if squeezed < 0.9 * quarter else 0
    return SqueezeExcite(inner, squeezed, nn.ReLU, nn.Hardsigmoid)


def _mobilenetv3(rows: tuple[_Row, ...], hidden: int, num_classes: int, in_channels: int) -> Chain:
    stages: list[list[nn.Module]] = []
    width = _V3_STEM_WIDTH
    for row in rows:
        if row.stride > 1 or not stages:
            stages.append([])
        gate = _squeeze_excite(row.inner) if row.squeezes else None
        widths = (width, row.inner, row.width)
        block = inverted_block(widths, row.kernel, row.stride, activation=row.activation, eps=_V3_EPS, gate=gate)
        stages[-1].append(block)
        width = row.width
    last = 6 * width
    head = nn.Sequential(
        conv_bn(width, last, 1, activation=nn.Hardswish, eps=_V3_EPS),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(last, hidden),
        nn.Hardswish(),
        nn.Dropout(0.2),
        nn.Linear(hidden, num_classes),
    )
    stem = conv_bn(in_channels, _V3_STEM_WIDTH, 3, stride=2, activation=nn.Hardswish, eps=_V3_EPS)
    return Chain(nn.Sequential(*stem), [nn.Sequential(*blocks) for blocks in stages], head)


def mobilenetv3_large(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """MobileNetV3-Large; the stem is 3x3/2 for all image sizes."""
    del small_images
    return _mobilenetv3(_LARGE, 1280, num_classes, in_channels)


def mobilenetv3_small(num_classes: int, in_channels: int, small_images: bool) -> Chain:
    """MobileNetV3-Small; the stem is 3x3/2 for all image sizes."""
    del small_images
    return _mobilenetv3(_SMALL, 1024, num_classes, in_channels)
