"""Division of work among threads: what the busiest thread does, and grids that threads share evenly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.base.balance import balanced_grid, grid_units, imbalance


@pytest.mark.parametrize(
    ("units", "threads", "busiest"),
    [
        ([1, 1, 1], 2, 2),
        ([1] * 8, 2, 4),
        ([4, 4, 1, 1], 2, 6),  # the second thread begins with the small ones, and then takes the second large one
        ([4, 1, 4, 1], 2, 5),
        ([5, 1, 1, 1], 2, 5),  # the second thread takes what the first one has not begun
        ([3], 4, 3),
    ],
)
def test_the_busiest_thread_of_small_cases(units: list[float], threads: int, busiest: float) -> None:
    assert imbalance(units, threads) == pytest.approx(busiest * threads / sum(units))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40), st.integers(1, 9))
def test_no_thread_idles_while_units_are_left(units: list[float], threads: int) -> None:
    """So the busiest one is behind an even share by less than what it takes at once, a quarter of a thread's units."""
    found = imbalance(units, threads)
    share = sum(units) / threads
    most = math.ceil(len(units) / threads) // 4
    assert 1 - 1e-9 <= found <= 1 + max(most, 1) * max(units) / share + 1e-9


@given(st.integers(1, 60), st.lists(st.sampled_from([4.0, 14.0]), min_size=1, max_size=40), st.integers(1, 60))
def test_a_grid_is_as_even_as_single_rows_and_columns(rows: int, columns: list[float], most: int) -> None:
    """But for the cost of more units, and no unit has more rows than it may."""
    height, width = balanced_grid(rows, tuple(columns), most, threads=(2, 4))
    assert 1 <= height <= most
    assert 1 <= width <= len(columns)

    units, least = (grid_units(rows, tuple(columns), *size) for size in ((height, width), (1, 1)))
    assert sum(units) == pytest.approx(rows * sum(columns))
    for threads in (2, 4):
        assert imbalance(units, threads) <= max(imbalance(least, n) for n in (2, 4)) + 0.08


def test_quarters_of_a_real_layer_are_shared_evenly() -> None:
    """Strassen's units of 96 × 576 channels on 14 × 14 pixels: 7 pairs of tiles, 9 pairs of panels."""
    assert balanced_grid(7, (14.0,) * 9, 7, threads=(2, 4)) == (4, 1)
    assert imbalance([7 * 3] * 3, 2) == pytest.approx(4 / 3)  # what three units of all pixels would be
