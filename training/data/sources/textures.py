"""``textures`` and ``textures:CLASSES``: a generated task without files.

An image shows a pattern (`patterns.py`) on an object before a cluttered background, and its class is the pattern. Scale,
direction, place, colours, shape of the object, lighting, occlusion and noise vary. Training images are endless: those of an
epoch are functions of its number. Validation and test images are fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import UsageError
from nnstretch.support.image_size import ImageSize
from nnstretch.training.data.preprocessing import Pixels, Preprocessing
from nnstretch.training.data.sources.patterns import PATTERNS, Canvas, Numbers, Plane
from nnstretch.training.data.split import Dataset, Indices, RawImages, dataset_of
from nnstretch.training.randomness import normals

_IMAGES = 20_000, 5_000, 10_000  # of an epoch, to validate and to test
_TRAINING, _VALIDATION, _TEST = 1, 2, 3  # seeds of the splits
_MEAN, _STD = 0.5, 0.2
_GRAIN = 512  # side of the plane that grain is cut from


@dataclass(frozen=True)
class Range:
    """Uniform numbers."""

    low: float
    high: float

    def of(self, numbers: Numbers) -> float:
        """The next one."""
        return numbers.between(self.low, self.high)


@dataclass(frozen=True)
class Difficulty:
    """How much images vary.

    Attributes:
        period: of the pattern, as a share of the image's side.
        aspect: logarithm of the pattern's scale along one axis over that along the other.
        bend: of the pattern's lines, as a share of the side.
        contrast: between the pattern's two colours, for values from 0 to 1.
        background_contrast: of the background's.
        size: radius of the object over half the side.
        distractors: share of images whose background shows another class rather than noise.
        light: largest change of brightness by lighting, from the centre to the border.
        occluders: share of images with one; as many have two.
        grain: standard deviation of the noise of pixels.
    """

    period: Range = Range(0.18, 0.32)
    aspect: Range = Range(-0.08, 0.08)
    bend: Range = Range(0.0, 0.02)
    contrast: Range = Range(0.30, 0.75)
    background_contrast: Range = Range(0.05, 0.30)
    size: Range = Range(0.65, 1.2)
    distractors: float = 0.2
    light: Range = Range(0.0, 0.35)
    occluders: float = 0.25
    grain: Range = Range(0.02, 0.06)


DIFFICULTY = Difficulty()


def load(argument: str, size: ImageSize, channels: int | None, split_seed: int) -> Dataset:
    """20,000 training images an epoch, 5,000 validation and 10,000 test images; ``argument`` is the number of classes or empty.

    Raises:
        UsageError: another number of classes than 2 to all.
    """
    classes = len(PATTERNS)
    if argument:
        if not argument.isascii() or not argument.isdigit() or not 2 <= int(argument) <= classes:
            raise UsageError(f"textures:{argument}: 2 to {classes} classes are wanted")
        classes = int(argument)
    channels = channels or 3
    preprocessing = Preprocessing(size, channels, (_MEAN,) * channels, (_STD,) * channels, crop_pct=1.0)
    splits = [
        TextureSplit(np.arange(count, dtype=np.int64) % classes, preprocessing, seed, endless=seed == _TRAINING)
        for seed, count in zip((_TRAINING, _VALIDATION, _TEST), _IMAGES, strict=True)
    ]
    name = f"textures:{argument}" if argument else "textures"
    return dataset_of(name, tuple(PATTERNS)[:classes], splits)


@dataclass(frozen=True, eq=False)
class TextureSplit(RawImages):
    """Generated images.

    Attributes:
        labels: the class of every image.
        preprocessing: with the size.
        seed: of the split.
        endless: whether every epoch has other images.
        difficulty: how much they vary.
    """

    labels: Indices
    preprocessing: Preprocessing
    seed: int
    endless: bool
    difficulty: Difficulty = DIFFICULTY

    @property
    def may_be_unreadable(self) -> bool:
        """They cannot."""
        return False

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``: a square with the larger side of the inputs."""
        numbers = Numbers(self.seed, epoch if self.endless else 0, index)
        return texture(int(self.labels[index]), max(self.preprocessing.shape), numbers, self.difficulty)


def texture(label: int, size: int, numbers: Numbers, difficulty: Difficulty = DIFFICULTY) -> Pixels:
    """An image of a class: ``size x size x 3``."""
    image = _background(label, size, numbers, difficulty)
    shown = colored_plane(placed_pattern(label, size, numbers, difficulty), difficulty.contrast.of(numbers), numbers)
    put(image, shown, _object(size, numbers, difficulty))
    light_up(image, size, numbers, difficulty)
    for _ in range(2):
        if numbers.between(0, 1) < difficulty.occluders:
            _occlude(image, size, numbers)
    image += np.float32(difficulty.grain.of(numbers)) * grain_noise(size, numbers)
    return as_pixels(image)


def as_pixels(image: Plane) -> Pixels:
    """An image ``3 x S x S`` of values from 0 to 1, which is overwritten, as bytes: ``S x S x 3``."""
    image *= np.float32(255)
    image += np.float32(0.5)
    np.clip(image, 0, 255, out=image)
    return np.ascontiguousarray(image.astype(np.uint8).transpose(1, 2, 0))


@cache
def axes(size: int) -> tuple[Plane, Plane]:
    """Coordinates of the pixels from -0.5 to 0.5: across ``1 x S``, down ``S x 1``."""
    axis = ((np.arange(size) + 0.5) / size - 0.5).astype(np.float32)
    return axis[None, :], axis[:, None]


