"""Decoding of image files: any mode that Pillow reads becomes 8-bit grey or colour, upright and without alpha."""

from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.errors import first_line
from nnstretch.training.data.preprocessing import Pixels, pillow
from nnstretch.training.data.split import UnreadableImageError

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
_BACKGROUND = (255, 255, 255, 255)  # behind transparent pixels
_ORIENTATION, _TURNED = 0x0112, frozenset({5, 6, 7, 8})
"""Tag of EXIF, and its values for images whose height and width are exchanged."""


def decode(content: Path | bytes, name: str, channels: int) -> Pixels:
    """The pixels of an image file: ``H x W x channels``.

    The orientation of EXIF is applied. Transparent parts become white. Values of 16 bits keep their upper 8.

    Args:
        content: the file, or what it holds.
        name: of the image, for messages.
        channels: 1 or 3.

    Raises:
        UnreadableImageError: it is no whole image.
    """
    image_module = pillow()
    from PIL import UnidentifiedImageError

    try:
        with image_module.open(BytesIO(content) if isinstance(content, bytes) else content) as opened:
            image = _in_8_bits(_upright(opened), image_module)
            if image.mode in {"LA", "PA", "RGBA", "RGBa", "La"} or "transparency" in image.info:
                image = image.convert("RGBA")
                image = image_module.alpha_composite(image_module.new("RGBA", image.size, _BACKGROUND), image)
            image = image.convert("L" if channels == 1 else "RGB")
            pixels = np.array(image, np.uint8)
    except (OSError, SyntaxError, ValueError, TypeError, EOFError, image_module.DecompressionBombError) as error:
        unknown = isinstance(error, UnidentifiedImageError)  # its message may have an address in memory
        reason = "no image that Pillow knows" if unknown else getattr(error, "strerror", None) or first_line(error)
        raise UnreadableImageError(f"{name} ({reason})") from error
    return pixels.reshape(pixels.shape[0], pixels.shape[1], channels)


def header_size(file: Path, name: str) -> tuple[int, int]:
    """Height and width of the pixels that `decode` makes of an image file, as its header says.

    An orientation that a file states behind its pixels, as few PNG files do, is not found.

    Raises:
        UnreadableImageError: it has no header of an image.
    """
    image_module = pillow()
    try:
        with image_module.open(file) as image:
            width, height = image.size
            states = image.format != "PNG" or "exif" in image.info  # reading those of others decodes their pixels
            turned = states and image.getexif().get(_ORIENTATION) in _TURNED
    except (
        OSError,
        SyntaxError,
        ValueError,
        TypeError,
        EOFError,
        struct.error,
        image_module.DecompressionBombError,
    ) as error:
        raise UnreadableImageError(f"{name} ({getattr(error, 'strerror', None) or first_line(error)})") from error
    return (width, height) if turned else (height, width)


def _upright(image: Any) -> Any:
    """The image as its orientation says; as it is where that is damaged: the pixels may be whole."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except (struct.error, SyntaxError, ValueError, TypeError, KeyError, OverflowError):
        return image


def _in_8_bits(image: Any, image_module: Any) -> Any:
    """Grey images of 16 bits as such of 8 bits; all others as they are."""
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    return image_module.fromarray((values.astype(np.int64).clip(0, 0xFFFF) >> 8).astype(np.uint8))
