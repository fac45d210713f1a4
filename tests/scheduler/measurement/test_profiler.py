"""Profiling: known costs are not measured again; the keys of costs."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Layout
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.external.onnxruntime import OnnxRuntimeRoutine
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.graph.layer import Layer, TensorType, fused_layer
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import Candidate, Estimates, Outcome
from nnstretch.scheduler.measurement.caches import CacheSizes, cache_sizes, layer_state, network_state, written_afar
from nnstretch.scheduler.measurement.local_site import LocalSite
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.reference_cases import ReferenceCases
from nnstretch.scheduler.measurement.runner.runner import (
    LoadedLayer,
    Opening,
    Runner,
    SharedRunner,
    TimedRun,
    WorkerStartError,
)
from nnstretch.scheduler.measurement.runner.single_layer import SinglePlan
from nnstretch.scheduler.measurement.store.rows import CacheState, Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.planner import make_plan
from tests.kits.graphs.graphs import RandomNetwork


@pytest.fixture(scope="module")
def processor() -> CpuProcessor:
    return CpuProcessor(ProcessorSpec("cpu", cores=usable_cores()[:1]))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    made = ProfileStore(tmp_path / "p.sqlite")
    yield made
    made.close()


def convolution(channels: int = 32, size: int = 12, seed: int = 0) -> Layer:
    weight = np.random.default_rng(seed).standard_normal((96, channels, 3, 3)).astype(np.float32) / 17
    return Layer(
        "c",
        "Conv",
        (TensorType((1, channels, size, size)), TensorType(weight.shape)),
        (TensorType((1, 96, size, size)),),
        {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1},
        constants={1: weight},
    )


def candidates(processor: CpuProcessor, layer: Layer) -> list[Candidate]:
    found = [Candidate(r, p) for r in processor.routines if r.supports(layer) for p in r.parameter_space(layer)]
    assert len(found) >= 3
    return found


def test_equal_workloads_are_measured_once(processor: CpuProcessor, store: ProfileStore) -> None:
    first, second = convolution(seed=1), convolution(seed=2)
    found = candidates(processor, first)
    with Profiler(store, processor, exhaustive=True) as profiler:  # else slow routines may be eliminated
        seconds = profiler.compare(processor, first, found[:3])
        assert profiler.compare(processor, second, found[:3]) == seconds
        assert profiler.measurements == len(store) == 3
        again = profiler.seconds(processor, found[0].routine, second, found[0].parameters)
        assert again == seconds[0]
    with Profiler(store, processor, site=LocalSite(processor, Silent())) as profiler:
        assert profiler.compare(processor, second, found[:3]) == seconds


def test_a_measurement_is_judged_by_the_tolerance_of_whoever_asks(processor: CpuProcessor, store: ProfileStore) -> None:
    layer = convolution()
    found = candidates(processor, layer)[:2]
    with Profiler(store, processor, tolerance=1e-12) as strict:
        assert strict.compare(processor, layer, found) == [None, None]
        failure = strict.outcome(processor, found[0].routine, layer, found[0].parameters).failure
        assert failure is not None
        assert failure.startswith("wrong answer: relative error")
    with Profiler(store, processor, tolerance=1e-2) as lenient:
        assert None not in lenient.compare(processor, layer, found)
        assert lenient.measurements == 2
    with Profiler(store, processor, site=LocalSite(processor, Silent()), tolerance=1e-12) as strict:
        assert strict.compare(processor, layer, found) == [None, None]


def test_a_worker_that_does_not_start_says_nothing_of_routines(processor: CpuProcessor, store: ProfileStore) -> None:
    layer = convolution()
    fails = Runner((sys.executable, "-c", "raise ImportError('cannot import')"))
    with (
        Profiler(store, processor, site=LocalSite(processor, fails)) as profiler,
        pytest.raises(WorkerStartError, match=r"did not start: ImportError"),
    ):
        profiler.measure(processor, layer, candidates(processor, layer))
    assert not list(store.rows())


def test_a_fresh_profiler_ignores_what_was_known_before_it(processor: CpuProcessor, store: ProfileStore) -> None:
    layer = convolution()
    found = candidates(processor, layer)[:2]
    with Profiler(store, processor) as profiler:
        profiler.compare(processor, layer, found)
    with Profiler(store, processor, fresh=True) as profiler:
        profiler.compare(processor, layer, found)
        profiler.compare(processor, layer, found)
        assert profiler.measurements == 2
    assert len(store) == 2


def test_layers_that_onnx_runtime_refuses_on_random_inputs_have_no_seconds(
    processor: CpuProcessor, store: ProfileStore
) -> None:
    image, scales = TensorType((1, 2, 4, 4)), TensorType((4,))
    layer = Layer("larger", "onnx:Resize", (image, None, scales), (image,), {"opset_version": 17})
    group, routine = fused_layer((layer,), ((0, 1),)), OnnxRuntimeRoutine()
    assert routine.supports(group)
    with Profiler(store, processor, site=LocalSite(processor, Silent())) as profiler:
        assert profiler.seconds(processor, routine, group, routine.parameter_space(group)[0]) is None
    assert len(store) == 0


def test_a_quick_race_ends_after_half_the_runs(processor: CpuProcessor, store: ProfileStore) -> None:
    layer = convolution()
    (first, *_) = candidates(processor, layer)
    runner = Unsteady()
    with Profiler(store, processor, site=LocalSite(processor, runner, quick=True)) as profiler:
        (quick,) = profiler.measure(processor, layer, [first])
    with Profiler(store, processor, fresh=True, site=LocalSite(processor, Unsteady())) as profiler:
        (usual,) = profiler.measure(processor, layer, [first])
    assert 3 <= len(quick.samples) <= 7 < len(usual.samples)
    assert quick.error == usual.error


def test_layout_changes_are_not_measured_where_others_know_them(processor: CpuProcessor, store: ProfileStore) -> None:
    tensor, other = TensorType((1, 32, 8, 8)), TensorType((1, 64, 8, 8))

    class Copies(Estimates):
        def reorder_seconds(
            self, processor: Processor, tensor: TensorType, before: Layout, after: Layout
        ) -> float | None:
            return None if tensor is other else 1.5

    with Profiler(store, processor) as profiler:
        asking = profiler.with_copies(Copies()).in_network(1 << 30)
        assert asking.reorder_seconds(processor, tensor, PLAIN, processor.blocked) == 1.5
        assert profiler.measurements == 0
        measured = asking.reorder_seconds(processor, other, PLAIN, processor.blocked)
        assert measured is not None and 0 < measured < 1
        assert profiler.measurements == 1


class Unsteady(Runner):
    """A runner whose times differ from run to run, so that no race is decided early."""

    def time(self, layers: Sequence[LoadedLayer], state: CacheState) -> list[TimedRun | None]:
        self.turn = getattr(self, "turn", 0) + 1
        seconds = 1e-4 * (1 + 0.2 * (self.turn % 3))
        return [TimedRun(seconds * layer.single.repeats, None) for layer in layers]


class Silent(Runner):
    """A runner that must not be used."""

    def start(self) -> None:
        pytest.fail("something was measured")


class Scripted(Runner):
    """A runner with scripted times, in the order in which layers are opened."""

    def __init__(self, seconds: Sequence[float], clock: float | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._script = iter(seconds)
        self._seconds: dict[int, float] = {}

    def begin_open(self, single: SinglePlan, outputs: bool = False) -> Opening:
        opening = super().begin_open(single, outputs)
        self._seconds[opening.layer.number] = next(self._script)
        return opening

    def time(self, layers: Sequence[LoadedLayer], state: object) -> list[TimedRun | None]:
        return [TimedRun(self._seconds[layer.number] * layer.single.repeats, self._clock) for layer in layers]


class Counting(SharedRunner):
    """A runner that counts what it opens."""

    opens = 0

    def begin_open(self, single: SinglePlan, outputs: bool = False) -> Opening:
        self.opens += 1
        return super().begin_open(single, outputs)


def test_candidates_of_a_layer_stay_open_while_it_is_searched(processor: CpuProcessor, store: ProfileStore) -> None:
    layer, other = convolution(), convolution(size=10)
    found = candidates(processor, layer)[:3]
    runner = Counting()
    with Profiler(store, processor, site=LocalSite(processor, runner)) as profiler:
        profiler.compare(processor, layer, found[:2])
        profiler.compare(processor, layer, found)  # together with the best one known
        assert runner.opens == 3
        profiler.compare(processor, other, found[:1])
        assert runner.opens == 4
        profiler.compare(processor, layer, found)
        assert runner.opens == 4
    runner.end()


@pytest.mark.parametrize("channels", [32, 20])
def test_answers_of_a_device_in_host_memory_are_checked_where_they_lie(
    processor: CpuProcessor, store: ProfileStore, channels: int
) -> None:
    """The timed plan is the checked one."""
    device, layer = OpenCLProcessor(ProcessorSpec("opencl", 0, usable_cores()[-1:])), convolution(channels)
    found = [Candidate(r, r.default_parameters(layer)) for r in device.routines if r.supports(layer)]
    runner = Counting()
    with Profiler(store, processor, site=LocalSite(processor, runner), tolerance=1e-2) as profiler:
        made = profiler.measure(device, layer, found)
    assert runner.opens == (len(found) if device.in_host_memory else 2 * len(found))
    assert all(one.seconds is not None and one.error is not None and 0 < one.error < 1e-2 for one in made)
    device.in_host_memory = False
    with Profiler(store, processor, fresh=True, site=LocalSite(processor, Counting()), tolerance=1e-2) as profiler:
        apart = profiler.measure(device, layer, found)
    assert [one.error for one in apart] == [one.error for one in made]
    runner.end()


def test_profilers_share_a_runner_one_after_another(processor: CpuProcessor, store: ProfileStore) -> None:
    """The other one's layers are not taken for open ones."""
    layer = convolution()
    found = candidates(processor, layer)[:3]
    runner = Counting()
    with Profiler(store, processor, site=LocalSite(processor, runner)) as first:
        first.compare(processor, layer, found[:1])
        with Profiler(store, processor, site=LocalSite(processor, runner)) as second:
            second.compare(processor, layer, found[:2])
        assert None not in first.compare(processor, layer, found)
    assert runner.opens == 1 + 2 + 2  # with the best one known
    worker = runner._process
    assert worker is not None
    assert not worker.ended
    runner.end()
    assert worker.ended


