"""Task-aligned assignment: which cells of a detector learn which boxes.

Feng et al., "TOOD: Task-aligned One-stage Object Detection" (arXiv:2108.07755), "Task Alignment Learning". Cells
that several boxes choose go to the box that they overlap most, as in Zhang et al., "ATSS" (arXiv:1912.02424), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nnstretch.training.libraries import library


class Assignment(NamedTuple):
    """What the cells of some images are to predict.

    Attributes:
        boxes: number of the box in its image, -1 for none: int64, ``N x A``.
        quality: the score that the box's class is to have, 0 without a box: float32, ``N x A``.
    """

    boxes: Tensor
    quality: Tensor


@dataclass(frozen=True)
class TaskAlignment:
    """The assignment; the defaults are the paper's.

    Attributes:
        alpha: exponent of the score.
        beta: exponent of the overlap.
        cells: that each box chooses at most.
    """

    alpha: float = 1.0
    beta: float = 6.0
    cells: int = 13

    @torch.no_grad()
    def assign(self, scores: Tensor, boxes: Tensor, centres: Tensor, wanted: Tensor) -> Assignment:
        """Assigns boxes to cells whose centres they contain.

        A box chooses the cells with the highest alignment ``t = score^alpha * overlap^beta``. The quality is ``t``, scaled so
        that its maximum over the cells of a box is their largest overlap with it.

        Args:
            scores: probabilities: ``N x A x C``.
            boxes: predicted by the cells: left, top, right, bottom in pixels: ``N x A x 4``.
            centres: of the cells: x and y in pixels: ``A x 2``.
            wanted: boxes to be found: left, top, right, bottom, class: ``N x M x 5``; rows of class -1 are none.
        """
        inside = _contained(centres, wanted[..., :4]) & (wanted[..., 4:] >= 0)
        overlaps = library("torchvision.ops").box_iou(wanted[..., :4], boxes).nan_to_num()  # of boxes without an area
        classes = wanted[..., 4:].long().clamp(min=0).expand(-1, -1, len(centres))
        alignment = scores.transpose(1, 2).gather(1, classes) ** self.alpha * overlaps**self.beta
        chosen = inside & _highest(alignment.masked_fill(~inside, -1.0), self.cells)
        best, owner = overlaps.masked_fill(~chosen, -1.0).max(dim=1)
        chosen &= torch.zeros_like(chosen).scatter_(1, owner[:, None], value=True)
        alignment, overlaps = alignment * chosen, overlaps * chosen
        highest = alignment.amax(dim=2, keepdim=True).clamp(min=torch.finfo(alignment.dtype).tiny)
        quality = alignment / highest * overlaps.amax(dim=2, keepdim=True)
        return Assignment(owner.where(best >= 0, -1), quality.amax(dim=1))


def _contained(centres: Tensor, boxes: Tensor) -> Tensor:
    """Whether boxes ``N x M x 4`` contain centres ``A x 2``: bool ``N x M x A``."""
    x, y = centres.T
    left, top, right, bottom = boxes[..., None].unbind(dim=2)
    found: Tensor = (left < x) & (x < right) & (top < y) & (y < bottom)
    return found


def _highest(values: Tensor, count: int) -> Tensor:
    """Marks the `count` highest values of every row, the last axis."""
    places = values.topk(min(count, values.shape[-1]), dim=-1).indices
    return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, places, value=True)
