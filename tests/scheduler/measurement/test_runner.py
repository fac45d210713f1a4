"""Runner: faults of candidates in the worker, and their reports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nnstretch.devices.base.routine import Descriptor, Layout, Lowering, Parameters, Routine
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.cpu.routines.convolution.direct import DirectConvolution
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.errors import DeviceError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.reference import run_layer
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.measurement.local_site import LocalSite
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.runner.executor import PAGE, Executor
from nnstretch.scheduler.measurement.runner.runner import Runner, RunnerError
from nnstretch.scheduler.measurement.runner.single_layer import (
    SingleLayer,
    SinglePlan,
    packed_inputs,
    random_inputs,
    single_layer_plan,
)
from nnstretch.scheduler.measurement.store.rows import CACHE_STATES
from nnstretch.scheduler.measurement.store.store import ProfileStore
from tests.kits.kernels.convolution_parity import conv_layer

FAULTY = (sys.executable, str(Path(__file__).with_name("faulty_worker.py")))


@pytest.fixture(scope="module")
def processor() -> CpuProcessor:
    return CpuProcessor(ProcessorSpec("cpu", cores=usable_cores()[:1]))


def convolution(channels: int = 32, size: int = 7) -> Layer:
    weight = np.random.default_rng(1).standard_normal((32, channels, 3, 3)).astype(np.float32) / 17
    return Layer(
        "c",
        "Conv",
        (TensorType((1, channels, size, size)), TensorType(weight.shape)),
        (TensorType((1, 32, size, size)),),
        {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1},
        constants={1: weight},
    )


def direct(processor: CpuProcessor) -> Routine:
    return next(r for r in processor.routines if isinstance(r, DirectConvolution))


class Renamed(Routine):
    """The direct convolution under another name, and `wrong` in its results."""

    def __init__(self, inner: Routine, algorithm: str, wrong: bool = False) -> None:
        self._inner, self._wrong = inner, wrong
        self.descriptor = Descriptor("cpu", "float32", algorithm)

    def supports(self, layer: Layer) -> bool:
        return self._inner.supports(layer)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._inner.parameter_space(layer)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return self._inner.layouts(layer, parameters)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        lowering = self._inner.lower(layer, parameters)
        if not self._wrong:
            return lowering
        return replace(lowering, constants=tuple(np.asarray(c) * np.float32(1.01) for c in lowering.constants))


def plan_of(processor: CpuProcessor, algorithm: str = "direct", repeats: int = 1) -> SinglePlan:
    layer = convolution()
    routine = Renamed(direct(processor), algorithm)
    parameters = routine.parameter_space(layer)[0]
    single = SingleLayer(processor, routine, layer, parameters, routine.lower(layer, parameters), repeats)
    layouts, _ = routine.layouts(layer, parameters)
    return single_layer_plan(single, packed_inputs(layer, random_inputs(layer), layouts))


@pytest.fixture
def faulty() -> Iterator[Runner]:
    with Runner(FAULTY, patience=4) as runner:
        yield runner


@pytest.mark.parametrize("repeats", [1, 3])
def test_outputs_and_times(processor: CpuProcessor, repeats: int) -> None:
    layer, routine = convolution(), direct(processor)
    _, layouts = routine.layouts(layer, routine.parameter_space(layer)[0])
    with Runner() as runner:
        loaded, outputs = runner.open(plan_of(processor, repeats=repeats), outputs=True)
        found = layouts[0].unpack(outputs[0], layer.outputs[0])
        np.testing.assert_allclose(found, run_layer(layer, *random_inputs(layer))[0], atol=1e-4)
        other, nothing = runner.open(plan_of(processor))
        assert nothing == []
        for state in CACHE_STATES:
            times = runner.time([loaded, other, loaded], state)
            assert all(t is not None and 0 < t.seconds < 10 for t in times)
            assert all(t is not None and t.clock is not None and t.clock > 0 for t in times)
        runner.clear()
        again, _ = runner.open(plan_of(processor))
        assert runner.time([again], "warm")[0] is not None


def test_layers_with_equal_constants_share_them(processor: CpuProcessor) -> None:
    layer, routine = convolution(), direct(processor)
    settings = routine.search_space(layer)
    inputs = random_inputs(layer)
    expected = run_layer(layer, *inputs)[0]
    recipes: dict[object, set[bytes]] = {}
    with Runner() as runner:
        for parameters in settings[:40]:
            single = SingleLayer(processor, routine, layer, parameters, routine.lower(layer, parameters))
            given, made = routine.layouts(layer, parameters)
            plan = single_layer_plan(single, packed_inputs(layer, inputs, given))
            memory = np.zeros(plan.base_bytes, np.uint8)
            plan.write_base(memory)
            recipes.setdefault(plan.recipe(), set()).add(memory.tobytes())
            _, outputs = runner.open(plan, outputs=True)
            np.testing.assert_allclose(made[0].unpack(outputs[0], layer.outputs[0]), expected, atol=1e-4)
        assert len(runner._bases) == len(recipes) < len(settings[:40])
    assert None not in recipes
    assert all(len(contents) == 1 for contents in recipes.values())


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        ("segfault", "signal 11"),
        ("abort", "signal 6"),
        ("exit", "the driver gave up"),
        ("hang", "no answer"),
        ("memory", "memory"),
    ],
)
def test_a_candidate_that_harms_its_process(faulty: Runner, processor: CpuProcessor, harm: str, says: str) -> None:
    before, _ = faulty.open(plan_of(processor))
    with pytest.raises(RunnerError, match=says):
        faulty.open(plan_of(processor, harm))
    after, _ = faulty.open(plan_of(processor))
    assert None not in faulty.time([before, after], "memory")


@pytest.mark.parametrize(("harm", "says"), [("segfault", "signal 11"), ("memory", "memory")])
def test_layers_are_opened_while_others_are_prepared(
    faulty: Runner, processor: CpuProcessor, harm: str, says: str
) -> None:
    before, bad, after = (
        faulty.begin_open(plan_of(processor, name), outputs=True) for name in ("direct", harm, "direct")
    )
    with pytest.raises(RunnerError, match=says):
        bad.result()
    assert faulty._opening is after, "an earlier layer's result does not wait for a later layer"
    (one, first), (other, second) = before.result(), after.result()
    np.testing.assert_array_equal(first[0], second[0])
    assert faulty._opening is None
    assert None not in faulty.time([one, other], "memory")


def test_requests_wait_for_the_layer_that_is_being_opened(processor: CpuProcessor) -> None:
    with Runner() as runner:
        layer = runner.begin_open(plan_of(processor)).layer
        assert runner.time([layer], "warm")[0] is not None
        runner.begin_open(plan_of(processor))
        runner.clear()
        assert not runner._open
        again, _ = runner.open(plan_of(processor))
        assert runner.time([again], "warm")[0] is not None
        runner.begin_open(plan_of(processor))  # closed meanwhile


@pytest.mark.parametrize("harm", ["late-segfault", "late-hang", "late-memory"])
def test_one_that_does_so_between_others(faulty: Runner, processor: CpuProcessor, harm: str) -> None:
    layers = [faulty.open(plan_of(processor, name))[0] for name in ("direct", harm, "direct")]
    first = faulty.time(layers, "warm")
    second = faulty.time(layers, "warm")
    assert None not in first
    assert [t is None for t in second] == [False, True, False]
    assert layers[1].failure
    assert faulty.time(layers, "warm")[1] is None


def test_failures_are_remembered_with_their_reasons(processor: CpuProcessor, tmp_path: Path) -> None:
    layer = convolution()
    store = ProfileStore(tmp_path / "p.sqlite")
    routines = [direct(processor), Renamed(direct(processor), "segfault"), Renamed(direct(processor), "late-abort")]
    routines.append(Renamed(direct(processor), "off", wrong=True))
    candidates = [Candidate(r, r.parameter_space(layer)[0]) for r in routines]
    with Profiler(store, processor, site=LocalSite(processor, Runner(FAULTY, patience=4))) as profiler:
        seconds = profiler.compare(processor, layer, candidates)
    assert [s is None for s in seconds] == [False, True, True, True]
    failures = {row.routine.rpartition("/")[2]: row.measurement.failure for row in store.rows()}
    assert "signal 11" in str(failures["segfault"])
    assert "signal 6" in str(failures["late-abort"])
    assert "wrong answer" in str(failures["off"])
    good = next(row.measurement for row in store.rows() if row.measurement.failure is None)
    assert good.interval is not None
    assert good.interval[0] <= good.interval[1]
    assert good.error is not None
    assert 0 <= good.error < 1e-5
    assert good.clock is not None
    assert len(good.samples) >= 3


class Unlucky(Runner):
    """A runner whose process always ends between two requests."""

    def _running(self) -> int:
        return -1


def test_a_process_that_ends_for_no_visible_reason_is_not_started_for_ever(processor: CpuProcessor) -> None:
    with Unlucky(FAULTY) as runner:
        opened = [runner.open(plan_of(processor, name))[0] for name in ("direct", "soon-segfault")]
        assert runner.time(opened, "warm") == [None, None]
        assert all("signal 11" in str(layer.failure) for layer in opened)


@pytest.mark.parametrize(
    "command", [("/nonexistent/python",), (sys.executable, "-c", "import sys; sys.exit('no such module')")]
)
def test_a_process_that_does_not_start_is_said_so(processor: CpuProcessor, command: tuple[str, ...]) -> None:
    with Runner(command) as runner, pytest.raises(DeviceError, match="plan without tuning"):
        runner.open(plan_of(processor))


def test_a_process_that_died_meanwhile_is_nobodys_fault(processor: CpuProcessor) -> None:
    with Runner() as runner:
        layer, _ = runner.open(plan_of(processor))
        assert runner._process is not None
        runner._process.kill()
        assert runner.time([layer], "warm")[0] is not None


ORPHAN = """
import sys, time
from nnstretch.scheduler.measurement.runner.runner import Runner
runner = Runner()
runner.start()
runner._exchange(runner._process, {"do": "clear"})
print(runner._process._process.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_is_left_behind(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    while parent.poll() is None:  # Python drops an interrupt that falls into a destructor
        os.kill(parent.pid, how)
        with suppress(subprocess.TimeoutExpired):
            parent.wait(2)
    for _ in range(600):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the process lives on")


@pytest.mark.opencl
@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("residual", [False, True])
def test_a_device_s_repeats_take_buffers_in_turn(processor: CpuProcessor, turns: int, residual: bool) -> None:
    device = OpenCLProcessor(ProcessorSpec("opencl", 0, usable_cores()[:1]))
    layer = conv_layer((1, 32, 7, 7), 32, residual=residual)
    routine = next(r for r in device.routines if r.supports(layer))
    parameters = routine.parameter_space(layer)[0]
    layouts, made = routine.layouts(layer, parameters)
    inputs = packed_inputs(layer, random_inputs(layer), layouts)
    single = SingleLayer(device, routine, layer, parameters, routine.lower(layer, parameters), 3, turns)
    with Runner() as runner:
        shown, outputs = runner.open(
            single_layer_plan(replace(single, host=processor, shown=True), inputs), outputs=True
        )
        expected = run_layer(layer, *random_inputs(layer))[0]
        np.testing.assert_allclose(made[0].unpack(outputs[0], layer.outputs[0]), expected, atol=1e-3)
        plan = single_layer_plan(replace(single, host=processor), inputs)
        begin, device_part = plan.plan.subgraphs
        assert (begin.queue, device_part.queue, device_part.waits) == (0, 1, (0,))  # so that it waits at a semaphore
        steps = plan.plan.steps[device_part.first :]
        written = {number for step in steps for number in step.writes}
        assert len(written) - len(routine.lower(layer, parameters).workspaces) == turns
        timed, _ = runner.open(plan, outputs=False)
        for state in CACHE_STATES:
            assert all(t is not None and 0 < t.seconds < 10 for t in runner.time([timed, shown], state))


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
@pytest.mark.parametrize("is_device", [False, True])
def test_who_waits_for_a_device_leaves_its_core_alone(is_device: bool) -> None:
    """The clock is read on the layer's core; the waiting thread does not use that core."""
    before, core = os.sched_getaffinity(0), usable_cores()[0]
    seen: list[set[int]] = []

    def run() -> float:
        seen.append(os.sched_getaffinity(0))
        return 1.0

    layer: Any = SimpleNamespace(
        core=core, loaded=SimpleNamespace(device_queues=[object()] if is_device else []), time=run
    )
    memory = os.memfd_create("worker")
    try:
        os.ftruncate(memory, PAGE)
        executor = Executor(memory, own_cache=1 << 20)
        executor._layers[0] = layer
        seconds, clock = executor._time(0, "warm")
    finally:
        os.close(memory)
    assert seconds == 1.0 and clock is not None and clock > 0
    assert seen == [before - {core} if is_device else {core}]
    assert os.sched_getaffinity(0) == before
