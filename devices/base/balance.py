"""Division of a layer's work among the threads of the engine."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cache

_PART = 4
"""A thread takes this part of the units that are left at once, as devices/engine/runtime/threads/pool.c does."""
_ROW = 0.06
"""Cost of a unit, as a share of the work of one row: what columns need is loaded once for all rows of a unit."""
_STEP = 0.02
"""Differences of costs that do not count: more units cost about as much."""
_MOST_UNITS = 256
"""Units beyond which a division is fine enough, and is not examined."""


def imbalance(units: Sequence[float], threads: int) -> float:
    """Time of a layer over that of its work divided without loss.

    Each thread begins with as many units as the others, which follow one another. It takes them from the front, and then from
    the back of those of the other threads.

    Args:
        units: work of every unit.
        threads: their number.
    """
    shares = _shares(len(units), threads)
    idle = [(0.0, thread) for thread in range(threads)]
    last = 0.0
    while idle:
        now, thread = heapq.heappop(idle)
        last = max(last, now)
        whose = next((t for t in (*range(thread, threads), *range(thread)) if shares[t][0] < shares[t][1]), None)
        if whose is None:
            continue
        low, high = shares[whose]
        count = max((high - low) // _PART, 1)
        first = low if whose == thread else high - count
        shares[whose] = (low + count, high) if whose == thread else (low, first)
        heapq.heappush(idle, (now + sum(units[first : first + count]), thread))
    return last * threads / sum(units)


def _shares(count: int, threads: int) -> list[tuple[int, int]]:
    """First unit and end of each thread's share of `count` units."""
    sizes = [count // threads + (thread < count % threads) for thread in range(threads)]
    return [(sum(sizes[:thread]), sum(sizes[: thread + 1])) for thread in range(threads)]


@cache
def balanced_grid(
    rows: int, columns: tuple[float, ...], most_rows: int, threads: tuple[int, ...], repeats: int = 1
) -> tuple[int, int]:
    """Rows and columns per unit of a grid of work that any of some numbers of threads share evenly.

    Of divisions that cost about as much, the one with the fewest units.

    Args:
        rows: of the grid, all alike.
        columns: work of each column; units of the same rows follow one another.
        most_rows: of a unit.
        threads: numbers of threads.
        repeats: number of grids.
    """
    heights = _sizes(rows, most_rows)
    divisions = [(height, width) for height in heights for width in _sizes(len(columns), len(columns))]

    def rank(division: tuple[int, int]) -> tuple[int, int]:
        height, width = division
        units = grid_units(rows, columns, height, width) * repeats
        if len(units) > _MOST_UNITS:
            return int(_ROW / height / _STEP), len(units)
        return int((max(imbalance(units, count) for count in threads) - 1 + _ROW / height) / _STEP), len(units)

    return min(divisions, key=rank)


def grid_units(rows: int, columns: tuple[float, ...], height: int, width: int) -> list[float]:
    """Work of each unit of `height` rows and `width` columns of a grid, as `balanced_grid` takes it."""
    works = [sum(columns[begin : begin + width]) for begin in range(0, len(columns), width)]
    return [min(height, rows - begin) * work for begin in range(0, rows, height) for work in works]


def _sizes(total: int, most: int) -> list[int]:
    """Sizes up to `most`, descending, of parts of `total` pieces that are about halved from one to the next."""
    sizes = [min(total, most)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sizes
