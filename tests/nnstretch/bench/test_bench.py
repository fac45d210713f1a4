"""Engines side by side: the pipe they are spoken to through, and what is made of their times."""

import io
import json
import os
import struct
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

from nnstretch.api.options import CompileOptions
from nnstretch.bench.comparison.client import EngineProcess, Workspace
from nnstretch.bench.comparison.compare import (
    Comparison,
    ComparisonOptions,
    compare,
    compiling_of_process,
    parse_engines,
)
from nnstretch.bench.comparison.subject import (
    Subject,
    count_parameters,
    plan_feeds,
    random_array,
    random_feeds,
    reference_outputs,
    subject,
)
from nnstretch.bench.comparison.suite import Series, other_programs, widest_interval
from nnstretch.bench.engines import ENGINES, EngineEntry, Job, Start
from nnstretch.bench.engines.nnstretch_engine import computed_dtype, layer_table
from nnstretch.bench.timing import (
    Latency,
    Timed,
    TimingOptions,
    disturbance,
    interleave,
    latency,
    paired_ratio,
    perfect_split,
    widest,
)
from nnstretch.branching.design import accounting
from nnstretch.cli.benchmarking.engine_comparison import parse_series
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.errors import BuildError, ModelError, UsageError
from nnstretch.frontends.onnx_file import save
from nnstretch.frontends.torch_module import export
from nnstretch.report.tables.bench import failures
from nnstretch.report.tables.text import quietness_lines
from nnstretch.scheduler.runtime.timeline import Event, Timeline
from nnstretch.support.frames import read_frame, write_frame
from nnstretch.support.other_programs import OtherPrograms
from nnstretch.support.worker_process import WorkerError
from tests.kits.networks.two_stages import IMAGE, two_stages

CORES = tuple(sorted(os.sched_getaffinity(0)))
UNTUNED = CompileOptions(tune=False)


@pytest.fixture(scope="module")
def one(graph: ir.Model, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    path = tmp_path_factory.mktemp("bench") / "net.onnx"
    save(graph, path)
    return Subject(str(path), str(path), random_feeds(graph, 0))


def silent(done: int, total: int, what: str) -> None:
    pass


# -- frames --------------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.lists(st.booleans()), max_size=4),
    st.dictionaries(
        st.text(max_size=5),
        arrays.arrays(st.sampled_from([np.float32, np.int64, np.bool_]), arrays.array_shapes(min_dims=0, min_side=0)),
        max_size=3,
    ),
)
def test_frames_arrive_as_they_were_sent(message: dict[str, object], sent: dict[str, np.ndarray]) -> None:
    stream = io.BytesIO()
    write_frame(stream, message, sent)
    write_frame(stream, {"next": 1})
    stream.seek(0)
    found, received = read_frame(stream)
    assert found == message
    assert list(received) == list(sent)
    for name, array in sent.items():
        assert received[name].dtype == array.dtype
        np.testing.assert_array_equal(received[name], array)
    assert read_frame(stream) == ({"next": 1}, {})


@pytest.mark.parametrize("keep", [0, 3, 8, 20, -1])
def test_half_a_frame_is_the_end(keep: int) -> None:
    stream = io.BytesIO()
    write_frame(stream, {"a": 1}, {"x": np.zeros(5)})
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(stream.getvalue()[:keep]))


def test_noise_is_no_frame() -> None:
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(b"Segmentation fault (core dumped)\n" * 9))
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(struct.pack("<Q", 2) + b"[]"))


def test_objects_are_neither_sent_nor_received() -> None:
    objects = np.array([print], dtype=object)
    with pytest.raises(ValueError, match="allow_pickle"):
        write_frame(io.BytesIO(), {}, {"x": objects})
    pickled = io.BytesIO()
    np.save(pickled, objects, allow_pickle=True)
    header = f'{{"message": {{}}, "arrays": [["x", {len(pickled.getvalue())}]]}}'.encode()
    with pytest.raises(EOFError, match="allow_pickle"):
        read_frame(io.BytesIO(struct.pack("<Q", len(header)) + header + pickled.getvalue()))


# -- statistics ----------------------------------------------------------------------------------------------------


