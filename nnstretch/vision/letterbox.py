"""Letterboxing: an image scaled into the input of a detector with its aspect ratio kept, and boxes scaled back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnstretch.training.data.preprocessing import Images, Pixels, in_channels, pillow

BORDER = 114
"""Grey of the borders, as detectors of the YOLO family are trained with."""


@dataclass(frozen=True)
class Letterbox:
    """The place of an image in an input.

    Attributes:
        image: height and width of the image in pixels.
        input: height and width of the input in pixels.
    """

    image: tuple[int, int]
    input: tuple[int, int]

    @property
    def scale(self) -> float:
        """Pixels of the input per pixel of the image."""
        return min(self.input[0] / self.image[0], self.input[1] / self.image[1])

    @property
    def scaled(self) -> tuple[int, int]:
        """Height and width of the scaled image in pixels of the input, at least 1."""
        height, width = (
            min(most, max(1, round(side * self.scale))) for side, most in zip(self.image, self.input, strict=True)
        )
        return height, width

    @property
    def corner(self) -> tuple[int, int]:
        """Row and column of the scaled image's top left pixel in the input."""
        return (self.input[0] - self.scaled[0]) // 2, (self.input[1] - self.scaled[1]) // 2

    def pixels(self, raw: Pixels) -> Pixels:
        """The image ``H x W x C`` within grey borders: ``input height x input width x C``."""
        image_module = pillow()
        height, width = self.scaled
        top, left = self.corner
        image = image_module.fromarray(raw if raw.shape[2] == 3 else raw[..., 0])
        result = np.full((*self.input, raw.shape[2]), BORDER, np.uint8)
        resized = np.asarray(image.resize((width, height), image_module.Resampling.BILINEAR))
        result[top : top + height, left : left + width] = resized.reshape(height, width, raw.shape[2])
        return result

    def values(self, raw: Pixels, channels: int) -> Images:
        """The input for an image ``H x W x C``: ``1 x channels x input height x input width``, 0 … 1."""
        pixels = self.pixels(in_channels(raw, channels))
        return pixels.transpose(2, 0, 1)[None].astype(np.float32, order="C") / np.float32(255)

    def in_image(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """From pixels of the input to pixels of the image: boxes ``M x 4`` (left, top, right, bottom), cut at its sides."""
        top, left = self.corner
        height, width = self.image
        moved = (boxes - np.array((left, top, left, top), np.float32)) / np.float32(self.scale)
        return moved.clip(0, np.array((width, height, width, height), np.float32))
