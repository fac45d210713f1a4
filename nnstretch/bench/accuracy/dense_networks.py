"""Networks of the study of detection and segmentation: the structures of published ones in small, for images of 64 x 64.

A training of these takes minutes of one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from nnstretch.training.tasks.yolo import BINS
from nnstretch.zoo.blocks import conv_bn, with_shortcut
from nnstretch.zoo.weights import initialise

_WIDTHS = 16, 24, 48, 64  # of the stem and of the stages at strides 4, 8 and 16
_NECK = 32
_PRIOR = 0.01  # a class's first probability in every cell


def build_dense_network(name: str, num_classes: int, seed: int) -> nn.Module:
    """An untrained network of the study.

    Args:
        name: of `DENSE_NETWORKS`.
        num_classes: number of classes.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = DENSE_NETWORKS[name](num_classes)
        initialise(network, 3, None)
    if isinstance(network, SmallYolo):
        network.expect_little()
    return network


def _block(width: int, out: int, stride: int = 1, dilation: int = 1) -> nn.Module:
    """Two 3x3 convolutions with a shortcut."""
    body = nn.Sequential(conv_bn(width, out, 3, stride=stride), conv_bn(out, out, 3, activation=None))
    for convolution in (layer for layer in body.modules() if isinstance(layer, nn.Conv2d)):
        convolution.dilation = convolution.padding = (dilation, dilation)
    return with_shortcut(body, width, out, stride)


def _stage(width: int, out: int, depth: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    blocks = (_block(out, out, 1, dilation) for _ in range(depth - 1))
    return nn.Sequential(_block(width, out, stride, dilation), *blocks)


class SmallYolo(nn.Module):
    """An anchor-free detector: a backbone, a feature pyramid, and decoupled heads at strides 8 and 16."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        stem, fine, middle, coarse = _WIDTHS
        self.stem = nn.Sequential(conv_bn(3, stem, 3, stride=2))
        self.fine = _stage(stem, fine, 2, stride=2)
        self.middle = _stage(fine, middle, 3, stride=2)
        self.coarse = _stage(middle, coarse, 3, stride=2)
        self.lateral = nn.ModuleList(conv_bn(width, _NECK, 1) for width in (middle, coarse))
        self.joined = conv_bn(2 * _NECK, _NECK, 3)
        self.boxes = nn.ModuleList(
            nn.Sequential(conv_bn(_NECK, _NECK, 3), nn.Conv2d(_NECK, 4 * BINS, 1)) for _ in range(2)
        )
        self.classes = nn.ModuleList(
            nn.Sequential(conv_bn(_NECK, _NECK, 3), nn.Conv2d(_NECK, num_classes, 1)) for _ in range(2)
        )

    def expect_little(self) -> None:
        """Sets biases so that a class is improbable in every cell at first, as most cells have none."""
        for head in self.classes:
            last = head[-1]  # type: ignore[index]
            nn.init.constant_(last.bias, -math.log(1 / _PRIOR - 1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """From `N x 3 x H x W` to a map `N x (4 * 16 + classes) x h x w` for every stride."""
        middle = self.middle(self.fine(self.stem(x)))
        coarse = self.lateral[1](self.coarse(middle))
        enlarged = functional.interpolate(coarse, scale_factor=2.0)
        maps = self.joined(torch.cat((self.lateral[0](middle), enlarged), 1)), coarse
        heads = zip(self.boxes, self.classes, maps, strict=True)
        return tuple(torch.cat((boxes(read), classes(read)), 1) for boxes, classes, read in heads)


class SmallDeepLab(nn.Module):
    """A segmenter in the manner of DeepLabV3+: dilated blocks, a pyramid of dilated convolutions, a decoder at stride 4."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        stem, fine, middle, coarse = _WIDTHS
        self.stem = nn.Sequential(conv_bn(3, stem, 3, stride=2))
        self.fine = _stage(stem, fine, 2, stride=2)
        self.middle = _stage(fine, middle, 3, stride=2)
        self.coarse = _stage(middle, coarse, 2, dilation=2)
        self.pyramid = nn.ModuleList(
            [conv_bn(coarse, _NECK, 1), *(_dilated(coarse, _NECK, dilation) for dilation in (2, 3))]
        )
        self.projection = conv_bn(3 * _NECK, _NECK, 1)
        self.skip = conv_bn(fine, _NECK // 2, 1)
        self.decoder = conv_bn(_NECK + _NECK // 2, _NECK, 3)
        self.logits = nn.Conv2d(_NECK, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """From `N x 3 x H x W` to logits at a quarter of the sides."""
        fine = self.fine(self.stem(x))
        coarse = self.coarse(self.middle(fine))
        seen = self.projection(torch.cat([path(coarse) for path in self.pyramid], 1))
        enlarged = functional.interpolate(seen, scale_factor=2.0, mode="bilinear")
        logits: Tensor = self.logits(self.decoder(torch.cat((enlarged, self.skip(fine)), 1)))
        return logits


def _dilated(width: int, out: int, dilation: int) -> nn.Sequential:
    layers = conv_bn(width, out, 3)
    convolution = layers[0]
    assert isinstance(convolution, nn.Conv2d)
    convolution.dilation = convolution.padding = (dilation, dilation)
    return layers


DENSE_NETWORKS: Mapping[str, Callable[[int], nn.Module]] = {"yolo": SmallYolo, "deeplab": SmallDeepLab}
"""What builds a network for a number of classes, by name."""
