"""Contention factors: measured once, and again where other programs may have caused them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nnstretch.compiler.processors import build_processors
from nnstretch.scheduler.measurement import interference
from nnstretch.scheduler.measurement.store.store import ProfileStore

CORES = sorted(os.sched_getaffinity(0))[:2]

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two groups of cores need two cores")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    opened = ProfileStore(tmp_path / "profiles.sqlite")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("measured", "wanted"),
    [
        # As quiet processors have them: measured once.
        ([(1.1, 1.2)], [(1.1, 1.2), (1.1, 1.2)]),
        # Other programs took one core's time at first.
        ([(1.2, 2.5), (1.3, 1.1)], [(1.2, 2.5), (1.2, 1.1), (1.2, 1.1)]),
        # Such processors: measured by every process, and never higher than the least.
        ([(1.7, 1.8), (1.9, 1.6), (1.65, 1.7)], [(1.7, 1.8), (1.7, 1.6), (1.65, 1.6)]),
        ([(0.9, 1.0)], [(1.0, 1.0), (1.0, 1.0)]),
    ],
)
def test_high_factors_are_measured_again(
    store: ProfileStore,
    monkeypatch: pytest.MonkeyPatch,
    measured: Sequence[tuple[float, float]],
    wanted: Sequence[tuple[float, float]],
) -> None:
    rounds = iter(measured)
    monkeypatch.setattr(interference, "_measured_ratios", lambda *_: [[ratio] * 3 for ratio in next(rounds)])
    processors = build_processors(f"cpu:{CORES[0]},cpu:{CORES[1]}")
    found = [
        interference.contention_factors(processors.named, processors.host, [0, 1], store) for _ in range(len(wanted))
    ]
    assert found == list(wanted)
    assert next(rounds, None) is None
