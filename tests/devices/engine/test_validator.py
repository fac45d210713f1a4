"""The engine refuses inconsistent programs, each with its reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnstretch.devices.engine.binding.image import (
    Buffer,
    Queue,
    QueueKind,
    Region,
    RegionKind,
    Step,
    StepKind,
    SubGraph,
    encode,
)
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.binding.program import Program, aligned_array
from nnstretch.devices.engine.build.engine_library import build_engine
from nnstretch.errors import DeviceError, FeedError, PackageError, UsageError

FLOATS = 64
SIZE = 4 * FLOATS


@dataclass
class Parts:
    """A program of two queues that copies its input to a workspace and from there to its output."""

    queues: list[Queue] = field(default_factory=lambda: [Queue(QueueKind.HOST), Queue(QueueKind.HOST)])
    regions: list[Region] = field(
        default_factory=lambda: [
            Region(RegionKind.INPUT, SIZE),
            Region(RegionKind.FIXED, SIZE, memory=aligned_array(SIZE)),
            Region(RegionKind.OUTPUT, SIZE),
        ]
    )
    buffers: list[Buffer] = field(default_factory=lambda: [Buffer(i, 0, SIZE) for i in range(3)])
    steps: list[Step] = field(default_factory=lambda: [copy_step(0, 1), copy_step(1, 2)])
    subgraphs: list[SubGraph] = field(default_factory=lambda: [SubGraph(0, 1), SubGraph(1, 1, (0,))])

    def program(self, **more: Any) -> Program:
        return Program(self.queues, self.regions, self.buffers, self.steps, self.subgraphs, **more)


def copy_step(source: int, target: int, floats: int = FLOATS) -> Step:
    return Step(StepKind.KERNEL, engine().find("reorder/copy"), (source,), (target,), (4 * floats,))


def test_the_sound_program_runs() -> None:
    x = np.arange(FLOATS, dtype=np.float32)
    y = np.zeros_like(x)
    with Parts().program() as program:
        program.run([x], [y])
    assert np.array_equal(x, y)


def _set(name: str, at: int, /, **changes: Any) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        items = getattr(parts, name)
        items[at] = replace(items[at], **changes)

    return change


REFUSALS: list[tuple[Callable[[Parts], None], str]] = [
    (_set("queues", 0, kind=QueueKind.CALL), "queue 0"),
    (_set("queues", 1, kind=QueueKind.CALL), "cannot run"),
    (_set("queues", 1, kind=QueueKind.OPENCL), "no command queue"),
    (_set("queues", 1, cores=(1024,)), "cores of a queue"),
    (_set("queues", 1, cores=(-1,)), "cores of a queue"),
    (_set("queues", 0, cores=(0,) * 1025), "cores of a queue"),
    (_set("queues", 0, cores=(0, 0), ratios=(1,)), "1 ratios for 2 cores"),
    (_set("queues", 0, ratios=(1,)), "1 ratios for 0 cores"),
    (_set("queues", 0, cores=(0,), ratios=(0,)), "ratios of a queue"),
    (_set("queues", 0, cores=(0,), ratios=(65537,)), "ratios of a queue"),
    (lambda p: p.queues.extend([Queue(QueueKind.HOST)] * 15), "number of queues is 17"),
    (_set("regions", 0, bytes=-1), "bytes of a region"),
    (_set("regions", 0, index=-1), "is input -1"),
    (_set("regions", 0, index=1 << 40), "is input 1099511627776"),
    (_set("regions", 1, memory=None), "no memory"),
    (_set("regions", 1, kind=RegionKind.SHARED), "no OpenCL memory"),
    (_set("buffers", 1, region=3), "region of a buffer"),
    (_set("buffers", 1, offset=4), "bytes of a buffer"),
    (_set("buffers", 1, offset=SIZE + 4), "offset of a buffer"),
    (_set("buffers", 1, offset=2, bytes=8), "which 4 does not divide"),
    (_set("buffers", 1, bytes=(1 << 63) - 1), "bytes of a buffer"),
    (_set("steps", 0, id=1 << 40), "none of that number"),
    (_set("steps", 0, id=-1), "none of that number"),
    (_set("steps", 0, reads=(3,)), "reads of a step"),
    (_set("steps", 0, reads=(-2,)), "reads of a step"),
    (_set("steps", 0, reads=(0,) * 17), "reads of a step"),
    (_set("steps", 0, writes=(-1,)), "writes of a step"),
    (_set("steps", 0, writes=(1,) * 5), "writes of a step"),
    (_set("steps", 0, writes=(0,)), "writes to an input"),
    (_set("steps", 0, parameters=(SIZE + 1,)), "kernel reorder/copy"),
    (_set("steps", 0, reads=(-1,)), "kernel reorder/copy"),
    (_set("steps", 0, kind=StepKind.OPENCL), "OpenCL launch"),
    (_set("steps", 0, kind=StepKind.OPENCL, reads=(), writes=()), "asks for launch"),
    (_set("subgraphs", 1, queue=2), "queue of a sub-graph"),
    (_set("subgraphs", 1, steps=2), "number of steps"),
    (_set("subgraphs", 1, steps=0), "hold 1 of 2 steps"),
    (_set("subgraphs", 1, waits=(1,)), "waits of a sub-graph"),
    (_set("subgraphs", 1, waits=(-1,)), "waits of a sub-graph"),
    (_set("subgraphs", 1, queue=0), "of its own queue"),
    (_set("subgraphs", 1, acquires=(1,)), "does not share"),
    (_set("subgraphs", 1, releases=(1,)), "does not share"),
    (_set("subgraphs", 1, releases=(9,)), "releases of a sub-graph"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSALS, ids=[f"{i}-{r}" for i, (_, r) in enumerate(REFUSALS)])
def test_an_unsound_program_is_refused(change: Callable[[Parts], None], reason: str) -> None:
    parts = Parts()
    change(parts)
    with pytest.raises(PackageError, match=reason):
        parts.program()


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [(0, 1, "not a program"), (1, 99, "interface 99"), (3, 1 << 62, "number of regions"), (9, 3, "kind of a queue")],
)
def test_a_header_or_word_out_of_range_is_refused(
    at: int, value: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode_and_change(*arguments: Any) -> np.ndarray:
        image = encode(*arguments)
        image[at] = value
        return image

    monkeypatch.setattr("nnstretch.devices.engine.binding.program.encode", encode_and_change)
    with pytest.raises(PackageError, match=reason):
        Parts().program()


@pytest.mark.parametrize("change", [-1, 1])
def test_an_image_too_short_or_too_long_is_refused(change: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode_and_cut(*arguments: Any) -> np.ndarray:
        image = encode(*arguments)
        return image[:change] if change < 0 else np.append(image, 0)

    monkeypatch.setattr("nnstretch.devices.engine.binding.program.encode", encode_and_cut)
    with pytest.raises(PackageError, match=r"ends before|more than|follow the end"):
        Parts().program()


def test_a_core_that_does_not_exist_is_refused_by_name() -> None:
    for queue in (0, 1):
        parts = Parts()
        parts.queues[queue] = Queue(QueueKind.HOST, (0, 1023))
        with pytest.raises(DeviceError, match="1023"):
            parts.program()


def test_memory_too_small_for_its_region_is_refused() -> None:
    parts = Parts()
    parts.regions[1] = replace(parts.regions[1], memory=aligned_array(SIZE - 4))
    with pytest.raises(UsageError, match=f"region 1 needs {SIZE}"):
        parts.program()


def test_feeds_are_checked() -> None:
    x, y = np.zeros(FLOATS, np.float32), np.zeros(FLOATS, np.float32)
    frozen = y.copy()
    frozen.flags.writeable = False
    with Parts().program() as program:
        for inputs, outputs, reason in (
            ([], [y], "1 inputs"),
            ([x], [], "1 outputs"),
            ([x[:-1]], [y], "input 0"),
            ([np.zeros(2 * FLOATS, np.float32)[::2]], [y], "contiguous"),
            ([x], [frozen], "read-only"),
        ):
            with pytest.raises(FeedError, match=reason):
                program.run(inputs, outputs)
        program.run([x], [y])
    with pytest.raises(UsageError, match="closed"):
        program.run([x], [y])
    program.close()


def test_a_kernel_that_does_not_exist_is_named() -> None:
    with pytest.raises(PackageError, match="'conv/of_the_future'"):
        engine().find("conv/of_the_future")
    assert [engine().find(name) for name in engine().kernel_names()] == list(range(len(engine().kernel_names())))


def test_randomly_broken_programs_are_refused_or_stay_in_bounds() -> None:
    script = Path(__file__).parent / "engine_scenarios.py"
    done = subprocess.run(
        [sys.executable, str(script), "fuzz", str(build_engine()), "400"],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
