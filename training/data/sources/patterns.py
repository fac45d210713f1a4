"""Patterns of the generated task `textures`: functions of the plane with values from 0 to 1.

Two classes that stand beside each other in `PATTERNS` differ in one property only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from nnstretch.training.randomness import normals, uniforms

Plane = NDArray[np.float32]
"""One value per pixel: ``S x S``."""
_TAU = np.float32(2 * np.pi)
_BANK = 256  # side of the noise tiles
_CELLS = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77), np.uint32(0xC2B2AE3D)


class Numbers:
    """Uniform numbers of one image, taken one after the other.

    Attributes:
        taken: how many were.
    """

    PURPOSE, COUNT = "textures", 96
    """What the numbers are drawn for, and how many of them there are."""

    def __init__(self, seed: int, epoch: int, number: int) -> None:
        self._values = uniforms(seed, epoch, np.array([number]), self.PURPOSE, self.COUNT)[0].tolist()
        self.taken = 0

    def between(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        value: float = self._values[self.taken]
        self.taken += 1
        return low + (high - low) * value

    def below(self, count: int) -> int:
        """An integer from 0 to ``count - 1``."""
        return int(self.between(0, count))


@dataclass(frozen=True)
class Canvas:
    """Where a pattern is drawn.

    Attributes:
        u, v: coordinates of every pixel, in periods of the pattern.
        period: in pixels.
        numbers: random numbers.
    """

    u: Plane
    v: Plane
    period: float
    numbers: Numbers

    def filled(self, distance: Plane) -> Plane:
        """1 where a signed distance (in periods) is positive and 0 where it is negative, with an edge of about a pixel."""
        plane = distance * np.float32(0.7 * self.period)
        plane += np.float32(0.5)
        return np.clip(plane, 0, 1, out=plane)


Pattern = Callable[[Canvas], Plane]


def _wave(position: Plane) -> Plane:
    """A sine of period 1."""
    wave: Plane = np.sin(position * _TAU)
    return wave


def _bars(canvas: Canvas, position: Plane) -> Plane:
    share = canvas.numbers.between(0.35, 0.65)
    return canvas.filled(np.float32(share / 2) - np.abs(position - np.rint(position)))


def _grating(canvas: Canvas) -> Plane:
    return np.float32(0.5) + np.float32(0.5) * _wave(canvas.u)


def _stripes(canvas: Canvas) -> Plane:
    return _bars(canvas, canvas.u)


def _waves(canvas: Canvas) -> Plane:
    return _bars(canvas, canvas.u + np.float32(canvas.numbers.between(0.25, 0.5)) * _wave(canvas.v * np.float32(0.6)))


def _broken_stripes(canvas: Canvas) -> Plane:
    """Stripes that jump to the side and back again."""
    row = np.floor(canvas.v * np.float32(0.6))
    jumped = row - np.float32(2) * np.floor(row * np.float32(0.5))
    return _bars(canvas, canvas.u + np.float32(canvas.numbers.between(0.35, 0.5)) * jumped)


def _checks(canvas: Canvas) -> Plane:
    half = np.float32(0.5)
    return canvas.filled(_wave(canvas.u * half) * _wave(canvas.v * half) * np.float32(0.3))


def _triangles(canvas: Canvas) -> Plane:
    product = np.float32(0.5)
    u, v = canvas.u * np.float32(0.6), canvas.v * np.float32(0.6)
    waves = (
        _wave(u)
        * _wave(np.float32(-0.5) * u + np.float32(0.866) * v)
        * _wave(np.float32(0.5) * u + np.float32(0.866) * v)
    )
    return canvas.filled(waves * product)


def _mortar(canvas: Canvas, offset: float) -> Plane:
    """Lines around cells twice as wide as high; every other row is moved by a share of a cell."""
    row = np.floor(canvas.v)
    column = canvas.u * np.float32(0.5) + np.float32(offset) * (row - 2 * np.floor(row * np.float32(0.5)))
    gap = np.float32(canvas.numbers.between(0.08, 0.16))
    in_row = np.float32(0.5) - np.abs(canvas.v - row - np.float32(0.5))
    in_column = np.float32(2) * np.abs(column - np.rint(column))
    return canvas.filled(np.minimum(in_row, in_column) - gap)


def _tiles(canvas: Canvas) -> Plane:
    return _mortar(canvas, 0.0)


def _bricks(canvas: Canvas) -> Plane:
    return _mortar(canvas, 0.5)


def _square_dots(canvas: Canvas) -> Plane:
    u, v = canvas.u - np.rint(canvas.u), canvas.v - np.rint(canvas.v)
    return canvas.filled(np.float32(canvas.numbers.between(0.22, 0.34)) - np.sqrt(u * u + v * v))


def _hexagonal_dots(canvas: Canvas) -> Plane:
    height = np.float32(0.866)
    row = np.rint(canvas.v / height)
    column = canvas.u + np.float32(0.5) * (row - 2 * np.floor(row * np.float32(0.5)))
    u, v = column - np.rint(column), canvas.v - row * height
    return canvas.filled(np.float32(canvas.numbers.between(0.22, 0.34)) - np.sqrt(u * u + v * v))


def _around(canvas: Canvas, arms: int) -> Plane:
    middle = len(canvas.u) // 2, len(canvas.u) // 2  # the centre lies on the object, or rings and spirals were alike
    centre = [plane[middle] + np.float32(canvas.numbers.between(-1, 1)) for plane in (canvas.u, canvas.v)]
    u, v = canvas.u - centre[0], canvas.v - centre[1]
    position = np.sqrt(u * u + v * v)
    if arms:
        position += np.arctan2(v, u) * np.float32((1 if canvas.numbers.between(0, 1) < 0.5 else -1) * arms) / _TAU
    return _bars(canvas, position)


def _rings(canvas: Canvas) -> Plane:
    return _around(canvas, 0)


def _spiral(canvas: Canvas) -> Plane:
    return _around(canvas, 1)


def _plaid(canvas: Canvas) -> Plane:
    return np.float32(0.5) + np.float32(0.25) * (_wave(canvas.u) + _wave(canvas.v))


def _slanted_plaid(canvas: Canvas) -> Plane:
    slanted = np.float32(0.5) * canvas.u + np.float32(0.866) * canvas.v
    return np.float32(0.5) + np.float32(0.25) * (_wave(canvas.u) + _wave(slanted))


@cache
def _noise_tile(exponent: float, low: float, high: float, stretch: float) -> Plane:
    """Periodic noise, ``256 x 256``, whose mean is 0.5 and whose standard deviation is 0.22.

    Args:
        exponent: amplitudes fall with the frequency to this power.
        low: lowest frequency, in cycles per tile.
        high: highest frequency.
        stretch: of the frequencies across the first axis: lines rather than blobs.
    """
    white = normals(0, 0, np.arange(_BANK), "noise", _BANK)
    along = np.fft.fftfreq(_BANK, 1 / _BANK)[:, None]
    across = np.fft.rfftfreq(_BANK, 1 / _BANK)[None, :]
    frequency = np.hypot(along * stretch, across / stretch)
    amplitude = np.where((frequency >= low) & (frequency <= high), np.maximum(frequency, 1) ** -exponent, 0)
    noise = np.fft.irfft2(np.fft.rfft2(white) * amplitude, (_BANK, _BANK))
    tile: Plane = (0.5 + 0.22 * (noise - noise.mean()) / noise.std()).clip(0, 1).astype(np.float32)
    return tile


def noise(canvas: Canvas, tile: Plane, pixels_per_period: float) -> Plane:
    """Noise from a random place of a tile."""
    across = (canvas.u * np.float32(pixels_per_period) + np.float32(canvas.numbers.between(0, _BANK))).astype(np.int32)
    down = (canvas.v * np.float32(pixels_per_period) + np.float32(canvas.numbers.between(0, _BANK))).astype(np.int32)
    across &= _BANK - 1
    down &= _BANK - 1
    down *= _BANK
    down += across
    return tile.ravel()[down]


def _rough(canvas: Canvas) -> Plane:
    return noise(canvas, _noise_tile(0.9, 1, 128, 1.0), 12)


def _cloudy(canvas: Canvas) -> Plane:
    return noise(canvas, _noise_tile(1.5, 1, 128, 1.0), 12)


def _blobs(canvas: Canvas) -> Plane:
    return noise(canvas, _noise_tile(0.0, 12, 22, 1.0), 14)


def _fibres(canvas: Canvas) -> Plane:
    return noise(canvas, _noise_tile(0.0, 10, 24, 1.5), 14)


def _cells(canvas: Canvas) -> tuple[Plane, Plane]:
    """Coordinates within the cells of a grid, each cell turned by an angle of its own."""
    column, row = np.rint(canvas.u), np.rint(canvas.v)
    words = column.astype(np.int32).view(np.uint32) * _CELLS[0] ^ row.astype(np.int32).view(np.uint32) * _CELLS[1]
    words ^= np.uint32(canvas.numbers.below(2**31))
    words *= _CELLS[2]
    angle = (words >> np.uint32(16)).astype(np.float32) * np.float32(2 * np.pi / 2**16)
    u, v = canvas.u - column, canvas.v - row
    cos, sin = np.cos(angle), np.sin(angle)
    return u * cos - v * sin, u * sin + v * cos


def _polygons(canvas: Canvas, sides: int, largest: float) -> Plane:
    """Filled polygons; `largest` is the largest distance of their sides from their centres."""
    u, v = _cells(canvas)
    sector = np.float32(2 * np.pi / sides)
    angle = np.arctan2(v, u)
    angle -= np.rint(angle / sector) * sector
    radius = canvas.numbers.between(0.75 * largest, largest)
    return canvas.filled(np.float32(radius) - np.sqrt(u * u + v * v) * np.cos(angle))


def _wedges(canvas: Canvas) -> Plane:
    return _polygons(canvas, 3, 0.26)


def _hexagons(canvas: Canvas) -> Plane:
    return _polygons(canvas, 6, 0.36)


def _strokes(canvas: Canvas, beam: float) -> Plane:
    """A vertical stroke and a horizontal one, which crosses it at a height."""
    u, v = _cells(canvas)
    width, length = np.float32(canvas.numbers.between(0.07, 0.12)), np.float32(0.38)
    upright = np.minimum(width - np.abs(u), length - np.abs(v))
    level = np.minimum(width - np.abs(v - np.float32(beam)), length - np.abs(u))
    return canvas.filled(np.maximum(upright, level))


def _crosses(canvas: Canvas) -> Plane:
    return _strokes(canvas, 0.0)


def _tees(canvas: Canvas) -> Plane:
    return _strokes(canvas, 0.28)


PATTERNS: Mapping[str, tuple[Pattern, float]] = {
    "grating": (_grating, 1.0),
    "stripes": (_stripes, 1.0),
    "square dots": (_square_dots, 1.0),
    "hexagonal dots": (_hexagonal_dots, 1.0),
    "tiles": (_tiles, 1.0),
    "bricks": (_bricks, 1.0),
    "waves": (_waves, 1.0),
    "broken stripes": (_broken_stripes, 1.0),
    "checks": (_checks, 0.8),
    "triangles": (_triangles, 1.0),
    "rings": (_rings, 1.0),
    "spiral": (_spiral, 1.0),
    "plaid": (_plaid, 1.0),
    "slanted plaid": (_slanted_plaid, 1.0),
    "rough noise": (_rough, 1.0),
    "cloudy noise": (_cloudy, 1.0),
    "blobs": (_blobs, 1.0),
    "fibres": (_fibres, 1.0),
    "wedges": (_wedges, 1.6),
    "hexagons": (_hexagons, 1.6),
    "crosses": (_crosses, 1.6),
    "tees": (_tees, 1.6),
}
"""Name of a class -> its pattern, and its period relative to others."""
