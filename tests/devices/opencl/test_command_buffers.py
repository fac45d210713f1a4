"""Which devices record kernels as command buffers, and sessions that do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.engine.binding import program as program_module
from nnstretch.devices.engine.binding.program import Program
from nnstretch.devices.opencl import command_buffers, drivers, queues
from nnstretch.devices.opencl.command_buffers import FASTER, WORKS, records
from nnstretch.devices.opencl.probe_worker import check_command_buffers
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.errors import UsageError
from nnstretch.graph.reference import relative_error
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.opencl.opencl_sessions import opencl_queues

pytestmark = pytest.mark.opencl
DEVICE = f"opencl:0@{usable_cores()[-1]}"


@pytest.fixture
def runtime() -> OpenCLRuntime:
    return OpenCLRuntime(ProcessorSpec("opencl", 0), info=drivers.device_info(0))


@pytest.fixture
def as_gpu() -> OpenCLRuntime:
    """The device, which is said to be no CPU."""
    return OpenCLRuntime(ProcessorSpec("opencl", 0), info=replace(drivers.device_info(0), on_cpu=False))


@pytest.mark.parametrize(
    ("on_cpu", "found", "by_setting"),
    [
        (False, FASTER, {"": True, "0": False, "1": True}),
        (False, WORKS, {"": False, "0": False, "1": True}),
        (False, "", {"": False, "0": False, "1": False}),
        (True, FASTER, {"": False, "0": False, "1": True}),
        (True, WORKS, {"": False, "0": False, "1": True}),
        (True, "", {"": False, "0": False, "1": False}),
    ],
)
def test_gpus_record_if_that_is_faster_and_other_devices_if_asked(
    on_cpu: bool, found: str, by_setting: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = replace(drivers.device_info(0), on_cpu=on_cpu, command_buffers=found)
    for setting, wanted in by_setting.items():
        monkeypatch.setenv("NNSTRETCH_COMMAND_BUFFERS", setting)
        assert records(info) is wanted
    monkeypatch.setenv("NNSTRETCH_COMMAND_BUFFERS", "maybe")
    with pytest.raises(UsageError):
        records(info)


def test_the_command_buffers_of_a_cpu_are_tested_and_not_timed(
    runtime: OpenCLRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise AssertionError("it is timed")

    monkeypatch.setattr(command_buffers, "is_faster", refuse)
    has_extension = command_buffers.EXTENSION in runtime.device.extensions
    assert check_command_buffers(runtime) == (WORKS if has_extension else "")
    monkeypatch.setattr(command_buffers, "EXTENSION", "cl_khr_another")
    assert check_command_buffers(runtime) == ""


def changed(change: Callable[[list[Any]], list[Any]]) -> Any:
    """What makes programs of the test, of a driver that does something else with launches that it records."""
    make = command_buffers._program

    def program(runtime: OpenCLRuntime, launches: Sequence[Any], *, records: bool) -> Program:
        return make(runtime, change(list(launches)), records=records)

    return program


WRONG: dict[str, Callable[[list[Any]], list[Any]]] = {
    "another order": lambda launches: launches[:-2] + launches[:-3:-1],
    "the last one missing": lambda launches: launches[:-1],
    "the first one missing": lambda launches: launches[1:],
    "one alone, which is not recorded": lambda launches: launches[:1],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_results_are_found(wrong: str, as_gpu: OpenCLRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_buffers, "_program", changed(WRONG[wrong]))
    assert check_command_buffers(as_gpu) == ""


def test_command_buffers_that_cannot_be_recorded_are_none(
    as_gpu: OpenCLRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_module, "_record", lambda *_arguments: 0)
    assert check_command_buffers(as_gpu) == ""


class Timed:
    """A program whose runs take some time, by the clock of this test."""

    def __init__(self, records: bool, times: Iterator[int]) -> None:
        self.recorded = int(records)
        self._times = times

    def time(self, **_how: int) -> list[int]:
        return [next(self._times)]


@pytest.mark.parametrize(
    ("single", "recorded", "wanted"),
    [(100, 50, True), (100, 95, True), (100, 96, False), (100, 100, False), (50, 100, False)],
)
def test_a_gpu_is_faster_by_the_median_of_many_turns(
    single: int, recorded: int, wanted: bool, as_gpu: OpenCLRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns that something else disturbs do not count."""

    def times(usual: int) -> Iterator[int]:
        yield from (1, 10_000, usual, 10_000, 1)
        while True:
            yield usual

    @contextmanager
    def program(_runtime: OpenCLRuntime, _launches: Sequence[Any], *, records: bool) -> Iterator[Timed]:
        yield Timed(records, times(recorded if records else single))

    monkeypatch.setattr(command_buffers, "_program", program)
    assert command_buffers.is_faster(as_gpu) is wanted


