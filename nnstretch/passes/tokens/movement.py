"""Movements: where the elements of a tensor lie in another, if only reshapes and transpositions are between them.

A movement writes every axis of the result as a product of factors. Each factor is a range of indices with a stride in the
row-major source, so that chains of Reshape and Transpose become one movement, however they are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Factor:
    """A range of indices.

    Attributes:
        size: number of indices.
        stride: elements of the row-major source between neighbours.
    """

    size: int
    stride: int


def merged(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    """The same indices in as few factors as possible: those of size 1 go, and neighbours that continue each other unite."""
    found: list[Factor] = []
    for factor in factors:
        if factor.size == 1:
            continue
        if found and found[-1].stride == factor.size * factor.stride:
            found[-1] = Factor(found[-1].size * factor.size, factor.stride)
        else:
            found.append(factor)
    return tuple(found)


def dense_factors(shape: Sequence[int]) -> tuple[Factor, ...]:
    """One factor per axis of a row-major tensor."""
    return tuple(Factor(size, math.prod(shape[axis + 1 :])) for axis, size in enumerate(shape))


@dataclass(frozen=True)
class Movement:
    """A tensor as reshapes and transpositions of another.

    Attributes:
        axes: merged factors of each axis of the result, outermost first.
    """

    axes: tuple[tuple[Factor, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(math.prod(factor.size for factor in axis) for axis in self.axes)

    @property
    def factors(self) -> tuple[Factor, ...]:
        """Factors of the whole result, merged."""
        return merged(factor for axis in self.axes for factor in axis)

    @property
    def keeps_order(self) -> bool:
        """Whether the elements of the result lie in the order of the source, so that it is a reshape."""
        strides = [factor.stride for factor in self.factors]
        return len(strides) < 2 and strides in ([], [1])

    def transposed(self, order: Sequence[int]) -> Movement:
        """The result with its axes in another order."""
        return Movement(tuple(self.axes[axis] for axis in order))

    def reshaped(self, shape: Sequence[int]) -> Movement | None:
        """The result with another shape; None if an axis of `shape` ends within a factor that it does not divide."""
        return split(self.factors, shape)


def identity(shape: Sequence[int]) -> Movement:
    """The movement that changes nothing."""
    return Movement(tuple(merged((factor,)) for factor in dense_factors(shape)))


def split(factors: Sequence[Factor], shape: Sequence[int]) -> Movement | None:
    """The movement whose axes have the sizes of `shape` and take `factors` one after another; None if they do not fit."""
    pending, axes = list(reversed(factors)), []
    for size in shape:
        axis: list[Factor] = []
        missing = size
        while missing > 1:
            if not pending:
                return None
            factor = pending.pop()
            taken = math.gcd(missing, factor.size)
            if taken == 1 or (taken < factor.size and taken < missing):
                return None
            rest = factor.size // taken
            axis.append(Factor(taken, factor.stride * rest))
            if rest > 1:
                pending.append(Factor(rest, factor.stride))
            missing //= taken
        axes.append(merged(axis))
    return None if pending else Movement(tuple(axes))
