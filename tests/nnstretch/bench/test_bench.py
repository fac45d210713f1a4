"""Engines side by side: the pipe they are spoken to through, what is made of their times, and the ablation of a branching."""

import io
import json
import os
import re
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
from nnstretch.bench.ablation.ablation import SPLIT, ablate
from nnstretch.bench.ablation.answer import comparison_answer
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
from nnstretch.bench.engines.nnstretch_engine import layer_table
from nnstretch.bench.timing import (
    Latency,
    MeasurementOptions,
    Timed,
    TimingOptions,
    describe_machine,
    disturbance,
    interleave,
    latency,
    perfect_split,
    widest,
)
from nnstretch.branching.design import accounting
from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import BranchDesign, Design, SegmentDesign
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.control import single_branch_control
from nnstretch.branching.transform.network import export_branched
from nnstretch.cli.benchmarking.engine_comparison import parse_series
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.pool import place_without_branches
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import ProcessorSpec, all_cores, default_cores, format_cores, parse_processors
from nnstretch.errors import BuildError, ModelError, UsageError
from nnstretch.frontends.onnx_file import save
from nnstretch.frontends.torch_module import export
from nnstretch.report.documents.branching import branching_document
from nnstretch.report.tables.ablation import branch_cells, prediction_text
from nnstretch.report.tables.text import ms_text, quietness_lines
from nnstretch.scheduler.measurement.runner.runner import Runner
from nnstretch.scheduler.placement import joint
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Event, Timeline
from nnstretch.support.frames import read_frame, write_frame
from nnstretch.support.other_programs import OtherPrograms
from nnstretch.support.progress import Progress
from nnstretch.support.worker_process import WorkerError

IMAGE = (1, 3, 16, 16)
CORES = tuple(sorted(os.sched_getaffinity(0)))
UNTUNED = CompileOptions(tune=False)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 16, 1), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1)):
        layers.append(nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU()))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()


@pytest.fixture(scope="module")
def graph() -> ir.Model:
    return export(network(), torch.zeros(IMAGE))


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


