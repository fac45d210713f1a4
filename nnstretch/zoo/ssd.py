"""SSD (Liu et al., 2015, arXiv:1512.02325) on ResNet-50, for 20 classes and images of 512 x 512.

It predicts from six feature maps: the last two of ResNet-50 and four smaller ones made by extra layers. At
every pixel of a map it classifies a few anchors, boxes of fixed sizes and aspect ratios, and regresses their
offsets. Maps, anchors and variances are those of the usual CPU benchmark model (ssd_512_resnet50_v1_voc;
NeoCPU, table 2). A bottleneck's stride is on its 3x3 convolution, as in the zoo's ResNet-50. Non-maximum
suppression is left to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nnstretch.zoo.blocks import conv_bn
from nnstretch.zoo.resnet import resnet50

_IMAGE = 512
_SMALL_IMAGE = 64
IMAGE_SIZES = (_SMALL_IMAGE, _IMAGE)
"""Sides in pixels of the squares that there are anchors for."""
_EXTRA_WIDTHS = (512, 512, 256, 256)
_BASE_WIDTHS = (1024, 2048)
_BOX = 4  # numbers that describe a box
_CENTRE_VARIANCE = 0.1
_SIZE_VARIANCE = 0.2


@dataclass(frozen=True)
class _Scale:
    """Anchors of one feature map.

    Attributes:
        side: side in pixels of this map's anchors.
        next_side: side in pixels of the next map's anchors.
        step: image pixels per pixel of the map.
        ratios: aspect ratios (width over height) of the other anchors.
    """

    side: float
    next_side: float
    step: int
    ratios: tuple[float, ...]

    @property
    def count(self) -> int:
        """Anchors per pixel: two squares, and one box per aspect ratio."""
        return 2 + len(self.ratios)

    def anchors(self, image: int) -> np.ndarray:
        """Centre x, centre y, width and height of all anchors in pixels, shape (map pixels * count, 4), row by row."""
        cells = -(-image // self.step)
        between = math.sqrt(self.side * self.next_side)
        shapes = [(self.side, self.side), (between, between)]
        shapes += [(self.side * math.sqrt(ratio), self.side / math.sqrt(ratio)) for ratio in self.ratios]
        centres = (np.arange(cells) + 0.5) * self.step
        grid = np.zeros((cells, cells, self.count, _BOX))
        grid[..., 0] = centres[None, :, None]
        grid[..., 1] = centres[:, None, None]
        grid[..., 2:] = np.array(shapes)
        return grid.reshape(-1, _BOX)


_FEW, _MANY = (2.0, 0.5), (2.0, 0.5, 3.0, 1 / 3)
_SIDES = (51.2, 102.4, 189.4, 276.4, 363.52, 450.6, 492.0)
_SCALES = tuple(
    _Scale(side, next_side, 16 << index, ratios)
    for index, (side, next_side, ratios) in enumerate(
        zip(_SIDES, _SIDES[1:], (_FEW, _MANY, _MANY, _MANY, _FEW, _FEW), strict=False)
    )
)


def _extra(in_channels: int, out_channels: int) -> nn.Sequential:
    """Halves the resolution."""
    return nn.Sequential(conv_bn(in_channels, out_channels, 1), conv_bn(out_channels, out_channels, 3, stride=2))


class _Flattened(nn.Module):
    """``N x (anchors * numbers) x H x W`` to ``N x (H * W * anchors) x numbers``."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers = numbers

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, self.numbers)


class MultiboxPredictor(nn.Module):
    """Features at six resolutions, with class and box predictions for the anchors of each."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        base = resnet50(num_classes=1, in_channels=in_channels, small_images=False)
        self.base = nn.Sequential(base.stem, base.stages[:-1])
        widths = (*_BASE_WIDTHS, *_EXTRA_WIDTHS)
        extras = [_extra(i, o) for i, o in zip(widths[1:-1], _EXTRA_WIDTHS, strict=True)]
        self.further = nn.ModuleList((base.stages[-1], *extras))
        self.classes = self._heads(widths, num_classes + 1)
        self.boxes = self._heads(widths, _BOX)

    @staticmethod
    def _heads(widths: Sequence[int], numbers: int) -> nn.ModuleList:
        return nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, scale.count * numbers, 3, padding=1), _Flattened(numbers))
            for width, scale in zip(widths, _SCALES, strict=True)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """From images to ``N x anchors x (classes + 1)`` logits, background first, and ``N x anchors x 4`` offsets."""
        features = [self.base(x)]
        for layer in self.further:
            features.append(layer(features[-1]))
        logits = [head(feature) for head, feature in zip(self.classes, features, strict=True)]
        offsets = [head(feature) for head, feature in zip(self.boxes, features, strict=True)]
        return torch.cat(logits, dim=1), torch.cat(offsets, dim=1)


class Detector(nn.Module):
    """A predictor whose offsets are applied to the anchors."""

    def __init__(self, predictor: MultiboxPredictor, image: int) -> None:
        super().__init__()
        self.predictor = predictor
        self.softmax = nn.Softmax(dim=-1)
        anchors = np.concatenate([scale.anchors(image) for scale in _SCALES]).astype(np.float32)
        # Not buffers: `to_empty` would discard them when a network is built on the meta device.
        self.centres, self.sides = anchors[None, :, :2], anchors[None, :, 2:]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """From square images of the given side to scores and boxes of all anchors.

        Returns:
            ``N x anchors x (classes + 1)`` probabilities, background first, and ``N x anchors x 4`` boxes:
            left, top, right, bottom in image pixels.
        """
        logits, offsets = self.predictor(x)
        centres, sides = (torch.from_numpy(array).to(x.device, x.dtype) for array in (self.centres, self.sides))
        middle = offsets[..., :2] * (sides * _CENTRE_VARIANCE) + centres
        half = torch.exp(offsets[..., 2:] * _SIZE_VARIANCE) * (sides / 2)
        return self.softmax(logits), torch.cat((middle - half, middle + half), dim=-1)


def ssd_resnet50(num_classes: int, in_channels: int, small_images: bool) -> Detector:
    """SSD on ResNet-50 for images of 512 x 512; for small images of 64 x 64."""
    return Detector(MultiboxPredictor(num_classes, in_channels), _SMALL_IMAGE if small_images else _IMAGE)