def test_a_disturbed_round_counts_once() -> None:
    calm = [np.array([1.0, 1.1, 0.9]) * 1e-3] * 4
    disturbed = np.full(1000, 50e-3)
    found = latency([*calm, disturbed])
    assert found.p50_ms == pytest.approx(1.0)
    assert found.min_ms == pytest.approx(0.9)
    assert found.to_json() == {"p50_ms": 1.0, "p90_ms": 1.08, "min_ms": 0.9, "spread": 0.0, "interval_ms": [1.0, 50.0]}
    assert "interval_ms" not in latency(calm[:2]).to_json()


@pytest.mark.parametrize(
    ("spread", "precision", "rounds"), [(0.001, 0.02, 5), (0.001, None, 10), (0.2, 0.02, 10), (0.2, 0.5, 5)]
)
def test_rounds_end_when_all_latencies_are_precise(spread: float, precision: float | None, rounds: int) -> None:
    random = np.random.default_rng(0)

    def candidate(own_spread: float) -> Timed:
        return lambda _: np.full(3, 1e-3 * random.uniform(1 - own_spread, 1 + own_spread))

    candidates = [candidate(0.001), candidate(spread), candidate(0.001)]
    slices = interleave(candidates, TimingOptions(turn=0.0, precision=precision), silent)
    assert [len(some) for some in slices] == [rounds] * 3
    assert interleave([], TimingOptions(precision=precision), silent) == []


def test_a_measurement_is_disturbed_if_an_interval_is_wide() -> None:
    assert widest([(1.0, 1.0), None, (2.0, 2.1), [1.9, 2.1]]) == pytest.approx(0.05)
    assert widest([None]) is None
    quiet = {"widest_interval": 0.05, "disturbed": False, "other_programs": None}
    assert disturbance(0.05, None) == quiet
    assert disturbance(0.051, None) == quiet | {"widest_interval": 0.051, "disturbed": True}
    assert disturbance(None, None) == quiet | {"widest_interval": None}
    assert quietness_lines(0.05, None) == quietness_lines(None, None) == []
    (line,) = quietness_lines(0.123, None)
    assert line.startswith("the machine was disturbed: intervals are wide (up to ±12%, more than ±5%)")


def test_other_programs_are_named_even_if_intervals_are_narrow() -> None:
    busy = OtherPrograms(0.81, 2)
    assert disturbance(0.01, busy)["other_programs"] == {"used_cores": 0.81, "cores": 2}
    (line,) = quietness_lines(0.01, busy)
    assert line.startswith("other programs used 0.8 of 2 cores while this was measured; figures may be too large")
    assert quietness_lines(0.01, OtherPrograms(0.3, 2)) == []
    assert len(quietness_lines(0.1, busy)) == 2


def test_of_several_results_the_busiest_counts() -> None:
    unknown: list[dict[str, object]] = [{"other_programs": None}, {}]
    known = [{"other_programs": OtherPrograms(used, 2).to_json()} for used in (0.1, 0.9, 0.5)]
    assert other_programs([*unknown, *known]) == OtherPrograms(0.9, 2)
    assert other_programs(unknown) is None


def test_results_are_as_disturbed_as_their_widest_interval() -> None:
    engines = {"a": {"p50_ms": 1.0, "interval_ms": [0.9, 1.1]}, "b": {"p50_ms": 1.0}, "c": {"error": "no"}}
    calm = {"engines": {"a": {"p50_ms": 1.0, "interval_ms": [0.99, 1.01]}}}
    assert widest_interval([calm, {"engines": engines}]) == pytest.approx(0.1)
    assert widest_interval([{"engines": {}}]) is None


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5))
def test_no_split_is_better_than_the_perfect_one(latencies: list[float]) -> None:
    """Sharing the work so that all end together takes the bound; any processor alone takes longer."""
    bound = perfect_split(latencies)
    shares = [bound / t for t in latencies]
    assert sum(shares) == pytest.approx(1)
    assert bound <= min(latencies) * (1 + 1e-9)


