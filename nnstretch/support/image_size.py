"""The size of images: the side of squares, or height and width, as timm and torchvision take it."""

from __future__ import annotations

import re
from numbers import Integral
from typing import Any

from nnstretch.errors import UsageError

ImageSize = int | tuple[int, int]
"""Side of square images in pixels; height and width of others. `size_of` makes it: a square has one number only."""

LEAST_SIDE = 8
"""Pixels; smaller images are taken for a mistake."""
_TEXT = re.compile(r"([0-9]{1,6})(?:[x×]([0-9]{1,6}))?", re.IGNORECASE)


def size_of(height: int, width: int) -> ImageSize:
    """The size of images with this height and width in pixels."""
    return height if height == width else (height, width)


def sides(size: ImageSize) -> tuple[int, int]:
    """Height and width in pixels."""
    return size if isinstance(size, tuple) else (size, size)


def scaled(size: ImageSize, factor: float) -> ImageSize:
    """The size with both sides multiplied and rounded, at least one pixel each."""
    height, width = (max(1, round(side * factor)) for side in sides(size))
    return size_of(height, width)


def size_text(size: ImageSize) -> str:
    """In words, as in `224×224`."""
    return "×".join(map(str, sides(size)))


def parse_image_size(text: str | None) -> ImageSize | None:
    """What `--image-size` takes: `224` for squares, `48x80` for images 48 pixels high and 80 wide; None is nothing.

    Raises:
        UsageError: it is no size, or a side has less than `LEAST_SIDE` pixels.
    """
    return None if text is None else _parsed(text, "--image-size")


def _parsed(text: str, option: str) -> ImageSize:
    """The size that a text says; messages name the option."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} {text} is no size; write a side in pixels, or HEIGHTxWIDTH, as in 480x640")
    height = int(found[1])
    size = size_of(height, int(found[2] or height))
    if min(sides(size)) < LEAST_SIDE:
        raise UsageError(f"{option} {text} is too small; give sides of {LEAST_SIDE} pixels or more")
    return size


def parse_image_sizes(text: str | None) -> list[ImageSize]:
    """What `--image-sizes` takes: sizes with commas between; None is none.

    Raises:
        UsageError: one is no size, or a side has less than `LEAST_SIDE` pixels.
    """
    return [_parsed(part, "--image-sizes") for part in text.split(",")] if text is not None else []


def json_size(size: ImageSize | None) -> int | list[int] | None:
    """The size as JSON has it; `as_image_size` reads it."""
    return list(size) if isinstance(size, tuple) else size


def size_key(size: ImageSize | None) -> int | str | None:
    """The size as one value that libraries can store, such as 224 or "48x160"; `of_size_key` reads it."""
    return "x".join(map(str, size)) if isinstance(size, tuple) else size


def of_size_key(key: int | str) -> ImageSize:
    """The size that `size_key` wrote.

    Raises:
        UsageError: a text that it does not write.
    """
    return _parsed(key, "image size") if isinstance(key, str) else key


def as_image_size(value: Any) -> ImageSize:
    """A size that a caller gives or a file has: height and width may be a list, and those of a square may both be there.

    Raises:
        UsageError: it is none.
    """
    both = value if isinstance(value, list | tuple) else (value, value)
    if len(both) != 2 or not all(map(_is_side, both)):
        raise UsageError(f"image_size is {value!r}; give the side of squares in pixels, or height and width")
    return size_of(*map(int, both))


def _is_side(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) > 0
