"""From a decoded image to the input of a network. It travels with weights, ONNX files and packages. Needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import FileError, UsageError
from nnstretch.support.image_size import ImageSize, as_image_size, sides, size_of, size_text
from nnstretch.support.json_text import DAMAGED, json_fault
from nnstretch.support.settings import write_text

Pixels = NDArray[np.uint8]
"""``H x W x C``, or ``N x H x W x C``."""
Images = NDArray[np.float32]
"""``N x C x H x W``."""

PREPROCESSING_KEY = "nnstretch.preprocessing"
"""Key of the JSON in the metadata of ONNX files and packages."""

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
PHOTO_MEAN, PHOTO_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Statistics of ImageNet's training images (red, green, blue), usual for any photographs."""
CROP_PCT = 224 / 256
_CROP_PCTS = {300: 300 / 342, 456: 456 / 522}  # those of NN-Stretch's baselines
_GREY = np.array((0.299, 0.587, 0.114), np.float32)  # ITU-R BT.601, as Pillow's
_LARGEST = 2**14


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes an input: it is resized to cover the input, the centre is cut out, values 0 … 1 are normalised.

    Attributes:
        image_size: of the input.
        channels: 1 (grey) or 3 (red, green, blue).
        mean, std: of the normalisation, per channel.
        crop_pct: side of the input over that of what the resized image covers.
        interpolation: of the resizing, one of `INTERPOLATIONS`.
    """

    image_size: ImageSize
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = CROP_PCT
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        """Checks every value; `image_size` may be a list of height and width.

        Raises:
            UsageError: a value out of its range; names it and the range.
        """
        object.__setattr__(self, "image_size", as_image_size(self.image_size))
        if self.channels not in {1, 3}:
            raise UsageError(f"preprocessing: channels is {self.channels}; 1 or 3 is wanted")
        for side in self.shape:
            if side not in range(1, _LARGEST + 1):
                raise UsageError(f"preprocessing: a side of image_size is {side}; 1 to {_LARGEST} is wanted")
        if not 0 < self.crop_pct <= 1:
            raise UsageError(f"preprocessing: crop_pct is {self.crop_pct}; above 0 and up to 1 is wanted")
        if self.interpolation not in INTERPOLATIONS:
            raise UsageError(
                f"preprocessing: interpolation is {self.interpolation!r}; one of {', '.join(INTERPOLATIONS)} is wanted"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels or not all(math.isfinite(value) for value in values):
                raise UsageError(f"preprocessing: {name} is {list(values)}; {self.channels} numbers are wanted")
        if min(self.std) <= 0:
            raise UsageError(f"preprocessing: std is {list(self.std)}; numbers above 0 are wanted")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the input in pixels."""
        return sides(self.image_size)

    @property
    def covered(self) -> tuple[int, int]:
        """Height and width in pixels of what a resized image covers, and one of its sides equals, before the centre crop."""
        height, width = (max(side, round(side / self.crop_pct)) for side in self.shape)
        return height, width

    @property
    def channel_order(self) -> str:
        """The order of the channels: "RGB", or "grey" for a single one."""
        return "RGB" if self.channels == 3 else "grey"

    @property
    def text(self) -> str:
        """All of it in one line."""
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        covered = size_of(*self.covered)
        before = size_text(covered) if isinstance(covered, tuple) else f"{covered}"
        return (
            f"{size_text(self.image_size)} pixels, {self.channel_order}, of values 0 to 1 mean {mean} and std {std}, "
            f"{self.interpolation} from {before} pixels"
        )

    @property
    def steps(self) -> str:
        """What is done to an image, step by step, for readers who do not know the fields."""
        mean, std = (" / ".join(f"{value:.3g}" for value in values) for values in (self.mean, self.std))
        covered, size = size_text(size_of(*self.covered)), size_text(self.image_size)
        crop = f"the centre of {size} is cut out" if covered != size else "what is longer is cut off"
        colours = "red, green, blue" if self.channels == 3 else "grey"
        return (
            f"resize to cover {covered} pixels ({self.interpolation}), {crop}; {colours}, values 0 to 1; subtract {mean}, "
            f"divide by {std}"
        )

    @property
    def cropping(self) -> str:
        """Which part of an image becomes the input, in a line; empty if nothing but the ends of its longer side is cut off."""
        if self.crop_pct == 1:
            return ""
        used = f"and their centre of {size_text(self.image_size)} is used (crop_pct {self.crop_pct:.3g})"
        return f"images are resized to cover {size_text(size_of(*self.covered))} pixels, {used}"

    def pixels(self, raw: Pixels) -> Pixels:
        """A decoded image (``H x W x C``, 1 or 3 channels) resized and cropped: ``height x width x channels``."""
        return self.cropped(in_channels(raw, self.channels))

    def cropped(self, raw: Pixels) -> Pixels:
        """A decoded image ``H x W x C`` resized and cropped, with its own number of channels: ``height x width x C``."""
        if raw.shape[:2] == self.shape == self.covered:
            return raw
        image_module = pillow()
        image = image_module.fromarray(raw if raw.shape[2] == 3 else raw[..., 0])
        return self._cut(image, image_module.Resampling[self.interpolation.upper()]).reshape(*self.shape, raw.shape[2])

    def cropped_mask(self, mask: Pixels) -> Pixels:
        """A mask ``H x W`` of an image, as `cropped` treats the image, but with the values of the nearest pixels."""
        image_module = pillow()
        return self._cut(image_module.fromarray(mask), image_module.Resampling.NEAREST)

    def crop_of(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """How images of a size are resized and cropped.

        Args:
            height: of the image in pixels.
            width: of the image in pixels.

        Returns:
            Height and width of the resized image; row and column of its pixel in the corner of the input, at the top left.
        """
        high, wide = self.covered
        factor = max(high / height, wide / width)
        resized = max(high, round(height * factor)), max(wide, round(width * factor))
        return resized, ((resized[0] - self.shape[0]) // 2, (resized[1] - self.shape[1]) // 2)

    def _cut(self, image: Any, resampling: Any) -> Pixels:
        """The input's part of a Pillow image."""
        (height, width), (top, left) = self.crop_of(image.height, image.width)
        image = image.resize((width, height), resampling)
        return np.array(image.crop((left, top, left + self.shape[1], top + self.shape[0])), np.uint8)

    def normalised(self, pixels: Pixels) -> Images:
        """``N x H x W x C`` pixels as inputs: ``N x C x H x W``."""
        images = pixels.transpose(0, 3, 1, 2).astype(np.float32, order="C")
        images /= 255
        return normalise(images, self.mean, self.std)

    def denormalised(self, images: Images) -> Pixels:
        """The pixels of inputs ``N x C x H x W``, rounded: ``N x H x W x C``."""
        mean, std = (np.array(values, np.float32).reshape(1, -1, 1, 1) for values in (self.mean, self.std))
        pixels = np.rint((images * std + mean) * 255).clip(0, 255).astype(np.uint8)
        return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))

    def to_json(self) -> str:
        """As a JSON object; `preprocessing_from_json` reads it."""
        return json.dumps(self.to_object())

    def to_object(self) -> dict[str, Any]:
        """What `to_json` writes."""
        return asdict(self)


