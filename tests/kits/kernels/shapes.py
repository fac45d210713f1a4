"""Images of squares and discs with masks and boxes, and small networks for them: a segmenter and a detector."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

SIDE = 32
"""Of the images in pixels."""
CLASSES = ("square", "disc")


def shapes(index: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[list[float]]]:
    """An image with two shapes on noise.

    Returns:
        The image `S x S x 3`; its mask `S x S`: 0 is the background, 1 a square, 2 a disc; and a row per shape: left, top,
        right, bottom, class from 0.
    """
    draw = np.random.default_rng(index)
    image = draw.integers(0, 60, (SIDE, SIDE, 3)).astype(np.uint8)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    boxes = []
    for half in range(2):  # one in the upper half, one in the lower half
        label, radius = int(draw.integers(2)), int(draw.integers(4, 7))
        x = int(draw.integers(radius, SIDE - radius))
        y = int(draw.integers(radius, SIDE // 2 - radius + 1)) + half * SIDE // 2
        inside = np.maximum(abs(rows - y + 0.5), abs(columns - x + 0.5)) < radius
        if label == 1:
            inside &= (rows - y + 0.5) ** 2 + (columns - x + 0.5) ** 2 < radius**2
        image[inside] = (220, 60, 60) if label == 0 else (60, 60, 220)
        mask[inside] = label + 1
        boxes.append([float(x - radius), float(y - radius), float(x + radius), float(y + radius), float(label)])
    return image, mask, boxes


def write_masks(root: Path, counts: Sequence[tuple[str, int]]) -> None:
    """Images and masks in `root/NAME/images` and `root/NAME/masks`, as many for each name as `counts` says."""
    first = 0
    for name, count in counts:
        for folder in ("images", "masks"):
            (root / name / folder).mkdir(parents=True)
        for index in range(first, first + count):
            image, mask, _ = shapes(index)
            Image.fromarray(image).save(root / name / "images" / f"{index}.png")
            Image.fromarray(mask).save(root / name / "masks" / f"{index}.png")
        first += count


def write_coco(root: Path, counts: Sequence[tuple[str, int]]) -> None:
    """Images in `root/NAME` and their boxes in `root/NAME.json`. Categories have the numbers 5 and 9."""
    first = 0
    for name, count in counts:
        (root / name).mkdir(parents=True)
        images, annotations = [], []
        for index in range(first, first + count):
            image, _, boxes = shapes(index)
            Image.fromarray(image).save(root / name / f"{index}.png")
            images.append({"id": 100 + index, "file_name": f"{index}.png", "height": SIDE, "width": SIDE})
            for left, top, right, bottom, label in boxes:
                box = [left, top, right - left, bottom - top]
                annotations.append({"image_id": 100 + index, "category_id": (5, 9)[int(label)], "bbox": box})
        categories = [{"id": 9, "name": CLASSES[1]}, {"id": 5, "name": CLASSES[0]}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / f"{name}.json").write_text(json.dumps(content))
        first += count


def _layer(before: int, after: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(before, after, 3, stride, dilation, dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU())


class Segmenter(nn.Module):
    """A backbone with stride 4, parallel dilated convolutions (ASPP), a skip connection to stride 2, and bilinear enlargement.

    Chen et al., "Encoder-Decoder with Atrous Separable Convolution" (arXiv:1802.02611), in small.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = _layer(3, 16, 2)
        self.stage1 = nn.Sequential(_layer(16, 16), _layer(16, 16))
        self.stage2 = nn.Sequential(_layer(16, 32, 2), _layer(32, 32), _layer(32, 32))
        self.near, self.far = _layer(32, 16), _layer(32, 16, dilation=2)
        self.low = _layer(16, 8)
        self.classify = nn.Conv2d(40, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `N x classes x S x S`."""
        early = self.stage1(self.stem(x))
        late = self.stage2(early)
        context = torch.cat((self.near(late), self.far(late)), dim=1)
        context = functional.interpolate(context, scale_factor=2.0, mode="bilinear", align_corners=False)
        logits = self.classify(torch.cat((context, self.low(early)), dim=1))
        return functional.interpolate(logits, scale_factor=2.0, mode="bilinear", align_corners=False)


class Detector(nn.Module):
    """A backbone and, at strides 4 and 8, a map of distances to four sides, objectness and classes, as in YOLOX."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = _layer(3, 16, 2)
        self.stage1 = nn.Sequential(_layer(16, 24, 2), _layer(24, 24), _layer(24, 24))
        self.stage2 = nn.Sequential(_layer(24, 32, 2), _layer(32, 32), _layer(32, 32))
        self.fine = nn.Conv2d(24, 5 + num_classes, 1)
        self.coarse = nn.Conv2d(32, 5 + num_classes, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two maps `N x (5 + classes) x H x W`."""
        fine = self.stage1(self.stem(x))
        return self.fine(fine), self.coarse(self.stage2(fine))


class ShapesHead:
    """Loss and decoding of a `Detector`: the cell at the centre of a box is to predict it, in both maps."""

    def loss(self, outputs: Any, boxes: Tensor) -> Tensor:
        """Cross entropies of objectness and class, and the distance of the logarithms of the sides' distances."""
        total = boxes.new_zeros(())
        for found in outputs:
            cells = found.movedim(1, -1)
            stride = SIDE / cells.shape[1]
            wanted = torch.zeros_like(cells[..., 4])
            image, number = torch.nonzero(boxes[..., 4] >= 0, as_tuple=True)
            chosen = boxes[image, number]
            centre = (chosen[:, :2] + chosen[:, 2:4]) / 2 / stride
            x, y = centre.long().clamp(0, cells.shape[1] - 1).T
            wanted[image, y, x] = 1.0
            own = cells[image, y, x]
            middle = torch.stack((x, y), 1) + 0.5
            sides = torch.cat((middle - chosen[:, :2] / stride, chosen[:, 2:4] / stride - middle), 1).clamp(min=0.1)
            total = total + functional.binary_cross_entropy_with_logits(cells[..., 4], wanted) * 10
            total = total + functional.smooth_l1_loss(own[:, :4], sides.log())
            total = total + functional.cross_entropy(own[:, 5:], chosen[:, 4].long())
        return total

    def detections(self, outputs: Any) -> list[Tensor]:
        """The boxes of both maps; of those that overlap by half, the one with the highest score."""
        rows = []
        for found in outputs:
            cells = found.movedim(1, -1)
            stride = SIDE / cells.shape[1]
            y, x = torch.meshgrid(*(torch.arange(cells.shape[1]) + 0.5,) * 2, indexing="ij")
            middle, sides = torch.stack((x, y), -1), cells[..., :4].exp()
            corners = torch.cat((middle - sides[..., :2], middle + sides[..., 2:]), -1) * stride
            best, label = cells[..., 5:].softmax(-1).max(-1)
            score = cells[..., 4].sigmoid() * best
            rows.append(torch.cat((corners, score[..., None], label[..., None].float()), -1).flatten(1, 2))
        return [_without_duplicates(image) for image in torch.cat(rows, 1)]


def _without_duplicates(rows: Tensor) -> Tensor:
    rows = rows[rows[:, 4] > 0.05]
    rows = rows[rows[:, 4].argsort(descending=True)]
    kept: list[Tensor] = []
    for row in rows:
        if all(float(_overlap(row, other)) < 0.5 for other in kept):
            kept.append(row)
    return torch.stack(kept) if kept else rows[:0]


def _overlap(one: Tensor, other: Tensor) -> Tensor:
    both = (torch.minimum(one[2:4], other[2:4]) - torch.maximum(one[:2], other[:2])).clamp(min=0).prod()
    areas = (one[2:4] - one[:2]).prod() + (other[2:4] - other[:2]).prod()
    return both / (areas - both).clamp(min=1e-6)


def shapes_head() -> ShapesHead:
    """The head of detectors."""
    return ShapesHead()


def segmenter() -> tuple[nn.Module, Tensor]:
    """A network for three classes, and its example input."""
    torch.manual_seed(0)
    return Segmenter(3), torch.randn(1, 3, SIDE, SIDE)


def detector() -> tuple[nn.Module, Tensor]:
    """A network for two classes, and its example input."""
    torch.manual_seed(0)
    return Detector(2), torch.randn(1, 3, SIDE, SIDE)
