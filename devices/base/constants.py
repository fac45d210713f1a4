"""Prepared constants: weights in the order in which a kernel reads them, made where they shall lie.

Preparing weights is copying them in another order. Their size is known before, so that nothing is copied twice: a plan has its
places, and the weights of a whole network are then written straight into its memory, by several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a prepared constant that is made by itself.

    Attributes:
        begin, size: where it lies, in floats.
        fill: writes it into a flat array of `size` zeros.
    """

    begin: int
    size: int
    fill: Callable[[np.ndarray], None]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A float32 constant of `size` elements that is made of pieces; what they leave out is 0."""

    size: int
    pieces: Sequence[Piece]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return 4 * self.size

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The constant by itself, flat."""
        made = np.zeros(self.size, np.float32)
        for piece in self.pieces:
            piece.fill(made[piece.begin : piece.begin + piece.size])
        return made if dtype is None else made.astype(dtype)


Constant = np.ndarray | Prepared


def whole(size: int, make: Callable[[], np.ndarray]) -> Prepared:
    """A constant of `size` floats that `make` returns in one piece."""

    def fill(place: np.ndarray) -> None:
        place[:] = make().reshape(-1)

    return Prepared(size, (Piece(0, size, fill),))


def write_constants(constants: Iterable[tuple[Constant, np.ndarray]], threads: int = 1) -> None:
    """Writes constants to where they shall lie.

    Args:
        constants: each with its place, a uint8 array of its size that holds zeros, at a multiple of 4 bytes.
        threads: that share the work.
    """
    jobs: list[tuple[Callable[[np.ndarray], None], np.ndarray]] = []
    for constant, place in constants:
        if isinstance(constant, Prepared):
            floats = place.view(np.float32)
            jobs += [(piece.fill, floats[piece.begin : piece.begin + piece.size]) for piece in constant.pieces]
        else:
            place[:] = np.ascontiguousarray(constant).reshape(-1).view(np.uint8)
    if threads == 1:
        for fill, place in jobs:
            fill(place)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(fill, place) for fill, place in jobs]:
            done.result()
