"""OpenCL programs that are compiled before they are measured: each once, by processes that may fail."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.graph.layer import Attribute, Layer, TensorType
from nnstretch.scheduler.measurement.local_site import LocalSite
from nnstretch.scheduler.measurement.programs import builds
from nnstretch.scheduler.measurement.programs.plans import narrower_layers, program_plans

pytestmark = pytest.mark.opencl
CORE = max(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def device() -> OpenCLProcessor:
    return OpenCLProcessor(ProcessorSpec("opencl", cores=(CORE,)))


@pytest.fixture(scope="module")
def host() -> CpuProcessor:
    return CpuProcessor(ProcessorSpec("cpu", cores=(CORE,)))


@pytest.fixture(autouse=True)
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The record of compiled programs, which is empty; the drivers keep their programs elsewhere."""
    path = tmp_path / "programs.json"
    monkeypatch.setattr(builds, "_record", lambda: path)
    monkeypatch.setattr(builds, "_failure_record", lambda: path.with_name("failed.json"))
    return path


def convolution(channels: int, kernel: int = 3) -> Layer:
    x = TensorType((1, channels, 14, 14))
    weight = np.zeros((channels, channels, kernel, kernel), np.float32)
    attributes: dict[str, Attribute] = {"strides": (1, 1), "pads": (kernel // 2,) * 4, "dilations": (1, 1), "groups": 1}
    return Layer("conv", "Conv", (x, TensorType(weight.shape), None, None), (x,), attributes, constants={1: weight})


def layers() -> list[Layer]:
    return [convolution(64), convolution(64, 1)]


def test_programs_are_compiled_once(device: OpenCLProcessor, host: CpuProcessor) -> None:
    reports: list[tuple[int, int]] = []
    done = builds.build_programs(layers(), device, host, lambda done, total, _: reports.append((done, total)))
    assert done >= 4
    assert reports == [(number, done) for number in range(done + 1)]
    assert not list(program_plans(layers(), device, host, builds.known_programs()))
    assert builds.build_programs(layers(), device, host, command=("false",)) == 0


def test_each_plan_needs_a_program_that_no_earlier_one_needs(device: OpenCLProcessor, host: CpuProcessor) -> None:
    seen: set[str] = set()
    for plan in program_plans([*layers(), *layers(), convolution(128)], device, host, ()):
        assert not plan.programs <= seen
        seen |= plan.programs
        assert not plan.compiled.constants.any()
    left, *known = seen
    rest = list(program_plans([*layers(), convolution(128)], device, host, known))
    assert rest
    assert all(left in plan.programs for plan in rest)


def test_branches_have_convolutions_that_the_network_lacks() -> None:
    narrower = narrower_layers([convolution(64)], 16)
    assert [layer.constants[1].shape for layer in narrower] == [
        (16, 64, 3, 3), (48, 64, 3, 3), (64, 64, 1, 1), (48, 64, 1, 1),
    ]  # fmt: skip
    assert narrower_layers([convolution(24)], 16)[-1].constants[1].shape == (16, 24, 3, 3)


FIRST_ANSWER_ONLY = """
import os, sys
from nnstretch.support.frames import read_frame, write_frame
read_frame(sys.stdin.buffer)
write_frame(sys.stdout.buffer, {"done": True})
sys.stdout.flush()
read_frame(sys.stdin.buffer)
os.abort()
"""
NEVER_DONE = """
import sys
from nnstretch.support.frames import read_frame, write_frame
while True:
    read_frame(sys.stdin.buffer)
    write_frame(sys.stdout.buffer, {"done": False})
    sys.stdout.flush()
"""


def test_what_a_process_fails_at_is_left_to_the_measurement(
    device: OpenCLProcessor, host: CpuProcessor, record: Path
) -> None:
    assert builds.build_programs(layers(), device, host, command=("/nowhere/python",)) == 0
    assert builds.build_programs(layers(), device, host, command=("false",)) == 0
    assert not record.exists() and not builds.failed_programs()  # no driver has failed
    done = builds.build_programs(layers(), device, host, command=(sys.executable, "-c", FIRST_ANSWER_ONLY))
    assert 1 <= done <= len(os.sched_getaffinity(0))
    assert len(builds.known_programs()) >= done
    assert builds.failed_programs() and not builds.failed_programs() & builds.known_programs()


def test_what_failed_is_not_compiled_ahead_on_the_same_day(
    device: OpenCLProcessor, host: CpuProcessor, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the driver crashed; a plan with another program is."""
    plans = list(program_plans(layers(), device, host, ()))
    failing = sys.executable, "-c", NEVER_DONE
    reports: list[int] = []
    assert builds.build_programs(layers(), device, host, lambda done, *_: reports.append(done), command=failing) == 0
    assert reports[-1] == len(plans) and not record.exists()
    assert builds.failed_programs() == set().union(*(plan.programs for plan in plans))
    assert builds.build_programs(layers(), device, host, lambda *_: pytest.fail("tried again"), command=failing) == 0
    later = time.time() + 25 * 3600
    monkeypatch.setattr("time.time", lambda: later)
    assert not builds.failed_programs()
    assert builds.build_programs(layers(), device, host) == len(plans)


def test_processes_that_hang_are_left(
    device: OpenCLProcessor, host: CpuProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "_PATIENCE", 0.2)
    assert builds.build_programs(layers(), device, host, command=("sleep", "60", "#")) == 0


@pytest.mark.parametrize("text", ["", "{", "7", '{"a": 1}', "[1, null]"])
def test_a_damaged_record_counts_as_empty(record: Path, text: str) -> None:
    record.write_text(text)
    assert builds.known_programs() == set()
    record.with_name("failed.json").write_text(text)
    assert builds.failed_programs() == set()


def test_nothing_is_compiled_for_processors_without_programs(host: CpuProcessor, record: Path) -> None:
    with LocalSite(host) as site:
        site.prepare(host, layers(), lambda *_: pytest.fail("reports"))
    assert not record.exists()
