"""Pictures of answers: boxes with their classes, and class maps over an image."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.support.settings import atomic_write
from nnstretch.training.data.preprocessing import Pixels, in_channels, pillow
from nnstretch.vision.classes import class_name
from nnstretch.vision.detection import Detections

PICTURES: Mapping[str, str] = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""Ending of a file -> its format in Pillow."""

_GOLDEN = 0.61803398875  # neighbouring classes get hues far apart
_DARK, _LIGHT = (0, 0, 0), (255, 255, 255)


def draw_boxes(raw: Pixels, found: Detections, names: Mapping[int, str]) -> Pixels:
    """An image ``H x W x C`` with boxes, class names and probabilities: ``H x W x 3``."""
    image_module = pillow()
    from PIL import ImageDraw, ImageFont

    image = image_module.fromarray(in_channels(raw, 3))
    draw = ImageDraw.Draw(image)
    width = max(1, round(sum(image.size) / 600))
    font = ImageFont.load_default(size=max(10, round(sum(image.size) / 100)))
    for (left, top, right, bottom), score, index in reversed(list(zip(*found, strict=True))):
        colour = colour_of(int(index))
        draw.rectangle((left, top, max(left, right), max(top, bottom)), outline=colour, width=width)
        _label(draw, font, (left, top), f"{class_name(names, int(index))} {score:.2f}", colour)
    return np.asarray(image)


def _label(draw: Any, font: Any, corner: tuple[float, float], text: str, colour: tuple[int, int, int]) -> None:
    """Text on a ground of the colour above a corner, or below it at the image's upper side."""
    left, top = corner
    box = draw.textbbox((0, 0), text, font=font)
    width, height = box[2] + 4, box[3] + 4
    upper = top - height if top >= height else top
    draw.rectangle((left, upper, left + width, upper + height), fill=colour)
    bright = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] > 140
    draw.text((left + 2, upper + 2), text, fill=_DARK if bright else _LIGHT, font=font)


def draw_classes(raw: Pixels, classes: NDArray[np.integer[Any]]) -> Pixels:
    """An image ``H x W x C`` under the colours of a class map of any size; class 0 is not coloured: ``H x W x 3``."""
    image_module = pillow()
    height, width = raw.shape[:2]
    nearest = image_module.Resampling.NEAREST
    indices = np.asarray(image_module.fromarray(classes.astype(np.int32)).resize((width, height), nearest))
    found, places = np.unique(indices, return_inverse=True)
    palette = np.array([colour_of(int(index)) for index in found], np.float32)
    colours = palette[places.reshape(indices.shape)]
    image = in_channels(raw, 3).astype(np.float32)
    mixed = np.where((indices == 0)[..., None], image, (image + colours) / 2)
    return np.rint(mixed).astype(np.uint8)


def colour_of(index: int) -> tuple[int, int, int]:
    """A colour (red, green, blue) for a class."""
    red, green, blue = colorsys.hsv_to_rgb(index * _GOLDEN % 1.0, 0.85, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)


def write_picture(path: Path, pixels: Pixels) -> None:
    """Writes ``H x W x 3`` pixels in the format of the file's ending, one of `PICTURES`.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    content = BytesIO()
    pillow().fromarray(pixels).save(content, PICTURES[path.suffix.lower()])
    with atomic_write(path) as file:
        file.write(content.getvalue())