def preprocessing_from_json(text: str, source: str) -> Preprocessing:
    """What `Preprocessing.to_json` wrote.

    Args:
        text: the JSON.
        source: the file that has it, for messages.

    Raises:
        FileError: it is no such object, or has impossible values.
    """
    try:
        values = json.loads(text)
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        if "width" in fields:  # as earlier versions wrote inputs that are not square
            fields["image_size"] = fields["image_size"], fields.pop("width")
        return Preprocessing(**fields)
    except (UsageError, *DAMAGED) as error:
        raise FileError(
            f"{source} states a preprocessing that cannot be read ({error}); write the file again"
        ) from error


def stated_preprocessing(metadata: Mapping[str, Any], source: str) -> Preprocessing | None:
    """What the metadata of an ONNX file or package say of its images; None where they say nothing.

    Args:
        metadata: of the file.
        source: the file, for messages.

    Raises:
        FileError: what they say cannot be understood.
    """
    text = metadata.get(PREPROCESSING_KEY)
    return None if text is None else preprocessing_from_json(str(text), source)


def write_preprocessing(model: Path, preprocessing: Preprocessing) -> Path:
    """Writes the preprocessing of a standalone model to the JSON file beside it, ``MODEL.json``; returns its path.

    Raises:
        FileError: it cannot be written.
    """
    path = _beside(model)
    write_text(path, json.dumps({PREPROCESSING_KEY: preprocessing.to_object()}, indent=1) + "\n")
    return path


def preprocessing_beside(model: Path) -> Preprocessing | None:
    """What `write_preprocessing` wrote; None if there is no such file.

    Raises:
        FileError: it cannot be read.
    """
    path = _beside(model)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        stated = json.dumps(content[PREPROCESSING_KEY])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{path} states no preprocessing ({json_fault(error)}); write it again, or remove it"
        ) from error
    return preprocessing_from_json(stated, str(path))


def _beside(model: Path) -> Path:
    return model.with_name(f"{model.name}.json")


def default_crop_pct(size: ImageSize) -> float:
    """`crop_pct` for photographs of a size, unless a recipe says another."""
    return CROP_PCT if isinstance(size, tuple) else _CROP_PCTS.get(size, CROP_PCT)


def photo_preprocessing(size: ImageSize, channels: int) -> Preprocessing:
    """The preprocessing of photographs whose own statistics are not known."""
    mean = PHOTO_MEAN if channels == 3 else (sum(PHOTO_MEAN) / 3,)
    std = PHOTO_STD if channels == 3 else (sum(PHOTO_STD) / 3,)
    return Preprocessing(size, channels, mean, std, default_crop_pct(size))


def in_channels(raw: Pixels, channels: int) -> Pixels:
    """An image ``H x W x C`` with as many channels: grey is repeated, colours become their luminance.

    Raises:
        UsageError: it has another form than an image.
    """
    if raw.ndim != 3 or raw.dtype != np.uint8 or raw.shape[2] not in {1, 3} or not raw.size:
        raise UsageError(f"an image is {raw.dtype} {list(raw.shape)}; uint8 H x W x C with 1 or 3 channels is wanted")
    if raw.shape[2] == channels:
        return raw
    if channels == 3:
        return np.repeat(raw, 3, axis=2)
    grey: Pixels = np.rint(raw @ _GREY).astype(np.uint8)[..., None]
    return grey


def normalise(pixels: Images, mean: Sequence[float], std: Sequence[float]) -> Images:
    """Pixels ``N x C x H x W`` minus ``mean``, divided by ``std``, per channel; computed in place and returned."""
    pixels -= np.array(mean, np.float32).reshape(1, -1, 1, 1)
    pixels /= np.array(std, np.float32).reshape(1, -1, 1, 1)
    return pixels


def pillow() -> Any:
    """Pillow's module for images; `nnstretch.support.extras` names the extra where it is not installed."""
    from PIL import Image

    return Image
