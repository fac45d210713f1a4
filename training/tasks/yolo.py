"""The head of anchor-free detectors in the manner of YOLO (`--head yolo`): loss and boxes.

A cell predicts a score for every class, and for each side of a box a distribution over `bins` distances from the cell's
centre: 0, 1 … times the stride. The distance is its expectation.

Assignment of boxes to cells, and the loss of scores: Feng et al., "TOOD" (arXiv:2108.07755), "Task Alignment Learning".
Distributions and their loss: Li et al., "Generalized Focal Loss" (arXiv:2006.04388), "Distribution Focal Loss". Loss of boxes:
Zheng et al., "Distance-IoU Loss" (arXiv:1911.08287), "Complete IoU Loss". Sum and weights of the losses: Xu et al., "PP-YOLOE"
(arXiv:2203.16250), "Efficient Task-aligned Head".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree

from nnstretch.errors import ModelError
from nnstretch.support.image_size import ImageSize, sides
from nnstretch.training.libraries import library
from nnstretch.training.tasks.task_alignment import TaskAlignment
from nnstretch.vision.detection import MOST_BOXES, OVERLAP, STRIDES, Detections, suppressed

BINS = 16
"""Distances of a distribution in YOLOv8 and YOLO11."""
_LARGEST_STRIDE = 128
_LEAST_SCORE = 0.001  # average precision counts boxes of low scores, too
_MOST_CANDIDATES = 3000  # per image, before suppression
_LEAST_EXTENT = 1e-3  # pixels: CIoU compares ratios of sides


@dataclass(frozen=True)
class LossWeights:
    """Weights of the parts of the loss, and the exponent of the scores' part.

    Attributes:
        scores, boxes, distributions: of the parts.
        focus: exponent of the distance of a score from its target, by which its cross entropy is multiplied.
    """

    scores: float = 1.0
    boxes: float = 2.5
    distributions: float = 0.5
    focus: float = 2.0


class _Level(NamedTuple):
    """The cells of one map."""

    height: int
    width: int
    stride: int


class _Form(NamedTuple):
    """How outputs are read.

    Attributes:
        parts: tensors whose channels, and then whose cells, are put together: one list per map.
        levels: of the maps, the finest first.
        is_decoded: whether there are boxes and probabilities in the place of distributions and logits.
    """

    parts: list[list[Any]]
    levels: list[_Level]
    is_decoded: bool


class _Predictions(NamedTuple):
    """What the cells of some images predict.

    Attributes:
        scores: ``N x A x C`` probabilities.
        logits: of the scores; None where only probabilities are known.
        boxes: ``N x A x 4``: left, top, right, bottom in pixels.
        distributions: logits: ``N x A x 4 x bins``; None where only boxes are known.
        centres: ``A x 2``: x, y in pixels.
        strides: ``A x 1`` in pixels.
    """

    scores: Tensor
    logits: Tensor | None
    boxes: Tensor
    distributions: Tensor | None
    centres: Tensor
    strides: Tensor


class YoloHead:
    """Loss and boxes of a detector, a `DetectionHead`.

    The network writes, of every cell, ``4 * bins`` logits of distances (left, top, right, bottom) and a logit per class:

    - maps ``N x (4 * bins + C) x H x W``, one per stride, or two of a size, distances first; what it writes beside maps does
      not count;
    - or the cells of all maps in one tensor ``N x (4 * bins + C) x A``, or in two, distances first;
    - or, as exported files do, ``N x (4 + C) x A``: centre, width and height of boxes in pixels, and probabilities. Their
      distributions are not known, so the loss has no part for these.
    """

    def __init__(
        self,
        num_classes: int,
        image_size: ImageSize,
        *,
        bins: int = BINS,
        weights: LossWeights | None = None,
        alignment: TaskAlignment | None = None,
    ) -> None:
        """Takes the form of the outputs.

        Args:
            num_classes: number of classes, C.
            image_size: of the inputs.
            bins: distances of a distribution; 2 or more.
            weights: of the parts of the loss.
            alignment: assigns boxes to cells.
        """
        self._classes, self._size, self._bins = num_classes, sides(image_size), bins
        self._weights, self._alignment = weights or LossWeights(), alignment or TaskAlignment()

    def check_outputs(self, outputs: Any, images: int) -> None:
        """Checks the form of a network's outputs, tensors or arrays.

        Raises:
            ModelError: they are of another form, or for other classes.
        """
        self._form(outputs, images)

    def loss(self, outputs: Any, boxes: Tensor) -> Tensor:
        """The weighted sum of three losses, each divided by the sum of the qualities of all cells that have boxes.

        Args:
            outputs: what the network returns, in float32.
            boxes: ``N x M x 5``: left, top, right, bottom in pixels, class; rows of class -1 are none.
        """
        found, weights = self._read(outputs, len(boxes)), self._weights
        assigned = self._alignment.assign(found.scores.detach(), found.boxes.detach(), found.centres, boxes)
        image, cell = torch.nonzero(assigned.boxes >= 0, as_tuple=True)
        wanted, quality = boxes[image, assigned.boxes[image, cell]], assigned.quality[image, cell]
        targets = torch.zeros_like(found.scores)
        targets[image, cell, wanted[:, 4].long()] = quality
        total = weights.scores * self._score_loss(found, targets)
        total = total + weights.boxes * (_box_losses(found.boxes[image, cell], wanted[:, :4]) * quality).sum()
        if found.distributions is not None:
            distances = _distances(found.centres[cell], wanted[:, :4]) / found.strides[cell]
            losses = distribution_losses(found.distributions[image, cell], distances)
            total = total + weights.distributions * (losses.mean(dim=1) * quality).sum()
        return total / quality.sum().clamp(min=1.0)

    def detections(self, outputs: Any) -> list[Tensor]:
        """The boxes of every image, without those that a more probable box of their class overlaps: each ``K x 6``."""
        found = self._read(outputs, None)
        high, wide = self._size
        limits = torch.tensor((wide, high, wide, high), dtype=found.boxes.dtype)
        boxes = found.boxes.clamp(min=0).minimum(limits)
        return [_without_duplicates(*one) for one in zip(boxes, found.scores, strict=True)]

    # -- outputs -------------------------------------------------------------------------------------------------

    def _form(self, outputs: Any, images: int | None) -> _Form:
        """How outputs are read; `images` is their number, if it is known.

        Raises:
            ModelError: they are of another form.
        """
        tensors = [one for one in _pytree.tree_leaves(outputs) if hasattr(one, "shape")]
        maps: dict[tuple[int, int], list[Any]] = {}
        for one in tensors:
            if len(one.shape) == 4:
                maps.setdefault((int(one.shape[2]), int(one.shape[3])), []).append(one)
        raw, decoded = 4 * self._bins + self._classes, 4 + self._classes
        if maps:
            parts = [maps[size] for size in sorted(maps, reverse=True)]
            levels = [self._level(*size) for size in sorted(maps, reverse=True)]
        else:
            parts = [[one for one in tensors if len(one.shape) == 3]]
            levels = self._levels({int(one.shape[2]) for one in parts[0]})
        channels = {sum(int(one.shape[1]) for one in some) for some in parts}
        counts = {int(one.shape[0]) for some in parts for one in some}
        is_decoded = channels == {decoded} and not maps and len(parts[0]) == 1
        known = [level for level in levels if level is not None]
        if not known or len(known) < len(levels) or len(counts) != 1 or not (is_decoded or channels == {raw}):
            raise ModelError(self._refusal(tensors))
        if images is not None and counts != {images}:
            raise ModelError(self._refusal(tensors, images))
        return _Form(parts, known, is_decoded)

    def _refusal(self, tensors: Sequence[Any], images: int | None = None) -> str:
        written = " and ".join(str([*map(int, one.shape)]) for one in tensors) or "no tensor"
        high, wide = self._size
        for_images = "" if images is None else f" for {images} images"
        raw, decoded = 4 * self._bins + self._classes, 4 + self._classes
        return (
            f"the network writes {written}{for_images}; a detector of {self._classes} classes that --head yolo reads writes, "
            f"for images of {high}×{wide} pixels, maps of {raw} channels (4 × {self._bins} distances, and the classes) or "
            f"{decoded} channels of every cell (boxes and probabilities), at strides such as 8, 16 and 32: use the data and "
            "the image size that it was made for, or give --head FILE.py:FACTORY"
        )

    def _level(self, height: int, width: int) -> _Level | None:
        """The cells of a map, by its size; None if no stride gives it."""
        stride = 1
        while stride <= _LARGEST_STRIDE:
            if self._cells(stride) == (height, width):
                return _Level(height, width, stride)
            stride *= 2
        return None

    def _levels(self, counts: set[int]) -> list[_Level | None]:
        """The maps whose cells are in one axis; empty if no usual strides have that number."""
        for strides in STRIDES:
            levels = [_Level(*self._cells(stride), stride) for stride in strides]
            if counts == {sum(level.height * level.width for level in levels)}:
                return list(levels)
        return []

    def _cells(self, stride: int) -> tuple[int, int]:
        high, wide = self._size
        return -(-high // stride), -(-wide // stride)

    def _read(self, outputs: Any, images: int | None) -> _Predictions:
        form = self._form(outputs, images)
        rows = torch.cat([torch.cat(some, dim=1).flatten(2) for some in form.parts], dim=2).transpose(1, 2)
        centres, strides = _cells(form.levels, rows)
        if form.is_decoded:
            middle, extent, scores = torch.split(rows, [2, 2, self._classes], dim=2)
            boxes = torch.cat((middle - extent / 2, middle + extent / 2), dim=2)
            return _Predictions(scores, None, boxes, None, centres, strides)
        logits = rows[..., 4 * self._bins :]
        distributions = torch.unflatten(rows[..., : 4 * self._bins], 2, (4, self._bins))
        distances = distributions.softmax(dim=3) @ torch.arange(self._bins, dtype=rows.dtype, device=rows.device)
        reach = distances * strides
        boxes = torch.cat((centres - reach[..., :2], centres + reach[..., 2:]), dim=2)
        return _Predictions(logits.sigmoid(), logits, boxes, distributions, centres, strides)

    # -- losses --------------------------------------------------------------------------------------------------

    def _score_loss(self, found: _Predictions, targets: Tensor) -> Tensor:
        """Sum of the cross entropies of all scores, each multiplied by a power of its distance from the target."""
        if found.logits is None:
            entropies = functional.binary_cross_entropy(found.scores, targets, reduction="none")
        else:
            entropies = functional.binary_cross_entropy_with_logits(found.logits, targets, reduction="none")
        return ((targets - found.scores).abs() ** self._weights.focus * entropies).sum()


def distribution_losses(logits: Tensor, distances: Tensor) -> Tensor:
    """Distribution focal losses: cross entropies of the two bins beside a distance, weighted by their nearness to it.

    Generalized Focal Loss, equation 6.

    Args:
        logits: ``… x bins``.
        distances: in bins, ``…``; those out of range are taken for the nearest one in it.
    """
    last = logits.shape[-1] - 1
    distances = distances.clamp(0.0, last)
    lower = distances.long().clamp(max=last - 1)
    beyond = distances - lower
    entropies = -logits.log_softmax(dim=-1)
    below, above = (entropies.gather(-1, bins[..., None])[..., 0] for bins in (lower, lower + 1))
    return below * (1 - beyond) + above * beyond


def _box_losses(found: Tensor, wanted: Tensor) -> Tensor:
    """CIoU losses of boxes ``P x 4``: ``P``."""
    least = found[:, :2] + _LEAST_EXTENT
    whole = torch.cat((found[:, :2], found[:, 2:].maximum(least)), dim=1)
    losses: Tensor = library("torchvision.ops").complete_box_iou_loss(whole, wanted)
    return losses


def _distances(centres: Tensor, boxes: Tensor) -> Tensor:
    """Distances of the sides of boxes from centres, in pixels: ``P x 4``."""
    return torch.cat((centres - boxes[:, :2], boxes[:, 2:] - centres), dim=1)


def _cells(levels: Sequence[_Level], like: Tensor) -> tuple[Tensor, Tensor]:
    """Centres ``A x 2`` and strides ``A x 1`` of the cells of all maps, row by row."""
    centres, strides = [], []
    for height, width, stride in levels:
        y, x = ((torch.arange(count, dtype=like.dtype, device=like.device) + 0.5) * stride for count in (height, width))
        centres.append(torch.stack((x.repeat(height), y.repeat_interleave(width)), dim=1))
        strides.append(like.new_full((height * width, 1), stride))
    return torch.cat(centres), torch.cat(strides)


def _without_duplicates(boxes: Tensor, scores: Tensor) -> Tensor:
    """The boxes of an image: ``K x 6``: left, top, right, bottom, score, class; the most probable first.

    Args:
        boxes: of the cells: ``A x 4``.
        scores: of every class: ``A x C``. A cell may have several classes.
    """
    best = scores.flatten().topk(min(_MOST_CANDIDATES, scores.numel()))
    places = best.indices[best.values >= _LEAST_SCORE].numpy()
    cells, classes = np.divmod(places, scores.shape[1])
    found = Detections(boxes.numpy()[cells], scores.numpy()[cells, classes], classes)
    found = found.chosen(suppressed(found, OVERLAP)[:MOST_BOXES])
    columns = (found.boxes, found.scores[:, None], found.classes[:, None])
    return torch.from_numpy(np.concatenate(columns, axis=1).astype(np.float32))