def placed_pattern(label: int, size: int, numbers: Numbers, difficulty: Difficulty) -> Plane:
    """A class's pattern at a random scale, direction and place: ``S x S``, values from 0 to 1."""
    pattern, relative = tuple(PATTERNS.values())[label]
    x, y = axes(size)
    period = difficulty.period.of(numbers) * relative
    angle, aspect = numbers.between(0, 2 * math.pi), difficulty.aspect.of(numbers)
    cos, sin = math.cos(angle) / period, math.sin(angle) / period
    stretch = math.exp(aspect)
    u = np.float32(cos * stretch) * x + (np.float32(sin * stretch) * y + np.float32(numbers.between(-8, 8)))
    v = np.float32(-sin / stretch) * x + (np.float32(cos / stretch) * y + np.float32(numbers.between(-8, 8)))
    bend = difficulty.bend.of(numbers) / period
    turn = np.float32(numbers.between(1, 2) * 2 * math.pi)
    phase = np.float32(numbers.between(0, 2 * math.pi))
    u += np.float32(bend) * np.sin(turn * y + phase)  # S x 1: bent along one axis of the image
    v += np.float32(bend) * np.sin(turn * x + phase)
    return pattern(Canvas(u, v, period * size, numbers))


def colored_plane(plane: Plane, contrast: float, numbers: Numbers) -> Plane:
    """A pattern between two random colours, ``3 x S x S``; `contrast` is the distance of their means."""
    middle = [numbers.between(0.3, 0.7) for _ in range(3)]
    towards = [numbers.between(-0.6, 1.0) for _ in range(3)]
    scale = contrast / max(abs(sum(towards) / 3), 0.35)
    if numbers.between(0, 1) < 0.5:
        scale = -scale
    colored = np.empty((3, *plane.shape), np.float32)
    for channel, mean, step in zip(colored, middle, towards, strict=True):
        np.multiply(plane, np.float32(scale * step), out=channel)
        channel += np.float32(mean - scale * step / 2)
    return colored


def _background(label: int, size: int, numbers: Numbers, difficulty: Difficulty) -> Plane:
    """Noise, or a pattern of another class, ``3 x S x S``."""
    if numbers.between(0, 1) < difficulty.distractors:
        other = (label + 1 + numbers.below(len(PATTERNS) - 1)) % len(PATTERNS)
    else:
        other = _CLUTTER
    return colored_plane(
        placed_pattern(other, size, numbers, difficulty), difficulty.background_contrast.of(numbers), numbers
    )


_CLUTTER = tuple(PATTERNS).index("cloudy noise")


def _object(size: int, numbers: Numbers, difficulty: Difficulty) -> Plane:
    """Which pixels the object covers, 0 to 1: an ellipse, a box or something between them."""
    x, y = axes(size)
    angle = numbers.between(0, 2 * math.pi)
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    centre_x, centre_y = np.float32(numbers.between(-0.12, 0.12)), np.float32(numbers.between(-0.12, 0.12))
    radius, flatness = difficulty.size.of(numbers) / 2, numbers.between(0.75, 1.33)
    across = np.abs(cos * (x - centre_x) + sin * (y - centre_y)) * np.float32(1 / (radius * flatness))
    down = np.abs(cos * (y - centre_y) - sin * (x - centre_x)) * np.float32(flatness / radius)
    if numbers.between(0, 1) < 0.5:
        distance = 1 - np.maximum(across, down) * np.float32(1.13)  # a box of the ellipse's area
    else:
        distance = 1 - np.sqrt(across * across + down * down)
    distance *= np.float32(radius * size)
    distance += np.float32(0.5)
    return np.clip(distance, 0, 1, out=distance)


def put(image: Plane, shown: Plane, mask: Plane) -> None:
    """Shows something where the mask is 1."""
    shown -= image
    shown *= mask
    image += shown


def light_up(image: Plane, size: int, numbers: Numbers, difficulty: Difficulty) -> None:
    """Makes one side of the image brighter than the other."""
    x, y = axes(size)
    amount, angle = 2 * difficulty.light.of(numbers), numbers.between(0, 2 * math.pi)
    image *= np.float32(amount * math.cos(angle)) * x + (np.float32(amount * math.sin(angle)) * y + np.float32(1))


def _occlude(image: Plane, size: int, numbers: Numbers) -> None:
    """Covers a rectangle with one colour."""
    height, width = (max(1, round(numbers.between(0.08, 0.3) * size)) for _ in range(2))
    top, left = (numbers.below(size - side + 1) for side in (height, width))
    color = np.array([numbers.between(0.1, 0.9) for _ in range(3)], np.float32)
    image[:, top : top + height, left : left + width] = color[:, None, None]


@cache
def _grain_plane() -> NDArray[np.float32]:
    return normals(0, 1, np.arange(_GRAIN), "grain", _GRAIN).astype(np.float32)


def grain_noise(size: int, numbers: Numbers) -> Plane:
    """Standard normal noise, ``3 x S x S``."""
    plane = _grain_plane()
    if size > _GRAIN // 2:
        plane = np.tile(plane, (-(-2 * size // _GRAIN),) * 2)
    places = [(numbers.below(len(plane) - size), numbers.below(len(plane) - size)) for _ in range(3)]
    return np.stack([plane[top : top + size, left : left + size] for top, left in places])
