"""Strided copies as kernels take them."""

from __future__ import annotations

import pytest

from nnstretch.devices.algorithms.strided import StridedCopy


@pytest.mark.parametrize(
    ("copy", "size", "wanted"),
    [
        (StridedCopy((9, 4, 16), (16, 144, 1), 32), 1, (StridedCopy((9, 4), (1, 9), 2), 16)),
        (StridedCopy((9, 4), (8, 1), 4), 4, (StridedCopy((9,), (2,), 1), 16)),
        (StridedCopy((9, 16), (24, 1), 0), 1, None),  # rows do not begin at whole runs
        (StridedCopy((9, 16), (32, 1), 8), 1, None),
        (StridedCopy((9, 3), (6, 1), 0), 4, None),  # 12 bytes
        (StridedCopy((9, 8), (8, 2), 0), 1, None),
        (StridedCopy((9, 8), (16, 1), 0), 4, None),  # 32 bytes
        (StridedCopy((16,), (1,), 0), 1, None),
    ],
)
def test_runs_of_neighbours_are_one_element(
    copy: StridedCopy, size: int, wanted: tuple[StridedCopy, int] | None
) -> None:
    assert copy.widened(size) == (wanted or (copy, size))