def test_later_candidates_are_compared_with_the_best_known(processor: CpuProcessor, store: ProfileStore) -> None:
    """The machine is half as fast the second time; new times are scaled by the known ones."""
    layer = convolution()
    found = candidates(processor, layer)
    with Profiler(store, processor, site=LocalSite(processor, Scripted([0.010, 0.020]))) as profiler:
        assert profiler.compare(processor, layer, found[:2]) == pytest.approx([0.010, 0.020])
    with Profiler(store, processor, site=LocalSite(processor, Scripted([0.020, 0.016]))) as profiler:
        assert profiler.compare(processor, layer, found[:3]) == pytest.approx([0.010, 0.020, 0.008])


def test_times_are_normalised_to_the_reference_frequency(
    processor: CpuProcessor, store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first clock is the reference; others are a share or a multiple of it."""
    layer = convolution()
    found = candidates(processor, layer)[:3]
    monkeypatch.setattr(LocalSite, "frequency", lambda *_: 100.0)
    with Profiler(store, processor, site=LocalSite(processor, Scripted([0.010], clock=100.0))) as profiler:
        assert profiler.compare(processor, layer, found[:1]) == pytest.approx([0.010])
        assert profiler.pace(processor) == 1.0
    monkeypatch.setattr(LocalSite, "frequency", lambda *_: 95.0)
    with Profiler(store, processor, site=LocalSite(processor, Scripted([0.020], clock=95.0))) as profiler:
        assert profiler.seconds(processor, found[1].routine, convolution(seed=3), found[1].parameters) == pytest.approx(
            0.019
        )
        assert profiler.pace(processor) == pytest.approx(0.95)
        assert profiler.is_slowed() is False
    assert store.reference_gflops(processor.fingerprint) == [100.0]
    monkeypatch.setattr(LocalSite, "frequency", lambda *_: 80.0)
    with Profiler(store, processor) as profiler:
        assert profiler.is_slowed()


def test_clocks_of_several_processors_are_told_at_one_moment(
    processor: CpuProcessor, store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one's clock is first read when all clocks are a tenth lower."""
    other = CpuProcessor(ProcessorSpec("cpu", cores=usable_cores()[:2]))
    if other.fingerprint == processor.fingerprint:
        pytest.skip("needs two cores")
    now = 1.0
    monkeypatch.setattr(LocalSite, "frequency", lambda _, p: now * (200.0 if p is other else 100.0))
    with Profiler(store, processor) as profiler:
        assert profiler.pace(processor) == 1.0
        now = 0.9
        assert profiler.pace(other) == pytest.approx(0.9)
        assert profiler._reference(other).gflops == pytest.approx(200.0)


def test_few_transfers_are_measured_and_others_lie_between(
    processor: CpuProcessor, store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger tensors take no less, and beyond the largest time grows with the bytes."""
    asked: list[int] = []

    def measured(_self: Profiler, _device: object, tensor: TensorType) -> float:
        asked.append(4 * tensor.elements)
        return {1 << 10: 10e-6, 1 << 15: 12e-6, 1 << 17: 20e-6, 1 << 19: 36e-6, 1 << 21: 15e-6, 1 << 23: 40e-6}[
            asked[-1]
        ]

    monkeypatch.setattr(Profiler, "_measured_transfer", measured)
    with Profiler(store, processor) as profiler:
        assert profiler.transfer(processor, processor, TensorType((1,))) == 10e-6
        assert profiler.transfer(processor, processor, TensorType((1 << 15,))) == pytest.approx(20e-6)
        assert profiler.transfer(processor, processor, TensorType((10 << 13,))) == pytest.approx(28e-6)
        assert profiler.transfer(processor, processor, TensorType((1 << 19,))) == pytest.approx(36e-6)
        assert profiler.transfer(processor, processor, TensorType((1 << 22,))) == pytest.approx(80e-6)
    assert sorted(asked) == sorted(set(asked))


def test_a_disturbed_transfer_is_measured_again_and_the_least_is_kept(
    processor: CpuProcessor, store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that an earlier command stored."""
    quiet = {1 << 10: 1e-6, 1 << 15: 5e-6, 1 << 17: 20e-6, 1 << 19: 50e-6, 1 << 21: 100e-6, 1 << 23: 130e-6}
    turns: dict[int, int] = {}

    def trip(_site: LocalSite, _host: object, _device: object, tensor: TensorType) -> tuple[float, tuple[float, ...]]:
        size = 4 * tensor.elements
        turns[size] = turns.get(size, 0) + 1
        seconds = 2 * quiet[size] * (20 if size == 1 << 21 and turns[size] < 3 else 1)
        return seconds, (seconds,)

    monkeypatch.setattr(LocalSite, "round_trip", trip)
    monkeypatch.setattr(Profiler, "_copy_seconds", lambda *_: 0.0)
    tensor = TensorType((1 << 19,))
    with monkeypatch.context() as patch, Profiler(store, processor) as profiler:
        patch.setattr("nnstretch.scheduler.measurement.profiler._REPETITIONS", 0)
        assert profiler.transfer(processor, processor, tensor) == pytest.approx(2e-3)
    for _ in range(2):
        with Profiler(store, processor) as profiler:
            assert profiler.transfer(processor, processor, tensor) == pytest.approx(100e-6)
    assert turns == {size: 3 if size == 1 << 21 else 1 for size in quiet}


def two_families(processor: CpuProcessor, layer: Layer) -> list[Candidate]:
    """A routine's first setting, and the first two of another one with the same layouts."""
    families = [[Candidate(r, p) for p in r.parameter_space(layer)] for r in processor.routines if r.supports(layer)]
    many = next(family for family in families if len(family) > 1)
    layouts = many[0].routine.layouts(layer, many[0].parameters)
    for family in families:
        if family is not many and family[0].routine.layouts(layer, family[0].parameters) == layouts:
            return [family[0], *many[:2]]
    pytest.fail("a convolution has but one family")


def test_settings_of_a_routine_whose_first_is_far_behind_are_not_measured(
    processor: CpuProcessor, store: ProfileStore
) -> None:
    """Unless the profiler is exhaustive. An eliminated candidate is no failure, and the others are not measured again."""
    layer = convolution()
    found = two_families(processor, layer)
    with Profiler(store, processor, site=LocalSite(processor, Scripted([0.010, 0.017]))) as profiler:
        assert profiler.compare(processor, layer, found) == [pytest.approx(0.010), pytest.approx(0.017), None]
    no_answers = pytest.MonkeyPatch.context()
    with no_answers as patch, Profiler(store, processor, site=LocalSite(processor, Silent())) as profiler:
        patch.setattr(
            ReferenceCases, "of", lambda *_: pytest.fail("an answer was computed that nothing is compared with")
        )
        assert profiler.compare(processor, layer, found)[2] is None
        assert profiler.outcome(processor, found[2].routine, layer, found[2].parameters) == Outcome()
    with Profiler(store, processor, exhaustive=True, site=LocalSite(processor, Scripted([0.010, 0.005]))) as profiler:
        assert profiler.compare(processor, layer, found)[2] == pytest.approx(0.005)


def test_a_routine_whose_first_setting_is_not_far_behind_may_win_with_another(
    processor: CpuProcessor, store: ProfileStore
) -> None:
    layer = convolution()
    with Profiler(store, processor, site=LocalSite(processor, Scripted([0.010, 0.015, 0.009]))) as profiler:
        assert profiler.compare(processor, layer, two_families(processor, layer)) == pytest.approx(
            [0.010, 0.015, 0.009]
        )


def test_costs_depend_on_the_network_s_working_set(processor: CpuProcessor, store: ProfileStore) -> None:
    layer = convolution()
    (candidate, *_) = candidates(processor, layer)
    with Profiler(store, processor) as profiler:
        for working_set in (1, cache_sizes().shared * 4):
            profiler.in_network(working_set).compare(processor, layer, [candidate])
    assert {row.measurement.state for row in store.rows()} == {"warm", "memory"}


def test_states_of_networks_and_layers() -> None:
    sizes = cache_sizes()
    assert network_state(0) == "warm"
    assert network_state(sizes.own) == ("l3" if sizes.shared > 2 * sizes.own else "memory")
    assert network_state(sizes.shared) == "memory"
    heavy, light = convolution(512), Layer("a", "Add", (TensorType((1, 4)),) * 2, (TensorType((1, 4)),))
    states: tuple[CacheState, ...] = ("warm", "l3", "memory")
    assert [layer_state(heavy, state) for state in states] == ["warm", "l3", "memory"]
    assert [layer_state(light, state) for state in states] == ["warm", "l3", "l3"]
    # What a pool writes goes where nothing has been.
    assert [layer_state(pool(16), state) for state in states] == ["warm", "l3", "memory"]


class Recorded(Runner):
    """A runner that records opened layers."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[SinglePlan] = []

    def begin_open(self, single: SinglePlan, outputs: bool = False) -> Opening:
        self.opened.append(single)
        return super().begin_open(single, outputs)


def pool(size: int) -> Layer:
    attributes = {"kernel": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    return Layer(
        "p", "MaxPool", (TensorType((1, 16, size, size)),), (TensorType((1, 16, size // 2, size // 2)),), attributes
    )


def test_what_is_written_where_nothing_has_been() -> None:
    assert written_afar("Conv", 600, 1000) and not written_afar("Conv", 400, 1000)
    assert written_afar("MaxPool", 1, 1000)


@pytest.mark.parametrize(("working_set", "once"), [(1, False), (cache_sizes().shared * 4, True)])
def test_results_that_lie_in_no_cache_are_written_once_in_a_run(
    processor: CpuProcessor, store: ProfileStore, working_set: int, once: bool
) -> None:
    layer = pool(16)
    recorded = Recorded()
    with Profiler(store, processor, site=LocalSite(processor, recorded)) as profiler:
        routine = next(r for r in processor.routines if r.supports(layer))
        profiler.in_network(working_set).compare(
            processor, layer, [Candidate(routine, routine.parameter_space(layer)[0])]
        )
    assert [single.repeats == 1 for single in recorded.opened] == [once]


@pytest.mark.opencl
@pytest.mark.parametrize(("working_set", "apart"), [(1, False), (cache_sizes().shared * 4, True)])
def test_a_device_s_results_that_lie_in_no_cache_have_a_place_each(
    processor: CpuProcessor, store: ProfileStore, working_set: int, apart: bool
) -> None:
    device, layer, recorded = OpenCLProcessor(ProcessorSpec("opencl", 0, usable_cores()[:1])), pool(16), Recorded()
    routine = next(r for r in device.routines if r.supports(layer))
    with Profiler(store, processor, site=LocalSite(processor, recorded)) as profiler:
        profiler.in_network(working_set).compare(device, layer, [Candidate(routine, routine.parameter_space(layer)[0])])
    timed = recorded.opened[-1]
    written = [number for step in timed.plan.steps if step.layer == "p" for number in step.writes]
    assert len(written) == timed.repeats > 1
    assert (len(set(written)) == timed.repeats) == apart


def test_cache_sizes_as_the_system_gives_them(tmp_path: Path) -> None:
    for number, (kind, level, size) in enumerate(
        [("Data", "1", "32K"), ("Instruction", "1", "64K"), ("Unified", "2", "512K"), ("Unified", "3", "8M")]
    ):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert cache_sizes(tmp_path) == CacheSizes(512 << 10, 8 << 20)
    assert cache_sizes(tmp_path / "nothing") == CacheSizes(1 << 20, 32 << 20)


# -- killed tuners -------------------------------------------------------------------------------------------------

TUNER = """
import sys
from pathlib import Path
import onnx_ir as ir
from nnstretch.passes import optimize
from nnstretch.compiler.processors import build_processors
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.measurement.local_site import LocalSite
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.store.store import ProfileStore
store, model, cores = sys.argv[1:]
found = build_processors(cores)
with Profiler(ProfileStore(Path(store)), found.host) as profiler:
    make_plan(optimize(ir.load(model)), found.named, found.host, profiler)
    print(profiler.measurements)
"""


def keys(rows: Iterator[Row]) -> set[tuple[object, ...]]:
    return {
        (r.workload, r.routine, tuple(sorted(r.parameters.items())), r.measurement.state, r.measurement.when)
        for r in rows
    }


@pytest.mark.slow
def test_tuners_that_are_killed_lose_nothing_finished(processor: CpuProcessor, tmp_path: Path) -> None:
    path, model = tmp_path / "p.sqlite", tmp_path / "m.onnx"
    onnx.save(RandomNetwork(3, 0, nodes=60, channels=(16, 32, 48)).model, model)
    command = [sys.executable, "-c", TUNER, str(path), str(model), processor.name]
    rng = random.Random(0)
    finished: set[tuple[object, ...]] = set()
    for _ in range(5):
        tuner = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        store = ProfileStore(path)
        patience = time.monotonic() + 60
        while len(store) == len(finished) and tuner.poll() is None and time.monotonic() < patience:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.3))
        before = keys(store.rows())
        tuner.kill()
        tuner.wait()
        store.close()
        store = ProfileStore(path)
        after = keys(store.rows())
        store.close()
        assert finished <= before <= after
        finished = after
        with sqlite3.connect(path) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert finished
    last = subprocess.run(command, capture_output=True, text=True, check=True)
    store = ProfileStore(path)
    assert int(last.stdout) == len(store) - len(finished)
    with Profiler(store, processor, site=LocalSite(processor, Silent())) as profiler:
        assert make_plan(optimize(ir.load(model)), [processor], processor, profiler).plan.predicted_ms is not None
    store.close()