def test_a_slow_round_is_no_gain() -> None:
    """One engine was ahead in a quiet round and in two disturbed ones; medians of all rounds would say otherwise."""
    ours = [np.array([1.0, 9.0, 1.0]), np.array([2.0]), np.array([2.2])]
    other = [np.array([1.2]), np.array([2.4, 2.4]), np.array([2.1])]
    assert paired_ratio(other, ours) == pytest.approx(1.2)
    assert paired_ratio(ours, ours) == 1.0
    assert latency(other).p50_ms / latency(ours).p50_ms == pytest.approx(1.05)


def comparison(ours: float, **baselines: float) -> Comparison:
    times = {"nnstretch": ours, **baselines}
    return Comparison(
        "m",
        2,
        {name: Latency(ms, ms * 1.1, ms * 0.9) for name, ms in times.items()},
        {name: ms / ours for name, ms in baselines.items()},
        {"torch": "no module"},
        {"nnstretch": {"macs": 10**9, "fallback_layers": ["a"]}},
        {"nnstretch": 1e-6},
        {"nnstretch": Start(1.0, 2.0, 3.0, 4.0)},
        peak_gflops=100.0,
    )


def test_comparison_in_json() -> None:
    answer = comparison(20.0, onnxruntime=30.0, openvino=25.0).to_json()
    assert answer["best_peer"] == "openvino"
    assert answer["speedup"] == 1.25
    assert answer["peak_share"] == 0.5  # 2 GFLOP in 20 ms are 100 GFLOP/s, of 2 x 100
    assert answer["engines"]["onnxruntime"]["p50_ms"] == 30
    assert answer["engines"]["torch"] == {"error": "no module"}
    assert answer["fallback_layers"] == ["a"]
    assert answer["dtype"] == "float32"
    assert (answer["model"], answer["threads"], answer["macs"]) == ("m", 2, 10**9)
    assert answer["engines"]["nnstretch"]["ready_ms"] == 2.0
    assert answer["engines"]["nnstretch"]["peak_mb"] == 3.0
    assert "ready_ms" not in answer["engines"]["openvino"]
    assert answer["max_rel_error"] == 1e-6


def test_shares_are_those_of_the_peak_of_each_data_type() -> None:
    layers = [{"name": name, "gflops": 400.0, "peak_ratio": ratio} for name, ratio in (("a", 4.0), ("b", 1.0))]
    ours = {"macs": 10**9, "peak_ratio": 4.0, "dtype": "int8", "layers": layers}
    answer = replace(comparison(20.0), facts={"nnstretch": ours}).to_json()
    assert (answer["peak_ratio"], answer["peak_share"]) == (4.0, 0.125)
    assert [layer["peak_share"] for layer in answer["layers"]] == [0.5, 2.0]  # of 2 x 100 x 4, of 2 x 100


def test_engines_by_name() -> None:
    assert [e.name for e in parse_engines("ort, torch")] == ["nnstretch", "onnxruntime", "torch"]
    assert [e.name for e in parse_engines("onnxruntime,nnstretch,ort")] == ["nnstretch", "onnxruntime"]
    assert [e.name for e in parse_engines("")] == ["nnstretch"]
    with pytest.raises(UsageError, match="abacus"):
        parse_engines("ort,abacus")


@pytest.mark.parametrize(
    ("routine", "dtype"),
    [
        ("cpu:float32/direct", "float32"),
        ("cpu:float16/rows", "float16"),
        ("cpu:bfloat16/rows", "bfloat16"),
        ("opencl:float16/direct", "float32"),
    ],
)
def test_the_type_of_a_plan_is_the_least_precise_that_is_multiplied(one: Subject, routine: str, dtype: str) -> None:
    import nnstretch

    with nnstretch.compile(one.onnx, tune=False, threads=1) as session:
        plan = session.plan
    first = next(step for step in plan.steps if step.macs)
    steps = tuple(replace(step, routine=routine) if step is first else step for step in plan.steps)
    assert computed_dtype(replace(plan, steps=steps)) == dtype


def test_engines_are_listed_by_their_types() -> None:
    engines = {"nnstretch": {"dtype": "float16"}, "onnxruntime": {"dtype": "float32"}}
    one = {"model": "m.onnx", "threads": 1, "fallback_layers": [], "engines": engines}
    (line,) = failures([one])
    assert line.endswith("computed in float16 by nnstretch, in float32 by onnxruntime")
    engines["nnstretch"] = {"dtype": "float32"}
    assert not failures([one])


