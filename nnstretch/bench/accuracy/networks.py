"""Networks of the accuracy study: blocks and depths of published ones at a fraction of their widths, for small images.

A training of these takes minutes of one core where those of the published networks take days of a GPU. A factor makes them
wider, for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from nnstretch.zoo.blocks import Chain, bottleneck, classifier, conv_bn, with_shortcut
from nnstretch.zoo.mobilenet import InvertedRow, inverted_stages
from nnstretch.zoo.weights import initialise

_Block = Callable[[int, int, int], nn.Module]
"""Makes a block from input channels, output channels and stride."""

SWEPT = "resnet18"
"""The network whose designs `cli.job.front_study` sweeps; the others are those of the accuracy study."""

# Depths and widths.
_RESNET18 = (2, 2, 2, 2), (32, 64, 128, 256)  # half of ResNet-18's widths
_RESNET34 = (3, 4, 6, 3), (16, 32, 64, 128)  # a quarter of ResNet-34's
_REGNET = (2, 4, 10, 2), (16, 32, 80, 176)  # a fifth of RegNetX-1.6GF's
_GROUP_WIDTH = 8
# A quarter of EfficientNet-Lite4's widths; the sixth row has no stride, which would leave one pixel.
_LITE4 = (
    InvertedRow(1, 8, 1, 1),
    InvertedRow(6, 8, 4, 2),
    InvertedRow(6, 16, 4, 2, 5),
    InvertedRow(6, 28, 6, 2),
    InvertedRow(6, 40, 6, 1, 5),
    InvertedRow(6, 68, 8, 1, 5),
    InvertedRow(6, 112, 1, 1),
)
_LITE4_ENDS = 8, 320  # widths of stem and head


def build_network(name: str, num_classes: int, seed: int, width: int = 1) -> nn.Module:
    """An untrained network of the study, for three-channel images of about 32 x 32 or more.

    Args:
        name: of `NETWORKS`.
        num_classes: number of classes.
        seed: of the weights.
        width: factor of the widths; multiply-adds grow with its square.
    """
    network = NETWORKS[name](num_classes, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialise(network, 3, None)
    return network


def _resnet(depths: Sequence[int], widths: Sequence[int], num_classes: int, factor: int) -> nn.Module:
    def block(width: int, out: int, stride: int) -> nn.Module:
        body = nn.Sequential(conv_bn(width, out, 3, stride=stride), conv_bn(out, out, 3, activation=None))
        return with_shortcut(body, width, out, stride)

    return _residual_network(block, depths, [factor * width for width in widths], num_classes)


def _resnet18(num_classes: int, factor: int) -> nn.Module:
    return _resnet(*_RESNET18, num_classes, factor)


def _resnet34(num_classes: int, factor: int) -> nn.Module:
    return _resnet(*_RESNET34, num_classes, factor)


def _regnet_x(num_classes: int, factor: int) -> nn.Module:
    depths, widths = _REGNET

    def block(width: int, out: int, stride: int) -> nn.Module:
        return bottleneck(width, out, stride, inner=out, groups=out // (factor * _GROUP_WIDTH))

    return _residual_network(block, depths, [factor * width for width in widths], num_classes)


def _residual_network(block: _Block, depths: Sequence[int], widths: Sequence[int], num_classes: int) -> nn.Module:
    """Stages of equal blocks after a 3x3/2 convolution; the first block of all stages but the first has stride 2."""
    stages: list[nn.Sequential] = []
    stem = width = widths[0]
    for depth, out in zip(depths, widths, strict=True):
        first = block(width, out, 2 if stages else 1)
        stages.append(nn.Sequential(first, *(block(out, out, 1) for _ in range(depth - 1))))
        width = out
    return Chain(nn.Sequential(*conv_bn(3, stem, 3, stride=2)), stages, nn.Sequential(*classifier(width, num_classes)))


def _efficientnet_lite4(num_classes: int, factor: int) -> nn.Module:
    stem, head = (factor * width for width in _LITE4_ENDS)
    rows = [row._replace(width=factor * row.width) for row in _LITE4]
    return Chain(
        nn.Sequential(*conv_bn(3, stem, 3, stride=2, activation=nn.ReLU6)),
        inverted_stages(stem, rows),
        nn.Sequential(conv_bn(rows[-1].width, head, 1, activation=nn.ReLU6), *classifier(head, num_classes)),
    )


NETWORKS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "resnet34": _resnet34,
    "regnet_x": _regnet_x,
    "efficientnet_lite4": _efficientnet_lite4,
    SWEPT: _resnet18,
}
"""What builds a network for a number of classes and a factor of its widths, by name."""
