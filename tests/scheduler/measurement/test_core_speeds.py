"""Proposed ratios for cores of different speeds, with synthetic measurements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnstretch.compiler.processors
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import usable_cores
from nnstretch.scheduler.measurement.runner.core_speeds import DIFFERENT, measured_ratios, proposed_ratios
from nnstretch.scheduler.measurement.store.store import ProfileStore


class Cores:
    """Cores with speeds; `busy` ones are half as fast for that number of measurements."""

    def __init__(self, speeds: Sequence[float], busy: dict[int, int] | None = None) -> None:
        self.speeds, self.busy, self.count = speeds, dict(busy or {}), 0

    def __call__(self, core: int, milliseconds: int) -> float:
        self.count += 1
        left = self.busy.get(core, 0)
        self.busy[core] = left - 1
        return self.speeds[core] / (2 if left > 0 else 1)


@pytest.mark.parametrize(
    ("speeds", "ratios"),
    [
        ((10, 10, 30, 30), (1, 1, 3, 3)),
        ((100, 114), ()),
        ((100, 126), (4, 5)),
        ((118, 59), (2, 1)),
        ((20, 31, 60), (2, 3, 6)),
        ((7,), ()),
    ],
)
def test_ratios_are_small_and_in_proportion(speeds: Sequence[float], ratios: tuple[int, ...]) -> None:
    assert proposed_ratios(speeds) == ratios


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=12))
def test_ratios_are_near_the_speeds(speeds: list[float]) -> None:
    ratios = proposed_ratios(speeds)
    if max(speeds) <= DIFFERENT * min(speeds):
        assert ratios == ()
    elif ratios:
        slowest = ratios[speeds.index(min(speeds))]
        for ratio, speed in zip(ratios, speeds, strict=True):
            assert abs(ratio / slowest - speed / min(speeds)) <= 0.125 + 1e-9


@pytest.fixture
def store(tmp_path: Path) -> partial[ProfileStore]:
    return partial(ProfileStore, tmp_path / "p.sqlite")


def test_equal_cores_need_a_moment_and_no_store(store: partial[ProfileStore], tmp_path: Path) -> None:
    cores = Cores([100, 101, 99, 110])
    assert measured_ratios(range(4), store, cores) == ()
    assert cores.count == 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("busy", [{0: 1}, {1: 30}, {0: 9, 1: 9}, {0: 20, 1: 3}])
def test_a_core_that_is_busy_for_a_while_is_not_slow(store: partial[ProfileStore], busy: dict[int, int]) -> None:
    assert measured_ratios(range(2), store, Cores([100, 100], busy)) == ()


def test_unequal_cores_are_measured_at_length_once(store: partial[ProfileStore]) -> None:
    first, second = Cores([10, 10, 31, 30]), Cores([10, 10, 31, 30], {0: 1, 3: 1})
    assert measured_ratios(range(4), store, first) == (1, 1, 3, 3)
    assert measured_ratios(range(4), store, second) == (1, 1, 3, 3)
    assert second.count == 4


def test_what_was_thought_to_be_slow_for_being_busy_heals(store: partial[ProfileStore]) -> None:
    assert measured_ratios(range(2), store, Cores([100, 100], {1: 1000})) == (2, 1)
    assert measured_ratios(range(2), store, Cores([100, 100], {0: 1})) == ()
    assert measured_ratios(range(2), store, Cores([100, 100], {1: 1000})) == ()


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_processors_get_the_ratios_unless_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = usable_cores()[:2]
    monkeypatch.setattr(nnstretch.compiler.processors, "measured_ratios", lambda cores: (1, 3)[: len(cores)])
    names = [
        build_processors(text).named[0].name for text in (f"cpu:{one}+{two}", f"cpu:{one}+{two}*2:1", f"cpu:{one}")
    ]
    assert names[0].endswith("*1:3")
    assert names[1].endswith("*2:1")
    assert "*" not in names[2]
