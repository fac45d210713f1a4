"""Fronts and hypervolumes against counting."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.report.documents.hypervolume import hypervolume, undominated

SIDE = 5
POINTS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.tuples(*[st.integers(0, SIDE + 1)] * n), min_size=1, max_size=12)
)


def beats(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


@given(POINTS)
def test_undominated_are_those_that_none_beats(points: list[tuple[int, ...]]) -> None:
    expected = [i for i, point in enumerate(points) if not any(beats(other, point) for other in points)]
    assert undominated(np.array(points)) == expected


@given(POINTS)
def test_hypervolume_counts_the_dominated_cells(points: list[tuple[int, ...]]) -> None:
    size = len(points[0])
    cells = product(range(SIDE), repeat=size)
    expected = sum(any(all(p <= c for p, c in zip(point, cell, strict=True)) for point in points) for cell in cells)
    assert hypervolume(points, [SIDE] * size) == pytest.approx(expected)
