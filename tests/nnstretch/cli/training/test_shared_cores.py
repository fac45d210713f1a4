"""A training leaves half of the cores to a build, for as long as that takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nnstretch.cli.job.shared_cores import half_of_the_cores


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_half_of_the_threads_until_the_build_has_ended() -> None:
    going_on = [True]
    with half_of_the_cores(lambda: going_on[0]) as look:
        found = [torch.get_num_threads()]
        for goes_on in (True, False, True):
            going_on[0] = goes_on
            look()
            found.append(torch.get_num_threads())
    assert found == [2, 2, 4, 4]
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("count", [1, 3])
def test_threads_are_left_alone_where_nothing_is_built(count: int) -> None:
    torch.set_num_threads(count)
    with half_of_the_cores(lambda: count == 1) as look:
        look()
        assert torch.get_num_threads() == count
        torch.set_num_threads(2)
        look()
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == count
