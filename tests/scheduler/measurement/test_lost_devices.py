"""Candidates that a device refuses, and a device that is lost while layers are measured on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nnstretch.devices.base.routine import Lowering, Parameters
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.opencl import verdicts
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines.elementwise import Map
from nnstretch.errors import DeviceError
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.measurement.local_site import LocalSite
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.runner.runner import Runner
from nnstretch.scheduler.measurement.runner.single_layer import (
    SingleLayer,
    SinglePlan,
    packed_inputs,
    single_layer_plan,
)
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.support.worker_process import WorkerError
from tests.kits.opencl.opencl_faults import Fault, library
from tests.kits.opencl.opencl_parity import RELU, feeds_of, make_layer

pytestmark = pytest.mark.opencl

FAULTY = """
import ctypes, os, runpy, sys
from pathlib import Path
from nnstretch.devices.engine.binding import program
faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
assert faults.faults_open(program.opencl_library().encode())
program.opencl_library = lambda: os.environ["LD_PRELOAD"]  # where the engine finds its functions
faults.faults_set.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int)
if {condition}:
    faults.faults_set(b"clEnqueueNDRangeKernel", {first}, 1 << 40, {kind}, -5)
runpy.run_module({module!r}, run_name="__main__")
"""
WORKER = "nnstretch.scheduler.measurement.runner.worker"


def faulty(module: str, first: int = 1, condition: str = "True") -> tuple[str, ...]:
    """The command of a worker whose device is out of resources for ever, from a number of launches on."""
    code = FAULTY.format(module=module, first=first, condition=condition, kind=int(Fault.ERROR))
    return "env", f"LD_PRELOAD={library()}", sys.executable, "-c", code


@pytest.fixture(scope="module")
def host() -> CpuProcessor:
    return CpuProcessor(ProcessorSpec("cpu", cores=usable_cores()[:1]))


@pytest.fixture(scope="module")
def device() -> OpenCLProcessor:
    return OpenCLProcessor(ProcessorSpec("opencl", 0, usable_cores()[:1]))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    made = ProfileStore(tmp_path / "p.sqlite")
    yield made
    made.close()


def activation(pixels: int) -> Layer:
    return make_layer("Activation", [(1, 16, pixels, pixels)], (1, 16, pixels, pixels), {}, RELU)


def candidates(device: OpenCLProcessor, layer: Layer) -> list[Candidate]:
    found = [Candidate(r, p) for r in device.routines if r.supports(layer) for p in r.parameter_space(layer)]
    assert found
    return found


def plan_of(device: OpenCLProcessor, host: CpuProcessor, layer: Layer) -> SinglePlan:
    routine, parameters = (one := candidates(device, layer)[0]).routine, one.parameters
    single = SingleLayer(device, routine, layer, parameters, routine.lower(layer, parameters), host=host)
    return single_layer_plan(single, packed_inputs(layer, feeds_of(layer), routine.layouts(layer, parameters)[0]))


class InLargeGroups(Map):
    """Has work groups of more items than devices take."""

    algorithm = "in_large_groups"

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        lowering = super().lower(layer, parameters)
        (call,) = lowering.calls
        assert call.launch is not None
        size = (1 << 20, *(1,) * (len(call.launch.global_size) - 1))
        launch = replace(call.launch, global_size=size, local_size=size)
        return replace(lowering, calls=(replace(call, launch=launch),))


def test_a_candidate_in_too_large_groups_fails_with_its_reason(
    host: CpuProcessor, device: OpenCLProcessor, store: ProfileStore
) -> None:
    layer, refused = activation(8), InLargeGroups(device.runtime.traits)
    with Profiler(store, host, site=LocalSite(host)) as profiler:
        (bad,) = profiler.measure(device, layer, [Candidate(refused, refused.parameter_space(layer)[0])])
        good = profiler.measure(device, layer, candidates(device, layer))
    assert "runs kernel" in (bad.failure or "")
    assert "in work groups of at most" in (bad.failure or "")
    assert all(measurement.seconds for measurement in good)


def test_a_candidate_that_breaks_its_context_takes_no_other_with_it(
    host: CpuProcessor, device: OpenCLProcessor, store: ProfileStore, tmp_path: Path
) -> None:
    """The first worker's device fails for ever, as a context does after an invalid access; in the next worker, it works."""
    mark = tmp_path / "failed"
    condition = f"not Path({str(mark)!r}).exists() and not Path({str(mark)!r}).touch()"
    with Profiler(store, host, site=LocalSite(host, Runner(faulty(WORKER, condition=condition)))) as profiler:
        first = profiler.measure(device, activation(8), candidates(device, activation(8))[:1])
        second = profiler.measure(device, activation(9), candidates(device, activation(9))[:1])
    assert "clEnqueueNDRangeKernel failed with OpenCL error -5" in (first[0].failure or "")
    assert second[0].seconds


def test_a_layer_that_breaks_the_context_when_it_is_opened_again_takes_no_other_with_it(
    host: CpuProcessor, device: OpenCLProcessor, tmp_path: Path
) -> None:
    """The first worker ends, the second one's device fails for ever, and the third one works."""
    starts = str(tmp_path / "starts")
    condition = f"open({starts!r}, 'a').write('.') and Path({starts!r}).stat().st_size == 2"
    with Runner(faulty(WORKER, condition=condition)) as runner:
        layers = [runner.open(plan_of(device, host, activation(pixels)))[0] for pixels in (8, 9, 10)]
        runner._recover(WorkerError("the worker has ended"))
        times = runner.time(layers, "warm")
    assert [time is None for time in times] == [True, False, False]
    assert "clEnqueueNDRangeKernel failed with OpenCL error -5" in (layers[0].failure or "")
    assert [layer.failure for layer in layers[1:]] == [None, None]
    assert (runner.restarts, Path(starts).stat().st_size) == (2, 3)


def test_a_device_that_is_lost_ends_measuring_in_one_line_and_keeps_what_was_finished(
    host: CpuProcessor, device: OpenCLProcessor, store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Profiler(store, host, site=LocalSite(host)) as profiler:
        profiler.measure(device, activation(8), candidates(device, activation(8)))
    finished = rows(store)
    assert finished
    monkeypatch.setattr(verdicts, "WORKER", faulty(verdicts.WORKER[-1]))
    with (
        Profiler(store, host, site=LocalSite(host, Runner(faulty(WORKER)))) as profiler,
        pytest.raises(
            DeviceError, match=r"^opencl:0@\d+ was lost while layers were measured on it: driver .+"
        ) as caught,
    ):
        profiler.measure(device, activation(9), candidates(device, activation(9)))
    assert "\n" not in str(caught.value)
    assert "leave it out of the processors" in str(caught.value)
    assert rows(store) == finished  # nothing is stored of routines that are not to blame
    monkeypatch.undo()
    with Profiler(store, host, site=LocalSite(host)) as profiler:
        assert all(m.seconds for m in profiler.measure(device, activation(9), candidates(device, activation(9))))


def rows(store: ProfileStore) -> Mapping[tuple[str, ...], float | None]:
    return {
        (row.processor, row.workload, row.routine, str(row.parameters)): row.measurement.seconds for row in store.rows()
    }
