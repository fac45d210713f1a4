"""``shapes:boxes`` and ``shapes:masks``: a generated task for detection and for segmentation, without files.

A scene has a few shapes before a textured background, and the class of an object is its outline. Place, size, direction,
texture, colours, lighting and noise vary; an object may cover a part of one behind it or reach over the border. Boxes and
masks are of the same scenes. Training images are endless: those of an epoch are functions of its number. Validation and test
images are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import UsageError
from nnstretch.support.image_size import ImageSize
from nnstretch.training.data.preprocessing import Pixels, Preprocessing
from nnstretch.training.data.sources.patterns import PATTERNS, Numbers, Plane
from nnstretch.training.data.sources.textures import (
    Difficulty,
    Range,
    as_pixels,
    axes,
    colored_plane,
    grain_noise,
    light_up,
    placed_pattern,
    put,
)
from nnstretch.training.data.split import Dataset, SpatialImages, dataset_of
from nnstretch.training.tasks.detection import Boxes, Detection
from nnstretch.training.tasks.segmentation import Mask, Segmentation

_IMAGES = 20_000, 2_000, 4_000  # of an epoch, to validate and to test
_TRAINING, _VALIDATION, _TEST = 1, 2, 3  # seeds of the splits
_MEAN, _STD = 0.5, 0.2
_BACKGROUND = "background"
_TASKS: Mapping[str, type[Detection | Segmentation]] = {"boxes": Detection, "masks": Segmentation}

_LOOK = Difficulty(
    period=Range(0.06, 0.16),
    contrast=Range(0.05, 0.3),
    background_contrast=Range(0.02, 0.12),
    light=Range(0.0, 0.3),
    grain=Range(0.02, 0.05),
)
_MOST_OBJECTS = 4
_RADIUS = Range(0.12, 0.24)  # of an object, as a share of the image's side
_ASPECT = Range(-0.15, 0.15)  # logarithm of an object's scale along one axis over that along the other
_MARGIN = 0.75  # radii that an object's centre keeps from the border
_DISTANCE = 0.8  # least distance of two centres over the sum of the radii
_TRIES = 4  # places that are tried before an object is left out
_LEAST_PIXELS = 4  # of an object that has a box


class _SceneNumbers(Numbers):
    """Uniform numbers of one scene."""

    PURPOSE, COUNT = "shapes", 256


Outline = Callable[[Plane, Plane], Plane]
"""From coordinates in radii to a signed distance from the outline in radii, positive inside."""


def _disc(u: Plane, v: Plane) -> Plane:
    return np.float32(1) - np.hypot(u, v)


def _square(u: Plane, v: Plane) -> Plane:
    return np.float32(0.84) - np.maximum(np.abs(u), np.abs(v))


def _triangle(u: Plane, v: Plane) -> Plane:
    slanted = np.float32(math.sqrt(3) / 2) * np.abs(u) - np.float32(0.5) * v
    return np.float32(0.55) - np.maximum(slanted, v)


def _ring(u: Plane, v: Plane) -> Plane:
    radius = np.hypot(u, v)
    return np.float32(0.24) - np.abs(radius - np.float32(0.76))


def _cross(u: Plane, v: Plane) -> Plane:
    across, down = np.abs(u), np.abs(v)
    return np.minimum(np.float32(0.32) - np.minimum(across, down), np.float32(1) - np.maximum(across, down))


def _half_disc(u: Plane, v: Plane) -> Plane:
    v = v + np.float32(0.4)
    return np.minimum(np.float32(1) - np.hypot(u, v), v)


OUTLINES: Mapping[str, Outline] = {
    "disc": _disc,
    "square": _square,
    "triangle": _triangle,
    "ring": _ring,
    "cross": _cross,
    "half disc": _half_disc,
}
"""Name of a class -> its outline."""


@dataclass(frozen=True)
class Thing:
    """An object of a scene.

    Attributes:
        outline: number of its outline.
        x, y: its centre, from -0.5 to 0.5.
        radius: as a share of the image's side.
        angle: by which it is turned.
        aspect: logarithm of its scale along one of its axes over that along the other, halved.
    """

    outline: int
    x: float
    y: float
    radius: float
    angle: float
    aspect: float

    def cover(self, size: int) -> Plane:
        """Which pixels the object covers, 0 to 1: ``size x size``."""
        across, down = axes(size)
        across, down = across - np.float32(self.x), down - np.float32(self.y)
        cos, sin = (np.float32(value / self.radius) for value in (math.cos(self.angle), math.sin(self.angle)))
        stretch = np.float32(math.exp(self.aspect))
        u = (cos * across + sin * down) * stretch
        v = np.asarray((cos * down - sin * across) / stretch, np.float32)
        plane = tuple(OUTLINES.values())[self.outline](u, v) * np.float32(self.radius * size)
        plane += np.float32(0.5)
        return np.clip(plane, 0, 1, out=plane)


def load(argument: str, size: ImageSize, channels: int | None, split_seed: int) -> Dataset:
    """20,000 training images an epoch, 2,000 validation and 4,000 test images; ``argument`` is ``boxes`` or ``masks``.

    Raises:
        UsageError: another argument.
    """
    if argument not in _TASKS:
        raise UsageError(f"shapes:{argument} is no data set; write {' or '.join(f'shapes:{name}' for name in _TASKS)}")
    task = _TASKS[argument]()
    channels = channels or 3
    preprocessing = Preprocessing(size, channels, (_MEAN,) * channels, (_STD,) * channels, crop_pct=1.0)
    splits = [
        ShapeSplit(preprocessing, task, np.zeros(count, np.int64), seed, endless=seed == _TRAINING)
        for seed, count in zip((_TRAINING, _VALIDATION, _TEST), _IMAGES, strict=True)
    ]
    names = tuple(OUTLINES) if isinstance(task, Detection) else (_BACKGROUND, *OUTLINES)
    return dataset_of(f"shapes:{argument}", names, splits, task=task)


@dataclass(frozen=True, eq=False)
class ShapeSplit(SpatialImages):
    """Generated scenes: squares with the larger side of the inputs.

    Attributes:
        seed: of the split.
        endless: whether every epoch has other scenes.
    """

    seed: int
    endless: bool

    @property
    def may_be_unreadable(self) -> bool:
        """They cannot."""
        return False

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``."""
        numbers = self._numbers(index, epoch)
        return painted(scene(numbers), self._size, numbers)

    def target(self, index: int, epoch: int) -> Boxes | Mask:
        """Its boxes or mask."""
        things = scene(self._numbers(index, epoch))
        owners = _owners(things, self._size)
        return boxes_of(things, owners) if isinstance(self.task, Detection) else mask_of(things, owners)

    @property
    def _size(self) -> int:
        return max(self.preprocessing.shape)

    def _numbers(self, index: int, epoch: int) -> Numbers:
        return _SceneNumbers(self.seed, epoch if self.endless else 0, index)


