"""Prepared constants: weights in the order in which a kernel reads them, written directly to their final memory.

The size of a prepared constant is known before its values. A plan therefore assigns memory first, and several threads
then reorder the weights of a whole network into it without a second copy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnstretch.graph.dtypes import DEFAULT_DTYPE, ElementType, element_type


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a prepared constant that is written independently.

    Attributes:
        begin: offset in the constant, in elements.
        size: number of elements.
        fill: writes the values into a flat array of `size` zeros.
    """

    begin: int
    size: int
    fill: Callable[[np.ndarray], None]


@dataclass(frozen=True, eq=False)
class Source:
    """An array as part of a recipe: equal to a source of the same array only, which it keeps.

    Attributes:
        array: is not changed.
    """

    array: np.ndarray

    def __eq__(self, other: object) -> bool:
        """Whether both are the same array."""
        return isinstance(other, Source) and self.array is other.array

    def __hash__(self) -> int:
        """Of the array's identity, not of its values."""
        return id(self.array)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A constant made of pieces; elements outside all pieces are 0.

    Attributes:
        size: number of elements.
        pieces: in any order, without overlap.
        dtype: name of the element type.
        recipe: how the values are made, with the arrays that they are made from as `Source`. Equal recipes mean equal values.
            None: unknown.
    """

    size: int
    pieces: Sequence[Piece]
    dtype: str = DEFAULT_DTYPE
    recipe: Hashable = None

    @property
    def element(self) -> ElementType:
        """Size and storage type of the elements."""
        return element_type(self.dtype)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.element.bytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The constant as a flat array."""
        made = np.zeros(self.size, self.element.storage)
        for piece in self.pieces:
            piece.fill(made[piece.begin : piece.begin + piece.size])
        return made if dtype is None else made.astype(dtype)


Constant = np.ndarray | Prepared


def padded_rows(values: np.ndarray, rows: int) -> np.ndarray:
    """The values as float32, with zeros appended along the first axis up to `rows`."""
    return np.pad(np.asarray(values, np.float32), ((0, rows - len(values)), *((0, 0),) * (values.ndim - 1)))


def whole(size: int, make: Callable[[], np.ndarray], dtype: str = DEFAULT_DTYPE, recipe: Hashable = None) -> Prepared:
    """A constant of `size` elements that `make` returns in one piece."""

    def fill(place: np.ndarray) -> None:
        place[:] = make().reshape(-1)

    return Prepared(size, (Piece(0, size, fill),), dtype, recipe)


def write_constants(constants: Iterable[tuple[Constant, np.ndarray]], threads: int = 1) -> None:
    """Writes constants to their places.

    Args:
        constants: each with its destination, a zeroed uint8 array of the same size, aligned to the element type.
        threads: number of threads.
    """
    jobs: list[tuple[Callable[[np.ndarray], None], np.ndarray]] = []
    for constant, place in constants:
        if isinstance(constant, Prepared):
            elements = place.view(constant.element.storage)
            jobs += [(piece.fill, elements[piece.begin : piece.begin + piece.size]) for piece in constant.pieces]
        else:
            place[:] = np.ascontiguousarray(constant).reshape(-1).view(np.uint8)
    if threads == 1:
        for fill, place in jobs:
            fill(place)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(fill, place) for fill, place in jobs]:
            done.result()
