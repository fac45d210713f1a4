"""Intervals and tests of counted answers, against values worked out by hand and published ones."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.training.evaluation.statistics import mcnemar, mean_interval, wilson_interval

Z = 1.959963984540054


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [
        (8, 10, 0.49016247153664546, 0.9433178485456247),
        (0, 10, 0.0, 0.2775327998628892),
        (10, 10, 0.7224672001371107, 1.0),
        # Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_intervals_are_the_published_ones(right: int, total: int, low: float, high: float) -> None:
    accuracy = 1e-12 if low == 0 or low > 0.4 else 1e-4
    assert wilson_interval(right, total) == pytest.approx((low, high), abs=accuracy)


@given(st.integers(1, 100_000).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_the_ends_are_shares_at_which_the_count_is_just_unlikely(counted: tuple[int, int]) -> None:
    right, total = counted
    share = right / total
    low, high = wilson_interval(right, total)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        assert abs(share - end) == pytest.approx(Z * math.sqrt(end * (1 - end) / total), abs=1e-9)


def test_nothing_counted_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [(1, 9, 22 / 1024), (9, 1, 22 / 1024), (0, 5, 2 / 32), (0, 0, 1.0), (4, 4, 1.0), (3, 4, 1.0)],
)
def test_the_exact_test_of_mcnemar(first: int, second: int, p: float) -> None:
    assert mcnemar(first, second) == pytest.approx(p, rel=1e-12)


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_exact_test_is_the_tail_of_a_fair_coin(first: int, second: int) -> None:
    throws = first + second
    tail = Fraction(sum(math.comb(throws, k) for k in range(min(first, second) + 1)), 2**throws)
    assert mcnemar(first, second) == pytest.approx(float(min(Fraction(1), 2 * tail)), rel=1e-9)


def test_many_images_are_no_problem() -> None:
    assert mcnemar(24_000, 26_000) == pytest.approx(3.8e-19, rel=0.2)
    assert mcnemar(25_000, 25_000) == 1.0


def test_the_interval_of_a_mean_is_students() -> None:
    # Student's own example: ten differences of hours of sleep, "The probable error of a mean" (1908), section IX.
    hours = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    mean, half_width = mean_interval(hours)
    assert mean == pytest.approx(1.58)
    assert (mean - half_width, mean + half_width) == pytest.approx((0.7001142, 2.4598858), abs=1e-4)


def test_the_interval_of_one_measurement_is_infinite_and_of_many_normal() -> None:
    assert mean_interval([3.0]) == (3.0, math.inf)
    assert mean_interval([1.0, 3.0] * 50)[1] == pytest.approx(Z * math.sqrt(100 / 99 / 100))