def comparison(ours: float, **baselines: float) -> Comparison:
    times = {"nnstretch": ours, **baselines}
    return Comparison(
        "m",
        2,
        {name: Latency(ms, ms * 1.1, ms * 0.9) for name, ms in times.items()},
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


def test_engines_by_name() -> None:
    assert [e.name for e in parse_engines("ort, torch")] == ["nnstretch", "onnxruntime", "torch"]
    assert [e.name for e in parse_engines("onnxruntime,nnstretch,ort")] == ["nnstretch", "onnxruntime"]
    assert [e.name for e in parse_engines("")] == ["nnstretch"]
    with pytest.raises(UsageError, match="abacus"):
        parse_engines("ort,abacus")


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
    assert count_parameters(graph) == accounting.count_parameters(network())


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
        "def make():\n    torch.manual_seed(0)\n"
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


# -- ablation ---------------------------------------------------------------------------------------------------------


TWO_CORES = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def networks(graph: ir.Model) -> tuple[Design, tuple[ir.Model, ir.Model, ir.Model]]:
    """A design of two half-width branches per stage; original, control and branched network."""
    module, image = network(), torch.zeros(IMAGE)
    plan = blueprint(module, image)
    choices = [
        SegmentChoice(stage, tuple(BranchChoice(processor, tuple(stage.blocks), 0.5) for processor in (0, 1)))
        for stage in plan.traced.stages
    ]
    design = make_design(plan, choices)
    control = single_branch_control(module, image, design.macs)
    return design, (graph, export(control, image), export_branched(build(plan, design), image))


def with_predictions(design: Design) -> Design:
    """The design with a prediction for every branch, another one for each."""
    segments = tuple(
        replace(
            segment,
            branches=tuple(
                replace(branch, predicted_ms=1.0 + number + place / 10) for place, branch in enumerate(segment.branches)
            ),
        )
        for number, segment in enumerate(design.segments)
    )
    return replace(design, segments=segments, predicted_ms=2.5)


@TWO_CORES
def test_ablation_of_a_branched_network(graph: ir.Model, tmp_path: Path) -> None:
    design, models = networks(graph)
    design = with_predictions(design)
    processors = f"cpu:{CORES[0]},cpu:{CORES[1]}"
    events: list[tuple[int, int, str]] = []
    kept: list[int] = []

    def keep(session: PlanSession) -> None:
        session.save(tmp_path / "measured.nns")
        kept.append(len(session.plan.queues))

    ablation = ablate(
        *models,
        processors,
        top1={"branched": 91.5},
        design=design,
        keep=keep,
        options=MeasurementOptions(TimingOptions(rounds=2, turn=0.01), compiling=UNTUNED),
        progress=lambda *event: events.append(event),
    )
    assert kept == [2]
    assert (tmp_path / "measured.nns").stat().st_size > 0
    names = processors.split(",")
    split = {row.network: row.how for row in ablation.rows if "layer" in row.how or "placed" in row.how}
    assert [(row.network, row.how) for row in ablation.rows] == [
        ("original", "alone"),
        ("original", "alone"),
        ("original", "all CPU cores"),
        ("original", split["original"]),
        ("original", "ONNX Runtime"),
        ("branched", "concurrent"),
        ("branched", "one after another"),
        ("control", "alone"),
        ("control", "alone"),
        ("control", "all CPU cores"),
        ("control", split["control"]),
        ("control", "ONNX Runtime"),
        ("control", "perfect split, a bound"),
    ]
    assert all(re.fullmatch(r"split layer by layer|placed on .* alone", how) for how in split.values())
    assert list(ablation.original_ms) == list(ablation.control_ms) == names
    assert ablation.max_rel_error < 1e-4
    assert {row.macs for row in ablation.rows if row.network == "branched"} == {design.macs}
    assert {row.parameters for row in ablation.rows if row.network == "branched"} == {design.params}
    assert {row.top1 for row in ablation.rows if row.network != "branched"} == {None}
    control_macs = next(row.macs for row in ablation.rows if row.network == "control")
    assert control_macs == pytest.approx(design.macs, rel=0.02)
    assert len(ablation.timeline.queues) == 2
    answer = ablation.to_json()
    assert answer["speedup"] == pytest.approx(min(answer["original_ms"].values()) / answer["branched_ms"], rel=1e-3)
    equal = min(answer["control_ms"].values()) / answer["branched_ms"]
    assert answer["speedup_equal_macs"] == pytest.approx(equal, rel=1e-3)
    others = [*answer["original_ms"].values(), *answer["control_ms"].values()]
    others += [answer["onnxruntime_ms"], answer["control_onnxruntime_ms"]]
    others += [answer[f"{network}_{how}_ms"] for network in ("original", "control") for how in ("all_cores", "split")]
    best = answer["best_alternative"]
    assert best["p50_ms"] == min(others)
    assert best["network"] != "branched"
    assert answer["speedup_best_alternative"] == pytest.approx(best["p50_ms"] / answer["branched_ms"], rel=1e-3)
    low, high = answer["intervals"]["speedup_best_alternative"]
    assert low <= high
    assert {"control_split_ms", "control_all_cores_ms", "original_split_ms"} <= answer["intervals"].keys()
    assert answer["perfect_split_ms"] == pytest.approx(perfect_split(list(answer["control_ms"].values())), rel=1e-3)
    assert any("round 2 of 2" in what for _, _, what in events)
    wanted = [branch.predicted_ms for segment in design.segments for branch in segment.branches]
    assert [branch["predicted_ms"] for branch in answer["branches"]] == wanted
    assert [branch_cells(branch)[2] for branch in ablation.branches] == [ms_text(ms) for ms in wanted]
    assert all(branch.error == branch.time.alone_ms / (branch.predicted_ms or 0) - 1 for branch in ablation.branches)
    assert "the whole: predicted 2.500 ms" in prediction_text(ablation)


@TWO_CORES
@pytest.mark.parametrize("pays", [True, False])
def test_a_row_says_whether_its_layers_were_split(pays: bool, graph: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the scheduler is timed, whatever it decides."""
    processors = [f"cpu:{core}" for core in CORES[:2]]
    monkeypatch.setattr(joint, "_MARGIN", -10.0 if pays else 10.0)
    sessions: list[PlanSession] = []

    class Recording(MeasurementOptions):
        def session(
            self, graph: ir.Model, processors: str, progress: Progress, runner: Runner | None = None
        ) -> PlanSession:
            sessions.append(super().session(graph, processors, progress, runner))
            return sessions[-1]

    _, models = networks(graph)
    options = Recording(TimingOptions(rounds=1, turn=0.001), compiling=UNTUNED)
    ablation = ablate(*models, ",".join(processors), options=options)
    found = {row.how for row in ablation.rows if row.how.startswith(("split", "placed"))}
    reports = [s.compiled.placement for s in sessions if s.compiled.placement is not None]
    assert len(reports) == 2
    assert {report.pays for report in reports} == {pays}
    assert found <= ({SPLIT} if pays else {f"placed on {name} alone" for name in processors})
    assert ablation.control_split_ms > 0


@TWO_CORES
def test_a_processor_of_all_cores_has_one_row(graph: ir.Model) -> None:
    _, models = networks(graph)
    everything = f"cpu:{format_cores(default_cores())}"
    options = MeasurementOptions(TimingOptions(rounds=1, turn=0.001), compiling=UNTUNED)
    ablation = ablate(*models, f"{everything},cpu", options=options)
    assert "all CPU cores" not in {row.how for row in ablation.rows}
    assert ablation.control_all_cores_ms == ablation.control_ms[everything]
    assert ablation.original_all_cores_ms == ablation.original_ms[everything]
    assert "control_all_cores_ms" in ablation.intervals


@pytest.mark.parametrize("place", ["alone", "pool", "several"])
def test_a_network_without_branches_runs_where_it_is_predicted_to(place: str, graph: ir.Model) -> None:
    """Table, answer and page of a design without branches name the processors of its plan, and no run that it does not have."""
    design, (original, control, _) = networks(graph)
    specs = parse_processors(f"cpu:{CORES[0]},cpu")  # on a single core, both share it
    processors = ",".join(map(str, specs))
    branch = BranchDesign(0 if place == "pool" else 1, (0,), 1.0, 1.0, 32, design.original_macs)
    whole = SegmentDesign(0, 1, (branch,), (0, 1) if place == "several" else ())
    made = replace(design, segments=(whole,), macs=design.original_macs, pool=place == "pool")
    where = place_without_branches(made, specs)
    both = f"cpu:{format_cores(all_cores(specs))}"
    assert where == {"alone": str(specs[1]), "pool": both, "several": processors}[place]
    kept: list[tuple[str, ...]] = []
    options = MeasurementOptions(TimingOptions(rounds=1, turn=0.001), compiling=UNTUNED)
    ablation = ablate(
        original, control, original, processors, design=made, unbranched_on=where, options=options,
        keep=lambda session: kept.append(tuple(queue.processor for queue in session.plan.queues)),
    )  # fmt: skip
    rows = [row for row in ablation.rows if row.network == "branched"]
    assert {row.processors for row in rows} == {where}
    assert "concurrent" not in {row.how for row in rows}
    assert len(rows) == (2 if place == "several" else 1)
    assert kept[0] == ablation.timeline.queues
    if place == "several":
        assert re.fullmatch(r"split layer by layer|placed on .* alone", rows[0].how)
    else:
        is_alone = where in map(str, specs) or where != f"cpu:{format_cores(default_cores())}"
        assert rows[0].how == ("alone" if is_alone else "all CPU cores")
        assert kept == [tuple(map(str, parse_processors(where)))]
        assert ablation.branched_serial_ms == ablation.branched_ms
    assert not ablation.branches
    answer = comparison_answer("net", ablation, made, describe_machine(CORES), unbranched="why")
    document = branching_document(answer)
    assert f"the original network, {rows[0].how}, on {where}." in document.lead
    titles = [section.title for section in document.sections]
    assert ("The same steps, one after another" in titles) == (place == "several")
    assert any(meaning.startswith(f"not branched, {rows[0].how}, on {where}") for _, meaning in document.headline)
    shown = next(section for section in document.sections if section.title == "The network").panel
    assert shown is not None
    legend = {name for name in {both, *map(str, specs)} if f">{name}<" in "".join(shown[1])}
    assert legend == set(where.split(","))


def test_a_design_without_branches_is_refused_on_other_processors(graph: ir.Model) -> None:
    design, _ = networks(graph)
    branch = BranchDesign(2, (0,), 1.0, 1.0, 32, 1)
    made = replace(design, segments=(SegmentDesign(0, 1, (branch,)),))
    with pytest.raises(UsageError, match=r"is for 3 processors, and cpu:0 was given"):
        place_without_branches(made, [ProcessorSpec("cpu", cores=(0,))])
    pooled = replace(made, segments=(SegmentDesign(0, 1, (replace(branch, processor=0),)),), pool=True)
    with pytest.raises(UsageError, match=r"is for CPU cores, and opencl:0 was given"):
        place_without_branches(pooled, [ProcessorSpec("opencl")])


def test_ablation_needs_two_processors(graph: ir.Model) -> None:
    with pytest.raises(UsageError, match="names 1"):
        ablate(graph, graph, graph, f"cpu:{CORES[0]}")


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