def test_layer_table_is_in_the_order_of_time(one: Subject) -> None:
    import nnstretch

    with nnstretch.compile(one.onnx, tune=False, threads=1) as session:
        plan = session.plan
    step = next(step for step in plan.steps if step.parameters)
    events = (
        Event(step.layer, "step", 0, 500, 1500, step.routine, step.op, 1000),
        Event("wait", "wait", 0, 100, 500),
        Event("a", "step", 1, 0, 1000, "opencl:float32/direct", "Conv", 100),
    )
    slow = tuple(replace(event, end=event.end + 9000) for event in events)
    runs = [Timeline(("cpu:0", "opencl:0"), found, 1500) for found in (events, slow, events)]
    table = layer_table(plan, runs)
    assert [row["name"] for row in table] == ["a", step.layer]
    assert table[1]["gflops"] == 2.0
    assert table[1]["ms"] == 1e-3
    assert table[1]["share"] == 0.5
    assert table[1]["parameters"] == step.parameters
    assert table[0]["parameters"] == {}
    assert table[0]["processor"] == "opencl:0"


# -- subjects ------------------------------------------------------------------------------------------------------


def test_feeds_are_the_seeds(graph: ir.Model) -> None:
    first, again, other = (next(iter(random_feeds(graph, seed).values())) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.shape == IMAGE
    assert first.dtype == np.float32


def test_subjects_are_exported_only_if_they_must(one: Subject) -> None:
    with subject(one.model, {}, 0) as found:
        assert found.onnx == str(Path(one.model).resolve())
    with subject("squeezenet1_1", {"": (1, 3, 32, 32)}, 0) as found:
        assert Path(found.onnx).is_file()
        assert next(iter(found.feeds.values())).shape == (1, 3, 32, 32)
    assert not Path(found.onnx).exists()


def test_parameters_are_the_modules(graph: ir.Model) -> None:
    assert count_parameters(graph) == accounting.count_parameters(two_stages())
    # The file has zeros for the bias that the first convolution lacks, and the last one's own are zeros.
    module = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    nn.init.zeros_(module[3].bias)  # type: ignore[arg-type]
    assert count_parameters(export(module, torch.zeros(IMAGE))) == accounting.count_parameters(module)


def test_reference_refuses_what_it_cannot_run(graph: ir.Model) -> None:
    with pytest.raises(ModelError, match="ONNX Runtime cannot run"):
        reference_outputs(graph, {"x": np.zeros((1, 2, 3, 4), np.float32)})


# -- engine processes ----------------------------------------------------------------------------------------------


def engine_module(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> EngineEntry:
    """An engine of a test's own, importable in the worker."""
    (folder / "custom_engine.py").write_text(textwrap.dedent(text))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return EngineEntry("custom", "custom", "custom_engine")


@pytest.mark.parametrize("entry", ENGINES, ids=lambda entry: entry.name)
def test_every_engine_computes_what_torch_computes(entry: EngineEntry, one: Subject, tmp_path: Path) -> None:
    for package in entry.packages:
        pytest.importorskip(package)
    (tmp_path / "factory.py").write_text(
        "import torch, sys\nsys.path.insert(0, '')\nfrom torch import nn\n"
        "def make():\n"  # draws other weights than the file has
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.zeros(1, 3, 16, 16)\n"
    )
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    path = tmp_path / "m.onnx"
    save(export(module, torch.zeros(IMAGE)), path)
    job = Job(f"{tmp_path}/factory.py:make", str(path), CORES[:1], {"compile": {"tune": False}, "layers": True})
    with Workspace() as workspace:
        job = replace(job, file=workspace.file_for(entry, job, silent))
        with EngineProcess(entry, job, one.feeds, silent) as process:
            (found,) = process.outputs().values()
            seconds = process.time(0.0, 4)
            facts, start = process.facts, process.start
    with torch.inference_mode():
        expected = module(torch.from_numpy(next(iter(one.feeds.values())))).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert seconds.shape == (4,)
    assert (seconds > 0).all()
    assert facts["version"]
    assert 0 < start.created_ms < start.ready_ms
    assert 0 <= start.peak_mb < start.peak_rss_mb
    if entry.name == "nnstretch":
        assert facts["macs"] == 14 * 14 * 8 * 27
        assert facts["fallback_layers"] == []
        assert facts["layers"]


def test_a_process_is_pinned_before_it_loads(one: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = engine_module(
        tmp_path,
        """
        import os
        import numpy as np
        cores = sorted(os.sched_getaffinity(0))
        threads = int(os.environ["OMP_NUM_THREADS"])
        print("this must not come between frames")
        class Pinned:
            def run(self): pass
            def outputs(self): return {"cores": np.array(cores), "threads": np.array(threads)}
            def facts(self): return {"arrived": len(job.cores)}
        def load(given, feeds, report):
            global job
            job = given
            report(1, 2, "halfway")
            return Pinned()
        """,
        monkeypatch,
    )
    events: list[tuple[int, int, str]] = []
    job = Job("m", "m.onnx", CORES[-1:])
    with EngineProcess(entry, job, one.feeds, lambda *event: events.append(event)) as process:
        found = process.outputs()
        assert process.facts == {"arrived": 1}
    assert found["cores"].tolist() == list(CORES[-1:])
    assert found["threads"] == 1
    assert events == [(1, 2, "halfway")]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('the engine says no')", "the engine says no"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("import os; os._exit(7)", "status 7"),
        ("from nnstretch.errors import ModelError; raise ModelError('not mine')", "not mine"),
    ],
)
def test_why_an_engine_failed(
    body: str, reason: str, one: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = engine_module(tmp_path, f"def load(job, feeds, report):\n    {body}\n", monkeypatch)
    with pytest.raises(WorkerError, match=reason):
        EngineProcess(entry, Job("m", "m.onnx", CORES[:1]), one.feeds, silent)


@pytest.fixture
def dies_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineEntry:
    body = """
        import onnxruntime
        class Dies:
            runs = 0
            def __init__(self, job, feeds):
                session = onnxruntime.InferenceSession(job.onnx)
                self.answer = session.run(None, dict(feeds))[0]
            def run(self):
                self.runs += 1
                if self.runs > 3:
                    raise MemoryError("no memory for the fourth run")
            def outputs(self): return {"y": self.answer}
            def facts(self): return {}
        def load(job, feeds, report): return Dies(job, feeds)
        """
    return engine_module(tmp_path, body, monkeypatch)


def test_an_engine_that_dies_while_it_is_timed_becomes_an_error(one: Subject, dies_later: EngineEntry) -> None:
    ours = ENGINES[0]
    settings = ComparisonOptions(CORES[:1], TimingOptions(rounds=2, turn=0.001), compiling=UNTUNED)
    with Workspace() as workspace:
        found = compare(one, (ours, dies_later), settings, workspace, silent)
    assert "no memory for the fourth run" in found.errors["custom"]
    assert set(found.latencies) == {"nnstretch"}
    assert found.max_rel_error is not None
    assert 0 < found.max_rel_error < 1e-4
    assert found.best_peer is None
    assert found.to_json()["engines"]["custom"] == {"error": found.errors["custom"]}


def test_the_engine_is_built_where_that_is_announced(one: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the process that is timed, whose standard error nobody sees."""

    def build() -> None:
        raise BuildError("no compiler")

    monkeypatch.setattr("nnstretch.bench.comparison.compare.engine", build)
    monkeypatch.setattr("nnstretch.bench.comparison.compare.EngineProcess", None)
    with Workspace() as workspace, pytest.raises(BuildError, match="no compiler"):
        compare(one, ENGINES[:1], ComparisonOptions(CORES[:1]), workspace, silent)


def test_the_process_of_our_engine_gets_the_options_of_the_command() -> None:
    given = CompileOptions("cpu:7", tune=False, batch=2, plan=Path("a.json"), tolerance=1e-3, target="elsewhere")
    sent = json.loads(json.dumps(compiling_of_process(given)))
    wanted = CompileOptions("cpu:0", tune=False, plan="a.json", tolerance=1e-3)
    assert replace(CompileOptions("cpu:0", **sent), engines=()) == wanted


def test_a_package_has_no_baselines(one: Subject, tmp_path: Path) -> None:
    import nnstretch

    path = tmp_path / "m.nns"
    with nnstretch.compile(one.model, tune=False, threads=1) as session:
        session.save(path)
        size = session.compiled.memory_bytes
    with subject(str(path), {}, 0) as packed, Workspace() as workspace:
        options = ComparisonOptions(CORES[:1], TimingOptions(rounds=1, turn=0.001))
        found = compare(packed, parse_engines("ort"), options, workspace, silent)
    assert "package" in found.errors["onnxruntime"]
    assert found.latencies["nnstretch"].p50_ms > 0
    assert found.max_rel_error is None
    assert found.to_json()["engines"]["nnstretch"]["plan_bytes"] == size > 0


def test_packages_run_on_the_cores_of_their_plans_and_alone(one: Subject, tmp_path: Path) -> None:
    import nnstretch

    path = tmp_path / "m.nns"
    with nnstretch.compile(one.model, processors="cpu:0,cpu:1", tune=False) as session:
        session.save(path)
        cores = len(session.plan.cores)

    def series(models: Sequence[str], threads: str | None = None) -> Series:
        timing = TimingOptions(rounds=1)
        return parse_series(models, None, "ort", threads, timing, CompileOptions(), layers=False, start=False, seed=0)

    found = series([str(path)])
    assert found.threads == (min(cores, len(found.cores)),)
    assert [engine.name for engine in found.engines] == ["nnstretch"]
    assert series([str(path)], "1").threads == (1,)
    beside = series([str(path), one.model])
    assert (beside.threads, len(beside.engines)) == (found.threads, 2)
    assert series([one.model]).threads == (1,)


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("int64", 0, 1), ("int32", 0, 1), ("bool", 0, 1), ("uint8", 0, 255), ("int8", -128, 127)]
)
def test_random_integers_that_may_be_indices_differ_and_stay_in_a_small_range(dtype: str, low: int, high: int) -> None:
    drawn = random_array(np.random.default_rng(0), (4, 5000), np.dtype(dtype), indices=True)
    assert drawn.dtype == dtype
    assert (int(drawn.min()), int(drawn.max())) == (low, high)


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_random_integers_of_arithmetic_take_all_values_of_up_to_32_bits(dtype: str) -> None:
    drawn = random_array(np.random.default_rng(0), (4, 50000), np.dtype(dtype))
    limits = np.iinfo(dtype if np.dtype(dtype).itemsize <= 4 else f"{dtype[:-2]}32")
    assert drawn.dtype == dtype
    assert limits.min <= drawn.min() <= limits.min + 0.01 * limits.max
    assert 0.99 * limits.max <= drawn.max() <= limits.max


@pytest.mark.parametrize(
    ("lines", "output", "wide"),
    [
        ("s = Add(i, j) y = Neg(s)", "int32[40, 50] y", True),
        ("s = Add(i, j) y = Gather(t, s)", "float[40, 50] y", False),
        ("s = Mul(i, j) c = Cast<to = 7>(s) y = Gather(t, c)", "float[40, 50] y", False),
        ("s = Sub(i, j) y = Gather(s, z)", "int32[3, 50] y", False),  # any operand of such an operator
        ("y = Gather(t, z) s = Add(i, j)", "float[3] y, int32[40, 50] s", True),  # a plan has both in one call
        ("a = Abs(z) y = Gather(t, a) s = Add(i, j) n = Neg(s)", "float[3] y, int32[40, 50] n", True),
        ("y = Gather(t, z) s = Add(i, j) x = Gather(t, s)", "float[3] y, float[40, 50] x", False),
    ],
)
def test_feeds_of_arithmetic_are_wide_and_indices_stay_valid(lines: str, output: str, wide: bool) -> None:
    header = '<ir_version: 8, opset_import: ["": 18]> m (int32[40, 50] i, int32[40, 50] j, int32[3] z, float[4] t)'
    proto = onnx.parser.parse_model(f"{header} => ({output}) {{ {lines} }}")
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    with compile_model(graph, build_processors(f"cpu:{CORES[0]}"), tune=False) as session:
        for feeds in (random_feeds(graph, 0), plan_feeds(session.plan, 0, session.compiled.models)):
            assert wide == (np.abs(feeds["i"].astype(np.int64)).max() > 1 << 30)
            session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
