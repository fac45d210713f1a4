"""Processors with cores of different speed: syntax of the ratios, and plans that pass them to the engine."""

from __future__ import annotations

import pytest

from nnstretch.devices.base.spec import ProcessorSpec, parse_processors
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.errors import UsageError
from nnstretch.scheduler.costmodel.learned import machine_of
from nnstretch.scheduler.plan.schema import queue_pool

CORES = tuple(range(8))


@pytest.mark.parametrize(
    ("text", "ratios", "written"),
    [
        ("cpu:0-3*1:1:3:3", (1, 1, 3, 3), "cpu:0-3*1:1:3:3"),
        ("cpu:0+5*2:4", (1, 2), "cpu:0+5*1:2"),
        ("cpu:0-1*7:7", (), "cpu:0-1"),
        ("cpu:0-1", (), "cpu:0-1"),
    ],
)
def test_ratios_are_read_and_written(text: str, ratios: tuple[int, ...], written: str) -> None:
    (spec,) = parse_processors(text, CORES)
    assert spec.ratios == ratios
    assert str(spec) == written
    assert parse_processors(written, CORES) == (spec,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cpu:0-3*1:2", "2 ratios for 4 cores"),
        ("cpu*1:2", "2 ratios for 0 cores"),
        ("cpu:0-1*1:0", "ratio 0"),
        ("cpu:0-1*1:x", "are not ratios"),
        ("cpu:0-1*", "are not ratios"),
        ("cpu:0-1*1:999999", "are not ratios"),
        ("opencl:0@1*1", "only a CPU"),
    ],
)
def test_wrong_ratios_are_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_processors(text, CORES)


def test_fewer_cores_keep_their_ratios() -> None:
    (spec,) = parse_processors("cpu:0-3*2:2:4:1", CORES)
    assert [spec.limited(count).ratios for count in (5, 3, 2, 1)] == [(2, 2, 4, 1), (1, 1, 2), (), ()]
    assert spec.limited(3).cores == (0, 1, 2)


def test_queues_and_features_know_the_ratios() -> None:
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(0, 1), ratios=(1, 3)))
    assert queue_pool([processor], processor).queues[0].ratios == (1, 3)
    machine = machine_of(processor)
    assert machine.ratios == (1, 3)
    assert machine.balance == pytest.approx(4 / 6)
