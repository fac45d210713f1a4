"""Networks of inverted bottlenecks: MobileNetV2 and V3 at width 1.0, EfficientNet, and EfficientNet-Lite for edge processors.

MobileNetV2: Sandler et al., 2018, arXiv:1801.04381. MobileNetV3: Howard et al., 2019, arXiv:1905.02244. EfficientNet: Tan and
Le, 2019, arXiv:1905.11946; its variants scale the widths and depths of one table. EfficientNet-Lite has no
squeeze-and-excitation, uses ReLU6 instead of SiLU, and does not scale the width of stem and head or the depth of the first
and last row. All stems are 3x3/2, for all image sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from torch import nn

from nnstretch.zoo.blocks import Activation, Chain, Residual, SqueezeExcite, classifier, conv_bn

_EPS = 1e-3  # of the batch norms of all but MobileNetV2
_V3_STEM_WIDTH = 16

_Gate = Callable[[int, int], SqueezeExcite]
"""Makes the gate of a block from the numbers of its input and inner channels."""


class InvertedRow(NamedTuple):
    """Consecutive blocks of one width, in the tables of MobileNetV2 and EfficientNet; only the first has the stride."""

    expansion: int
    width: int
    repeats: int
    stride: int
    kernel: int = 3


class _Block(NamedTuple):
    """One inverted bottleneck: a row in the tables of MobileNetV3."""

    kernel: int
    inner: int
    width: int
    is_gated: bool
    activation: Activation
    stride: int


# Table 2 of MobileNetV2.
_MOBILENETV2 = (
    InvertedRow(1, 16, 1, 1),
    InvertedRow(6, 24, 2, 2),
    InvertedRow(6, 32, 3, 2),
    InvertedRow(6, 64, 4, 2),
    InvertedRow(6, 96, 3, 1),
    InvertedRow(6, 160, 3, 2),
    InvertedRow(6, 320, 1, 1),
)
# Width times 1.4 (rounded to multiples of 8), depth times 1.8.
_LITE4 = (
    InvertedRow(1, 24, 1, 1),
    InvertedRow(6, 32, 4, 2),
    InvertedRow(6, 56, 4, 2, 5),
    InvertedRow(6, 112, 6, 2),
    InvertedRow(6, 160, 6, 1, 5),
    InvertedRow(6, 272, 8, 2, 5),
    InvertedRow(6, 448, 1, 1),
)
# Width times 1.6, depth times 2.2.
_B5 = (
    InvertedRow(1, 24, 3, 1),
    InvertedRow(6, 40, 5, 2),
    InvertedRow(6, 64, 5, 2, 5),
    InvertedRow(6, 128, 7, 2),
    InvertedRow(6, 176, 7, 1, 5),
    InvertedRow(6, 304, 9, 2, 5),
    InvertedRow(6, 512, 3, 1),
)
# Table 1 of MobileNetV3.
_LARGE = (
    _Block(3, 16, 16, False, nn.ReLU, 1),
    _Block(3, 64, 24, False, nn.ReLU, 2),
    _Block(3, 72, 24, False, nn.ReLU, 1),
    _Block(5, 72, 40, True, nn.ReLU, 2),
    _Block(5, 120, 40, True, nn.ReLU, 1),
    _Block(5, 120, 40, True, nn.ReLU, 1),
    _Block(3, 240, 80, False, nn.Hardswish, 2),
    _Block(3, 200, 80, False, nn.Hardswish, 1),
    _Block(3, 184, 80, False, nn.Hardswish, 1),
    _Block(3, 184, 80, False, nn.Hardswish, 1),
    _Block(3, 480, 112, True, nn.Hardswish, 1),
    _Block(3, 672, 112, True, nn.Hardswish, 1),
    _Block(5, 672, 160, True, nn.Hardswish, 2),
    _Block(5, 960, 160, True, nn.Hardswish, 1),
    _Block(5, 960, 160, True, nn.Hardswish, 1),
)
# Table 2 of MobileNetV3.
_SMALL = (
    _Block(3, 16, 16, True, nn.ReLU, 2),
    _Block(3, 72, 24, False, nn.ReLU, 2),
    _Block(3, 88, 24, False, nn.ReLU, 1),
    _Block(5, 96, 40, True, nn.Hardswish, 2),
    _Block(5, 240, 40, True, nn.Hardswish, 1),
    _Block(5, 240, 40, True, nn.Hardswish, 1),
    _Block(5, 120, 48, True, nn.Hardswish, 1),
    _Block(5, 144, 48, True, nn.Hardswish, 1),
    _Block(5, 288, 96, True, nn.Hardswish, 2),
    _Block(5, 576, 96, True, nn.Hardswish, 1),
    _Block(5, 576, 96, True, nn.Hardswish, 1),
)


def _inverted_bottleneck(in_channels: int, block: _Block, gate: _Gate, eps: float) -> nn.Sequential | Residual:
    """1x1 expansion, depthwise convolution, gate, linear 1x1; with a shortcut where the shape is kept.

    There is no expansion where it would not change the number of channels.
    """
    conv = partial(conv_bn, activation=block.activation, eps=eps)
    body = nn.Sequential(
        *([] if block.inner == in_channels else [conv(in_channels, block.inner, 1)]),
        conv(block.inner, block.inner, block.kernel, stride=block.stride, groups=block.inner),
        *([gate(in_channels, block.inner)] if block.is_gated else []),
        conv_bn(block.inner, block.width, 1, activation=None, eps=eps),
    )
    if block.stride == 1 and in_channels == block.width:
        return Residual(body, nn.Identity(), nn.Identity())
    return body


def _stages(width: int, blocks: Iterable[_Block], gate: _Gate, eps: float) -> list[nn.Sequential]:
    """The stages of a table that reads `width` channels; blocks of one resolution form one stage."""
    stages: list[list[nn.Module]] = []
    for block in blocks:
        if block.stride > 1 or not stages:
            stages.append([])
        stages[-1].append(_inverted_bottleneck(width, block, gate, eps))
        width = block.width
    return [nn.Sequential(*modules) for modules in stages]


def _blocks(width: int, rows: Iterable[InvertedRow], activation: Activation, is_gated: bool) -> Iterator[_Block]:
    for row in rows:
        for index in range(row.repeats):
            stride = row.stride if index == 0 else 1
            yield _Block(row.kernel, width * row.expansion, row.width, is_gated, activation, stride)
            width = row.width


def inverted_stages(
    width: int,
    rows: Iterable[InvertedRow],
    activation: Activation = nn.ReLU6,
    eps: float = 1e-5,
    is_gated: bool = False,
) -> list[nn.Sequential]:
    """The stages of a table like those of MobileNetV2, which reads `width` channels."""
    return _stages(width, _blocks(width, rows, activation, is_gated), partial(_gate, activation), eps)


def _gate(activation: Activation, in_channels: int, inner: int) -> SqueezeExcite:
    """Squeeze-and-excitation of EfficientNet, with a quarter of the block's input channels inside."""
    return SqueezeExcite(inner, in_channels // 4, activation, nn.Sigmoid)


def _mobilenetv2_like(
    rows: tuple[InvertedRow, ...],
    ends: tuple[int, int],
    dropout: float,
    activation: Activation,
    eps: float,
    is_gated: bool,
    num_classes: int,
    in_channels: int,
    small_images: bool,
) -> Chain:
    """A network with a table of rows; ``ends`` are the widths of stem and head."""
    del small_images
    stem_width, head_width = ends
    conv = partial(conv_bn, activation=activation, eps=eps)
    return Chain(
        nn.Sequential(*conv(in_channels, stem_width, 3, stride=2)),
        inverted_stages(stem_width, rows, activation, eps, is_gated),
        nn.Sequential(conv(rows[-1].width, head_width, 1), *classifier(head_width, num_classes, dropout=dropout)),
    )


def _v3_gate(_in_channels: int, inner: int) -> SqueezeExcite:
    """Squeeze-and-excitation with a quarter of the inner channels inside, rounded to a multiple of 8 as in the paper."""
    quarter = inner // 4
    squeezed = max(8, (quarter + 4) // 8 * 8)
    squeezed += 8 if squeezed < 0.9 * quarter else 0
    return SqueezeExcite(inner, squeezed, nn.ReLU, nn.Hardsigmoid)


def _mobilenetv3(
    blocks: tuple[_Block, ...], hidden: int, num_classes: int, in_channels: int, small_images: bool
) -> Chain:
    del small_images
    conv = partial(conv_bn, activation=nn.Hardswish, eps=_EPS)
    width = blocks[-1].width
    head = nn.Sequential(
        conv(width, 6 * width, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6 * width, hidden),
        nn.Hardswish(),
        nn.Dropout(0.2),
        nn.Linear(hidden, num_classes),
    )
    stem = conv(in_channels, _V3_STEM_WIDTH, 3, stride=2)
    return Chain(nn.Sequential(*stem), _stages(_V3_STEM_WIDTH, blocks, _v3_gate, _EPS), head)


# Table, widths of stem and head, dropout, activation, epsilon of the batch norms, and whether blocks have gates.
mobilenetv2 = partial(_mobilenetv2_like, _MOBILENETV2, (32, 1280), 0.2, nn.ReLU6, 1e-5, is_gated=False)
efficientnet_lite4 = partial(_mobilenetv2_like, _LITE4, (32, 1280), 0.3, nn.ReLU6, _EPS, is_gated=False)
efficientnet_b5 = partial(_mobilenetv2_like, _B5, (48, 2048), 0.4, nn.SiLU, _EPS, is_gated=True)
mobilenetv3_large = partial(_mobilenetv3, _LARGE, 1280)
mobilenetv3_small = partial(_mobilenetv3, _SMALL, 1024)