def scene(numbers: Numbers) -> list[Thing]:
    """The objects of a scene, from the back to the front: one or more."""
    things: list[Thing] = []
    for _ in range(1 + numbers.below(_MOST_OBJECTS)):
        outline, radius = numbers.below(len(OUTLINES)), _RADIUS.of(numbers)
        angle, aspect = numbers.between(0, 2 * math.pi), _ASPECT.of(numbers) / 2
        reach = 0.5 - _MARGIN * radius
        places = [(numbers.between(-reach, reach), numbers.between(-reach, reach)) for _ in range(_TRIES)]
        free = [place for place in places if _is_free(place, radius, things)]
        if free:
            things.append(Thing(outline, *free[0], radius, angle, aspect))
    return things


def _is_free(place: tuple[float, float], radius: float, things: list[Thing]) -> bool:
    """Whether an object there leaves the others in sight."""
    return all(math.dist(place, (one.x, one.y)) >= _DISTANCE * (radius + one.radius) for one in things)


def painted(things: list[Thing], size: int, numbers: Numbers) -> Pixels:
    """The image of a scene: ``size x size x 3``."""
    image = _textured(size, _LOOK.background_contrast, numbers)
    for thing in things:
        put(image, _textured(size, _LOOK.contrast, numbers), thing.cover(size))
    light_up(image, size, numbers, _LOOK)
    image += np.float32(_LOOK.grain.of(numbers)) * grain_noise(size, numbers)
    return as_pixels(image)


def _textured(size: int, contrast: Range, numbers: Numbers) -> Plane:
    """A random pattern in random colours, ``3 x size x size``."""
    pattern = placed_pattern(numbers.below(len(PATTERNS)), size, numbers, _LOOK)
    return colored_plane(pattern, contrast.of(numbers), numbers)


def _owners(things: list[Thing], size: int) -> NDArray[np.int64]:
    """Number of the object in front at every pixel, or -1: ``size x size``."""
    owners = np.full((size, size), -1, np.int64)
    for number, thing in enumerate(things):
        owners[thing.cover(size) > 0.5] = number
    return owners


def mask_of(things: list[Thing], owners: NDArray[np.int64]) -> Mask:
    """The class of every pixel: 0 is the background."""
    classes = np.array([*(thing.outline + 1 for thing in things), 0], np.uint8)
    return classes[owners]


def boxes_of(things: list[Thing], owners: NDArray[np.int64]) -> Boxes:
    """Boxes around what can be seen of the objects."""
    rows = []
    for number, thing in enumerate(things):
        down, across = np.nonzero(owners == number)
        if len(down) >= _LEAST_PIXELS:
            rows.append([across.min(), down.min(), across.max() + 1, down.max() + 1, thing.outline])
    return Boxes(np.array(rows, np.float32).reshape(-1, 5), *owners.shape)
