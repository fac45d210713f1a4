"""The learned search on recorded measurements of real layers: its choice beside the best of an exhaustive search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nnstretch.scheduler.parameter_search.explorer import Exploration, Explorer
from scripts.studies.record_measurements import Record, RecordedTask, read_record

pytest.importorskip("xgboost", reason="the cost model's trees are xgboost's")

RECORD = Path(__file__).with_name("recorded_measurements.json")
"""Made by the command in its field `command`."""
MEASURING = 0.05
"""Seconds of a measurement; decides when further rounds do not pay."""


@pytest.fixture(scope="module")
def record() -> Record:
    return read_record(RECORD)


def search(tasks: Sequence[RecordedTask], record: Record, seed: int) -> Exploration:
    """A search that is answered with recorded seconds, each once."""
    now, asked = [0.0], set()

    def measure(task: int, number: int) -> float | None:
        assert (task, number) not in asked, "nothing is measured twice"
        asked.add((task, number))
        now[0] += MEASURING
        return tasks[task].seconds[number]

    searched = [recorded.task for recorded in tasks]
    found = Explorer(searched, measure, record.machine, seed=seed, clock=lambda: now[0]).run()
    assert set(found.measured) == asked
    return found


def loss(tasks: Sequence[RecordedTask], found: Exploration) -> float:
    """Seconds of the chosen candidates of all layers over those of the fastest recorded ones, less 1."""
    best = sum(recorded.task.weight * min(filter(None, recorded.seconds)) for recorded in tasks)
    chosen = [recorded.seconds[number or 0] or 0.0 for recorded, number in zip(tasks, found.best, strict=True)]
    return sum(recorded.task.weight * seconds for recorded, seconds in zip(tasks, chosen, strict=True)) / best - 1


@pytest.mark.parametrize("network", ["resnet18", "mobilenetv2", "squeezenet1_1"])
@pytest.mark.parametrize("seed", range(3))
def test_a_search_finds_what_an_exhaustive_one_finds_with_few_measurements(
    record: Record, network: str, seed: int
) -> None:
    tasks = record.networks[network]
    found = search(tasks, record, seed)
    assert None not in found.best
    assert loss(tasks, found) < 0.02
    assert found.saved > 0.7
    assert [r.measurements for r in found.rounds] == [50 + 5 * (i + 1) for i in range(len(found.rounds))]


def test_equal_seeds_give_equal_searches(record: Record) -> None:
    tasks = record.networks["mobilenetv2"]
    assert search(tasks, record, 0).measured == search(tasks, record, 0).measured
