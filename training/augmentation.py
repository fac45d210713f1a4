"""Augmentation of training images: random shift, rotation, scale and mirroring, a batch at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Augmentation:
    """Largest changes; every image draws its own amounts, uniformly.

    Attributes:
        shift: along each axis, as a share of the image's side.
        rotation: in degrees, in both directions.
        scale: 0.1 means sizes between 1/1.1 and 1.1 times the original, separately along each axis.
        mirror: whether half of the images are flipped left to right.
    """

    shift: float = 0.0
    rotation: float = 0.0
    scale: float = 0.0
    mirror: bool = False

    def matrices(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` affine maps from output to input coordinates, ``count x 2 x 3``, both in [-1, 1]."""

        def draw(limit: float) -> Tensor:
            return (torch.rand(count, generator=generator) * 2 - 1) * limit

        angle = draw(math.radians(self.rotation))
        log_scale = math.log1p(self.scale)
        scale_x, scale_y = torch.exp(draw(log_scale)), torch.exp(draw(log_scale))
        # The coordinates span 2, so a shift by the whole side is 2.
        shift_x, shift_y = draw(2 * self.shift), draw(2 * self.shift)
        side = torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0) if self.mirror else 1.0
        cos, sin = torch.cos(angle), torch.sin(angle)
        rows = (
            torch.stack((cos * scale_x * side, -sin * scale_y, shift_x), dim=1),
            torch.stack((sin * scale_x * side, cos * scale_y, shift_y), dim=1),
        )
        return torch.stack(rows, dim=1)

    def apply(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Changed copies of ``images`` (``N x C x H x W``); what lies outside repeats the border.

        With all amounts at zero the images are returned unchanged, and nothing is drawn.
        """
        if self == Augmentation():
            return images
        grid = functional.affine_grid(
            self.matrices(len(images), generator).to(images), list(images.shape), align_corners=False
        )
        return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