def test_a_gpu_is_timed(as_gpu: OpenCLRuntime) -> None:
    assert check_command_buffers(as_gpu) in (WORKS, FASTER)


def test_the_probe_reports_command_buffers() -> None:
    info = drivers.probe_device(0)
    assert info.command_buffers == (WORKS if command_buffers.EXTENSION in drivers.load_drivers()[0].extensions else "")


@pytest.fixture
def fresh_runtimes() -> Iterator[None]:
    queues.installed_runtime.cache_clear()
    yield
    queues.installed_runtime.cache_clear()


@pytest.mark.usefixtures("fresh_runtimes")
def test_a_gpu_that_shares_mapped_memory_and_is_faster_so_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan on two queues, whose device is said to be such a GPU: its driver allocates what it shares."""
    import pyopencl as cl

    monkeypatch.delenv("NNSTRETCH_COMMAND_BUFFERS", raising=False)
    if drivers.probe_device(0).command_buffers != WORKS:
        pytest.skip("the device has no command buffers")
    gpu = replace(drivers.probe_device(0), on_cpu=False, fine_grained=False, command_buffers=FASTER)
    monkeypatch.setattr(drivers, "probe_device", lambda _index: gpu)
    network = RandomNetwork(101, processors=2, nodes=12)
    processors = build_processors(f"cpu:{usable_cores()[0]},{DEVICE}")
    with PlanSession(plan_model(network.graph(), processors, tune=False)) as session:
        shared = opencl_queues(session)._shared
        assert shared
        assert all(memory.buffer.flags & cl.mem_flags.ALLOC_HOST_PTR for memory in shared)
        assert session._loaded.program.recorded > 0
        for _ in range(5):
            for wanted, found in zip(network.expected(), session.run(None, {"x": network.input}), strict=True):
                assert relative_error(found, wanted) < 1e-4


@pytest.mark.parametrize("setting", ["0", "1"])
def test_sessions_in_parallel_give_the_same_bytes_with_and_without(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profiles show every kernel in both cases."""
    if drivers.probe_device(0).command_buffers != WORKS:
        pytest.skip("the device has no command buffers")
    network = RandomNetwork(204, processors=0, nodes=12)
    plan = plan_model(network.graph(), build_processors(DEVICE), tune=False)
    monkeypatch.delenv("NNSTRETCH_COMMAND_BUFFERS", raising=False)
    with PlanSession(plan) as ordinary:
        assert ordinary._loaded.program.recorded == 0
        wanted = [y.tobytes() for y in ordinary.run(None, {"x": network.input})]
    monkeypatch.setenv("NNSTRETCH_COMMAND_BUFFERS", setting)
    sessions = [PlanSession(plan) for _ in range(3)]
    found: list[list[bytes]] = []

    def run(session: PlanSession) -> None:
        answers = (session.run(None, {"x": network.input}) for _ in range(10))
        found.extend([np.asarray(y).tobytes() for y in answer] for answer in answers)

    threads = [threading.Thread(target=run, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 30
    for session in sessions:
        assert (session._loaded.program.recorded > 0) == (setting == "1")
        (trace,) = session.traces(runs=1)
        assert (trace.steps[:, 0] < trace.steps[:, 1]).all()
        session.close()
