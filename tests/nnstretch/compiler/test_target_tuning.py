"""Tuning for targets: measurements by the runner there, failures that are data, devices that drop out, plans from the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from nnstretch.api.options import CompileOptions
from nnstretch.bench.targets.measure import measure_models
from nnstretch.bench.targets.models import compile_for_target, with_drawn_inputs
from nnstretch.cli.main import main
from nnstretch.compiler.compile import measured_space, plan_model
from nnstretch.compiler.costs import open_profiler
from nnstretch.compiler.saved_plan import plan_file
from nnstretch.compiler.targets.opencl import names_opencl
from nnstretch.compiler.targets.processors import target_processors
from nnstretch.compiler.targets.site import TargetSite
from nnstretch.compiler.targets.stored import StoredSite, plan_from_file, stored_plan
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.targets import schemes
from nnstretch.devices.targets.base import RunnerEndedError, TargetError, TransientTargetError
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.results import BenchOptions
from nnstretch.errors import UsageError
from nnstretch.frontends.onnx_file import save
from nnstretch.graph.layers import layers
from nnstretch.package.standalone_head import read_head
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.workload import transfer_bytes
from nnstretch.scheduler.measurement.store.profiles_file import Profiles, read_profiles, write_profiles
from nnstretch.scheduler.measurement.store.rows import Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import plan_of
from nnstretch.scheduler.selection import default_selector
from tests.kits.boards.target_board import Board, lost, shorten_measurements
from tests.kits.graphs.mixed_networks import MixedNetwork

NETWORK = """
<ir_version: 8, opset_import: ["": 18]> model (float[1, 8, 8, 8] x) => (float[1, 16, 8, 8] y)
{
    stem = Conv<pads = [1, 1, 1, 1]>(x, a)
    y = Relu(stem)
}
"""
DIRECT, WINOGRAD = "cpu:float32/direct", "cpu:float32/winograd"
ONE = CompileOptions(threads=1)
QUICK = BenchOptions(runs=1, warmup=0.0)


@pytest.fixture
def graph() -> ir.Model:
    """One convolution that several routines compute."""
    proto = onnx.parser.parse_model(NETWORK)
    weight = np.random.default_rng(0).standard_normal((16, 8, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "a"))
    return ir.from_proto(proto)


MakeBoard = Callable[..., Board]


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeBoard:
    """Makes boards whose measurements nobody else has; attempts follow each other at once, and races are short."""
    shorten_measurements(monkeypatch)

    def made(cpu: str = "board", **factors: float) -> Board:
        found = Board(tmp_path / cpu, f"{tmp_path} {cpu}")
        found.factors = {f"cpu:float32/{name}": factor for name, factor in {"reorder": 1e-4, **factors}.items()}
        return found

    return made


def tuned(board: Board, graph: ir.Model, options: CompileOptions = ONE) -> Compiled:
    opencl = names_opencl(options.processors)
    with Device(board, opencl=opencl) as device, TargetSite(device) as site:
        compiled = plan_model(graph.clone(), target_processors(device, options, site), coordinate_descent=False)
    assert board.left == []
    return compiled


def from_store(board: Board, graph: ir.Model, options: CompileOptions = ONE) -> Compiled | None:
    before = board.measurements
    with Device(board, opencl=names_opencl(options.processors)) as device:
        found = stored_plan(graph.clone(), device, options)
    assert board.measurements == before
    return found


def routine(compiled: Compiled | None) -> str:
    assert compiled is not None
    (name,) = {step.routine for step in compiled.plan.steps if step.op == "Conv"}
    return name


def rows(board: Board) -> list[Row]:
    """What the store has of a board."""
    with closing(ProfileStore()) as store:
        known = [one.fingerprint for one in store.descriptions() if board.name.removeprefix("ssh:") in one.fingerprint]
        return [row for fingerprint in known for row in store.rows(fingerprint)]


def failures(board: Board) -> dict[str, set[str]]:
    """Routine -> why it failed."""
    found: dict[str, set[str]] = {}
    for row in rows(board):
        if row.measurement.failure is not None:
            found.setdefault(row.routine, set()).add(row.measurement.failure)
    return found


def test_every_device_gets_the_routines_that_are_fastest_there(board: MakeBoard, graph: ir.Model) -> None:
    one, other = board("one", winograd=0.001), board("other", direct=0.001)
    assert from_store(one, graph) is None
    assert routine(tuned(one, graph)) == WINOGRAD
    assert routine(tuned(other, graph)) == DIRECT
    assert routine(from_store(one, graph)) == WINOGRAD
    assert routine(from_store(other, graph)) == DIRECT
    assert len({row.processor for row in (*rows(one), *rows(other))}) == 2
    alone = [row for row in rows(one) if row.routine in (DIRECT, WINOGRAD) and " in " not in row.workload]
    assert len(alone) >= 3
    assert all(row.measurement.error is not None and row.measurement.error < 1e-4 for row in alone)


@pytest.mark.opencl
def test_an_opencl_device_is_tuned_and_used_there(
    board: MakeBoard,
    graph: ir.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its kernels are built and run there, on inputs in its memory; their answers are checked."""
    made = board("board")
    made.factors |= {"opencl:float32/direct": 1e-3, "opencl:float32/reorder": 1e-4, "transfer": 1e-4, "plan": 1e-2}
    options = CompileOptions("cpu:0,opencl:0")
    compiled = tuned(made, graph, options)
    assert {(step.routine, step.kind) for step in compiled.plan.steps if step.op == "Conv"} == {
        ("opencl:float32/direct", "opencl")
    }
    assert any("opencl:float32" in name for names in made.measured for name in names)
    assert not failures(made)
    assert routine(from_store(made, graph, options)) == "opencl:float32/direct"
    with Device(made, opencl=True) as device:
        for processors in (options, CompileOptions("opencl:0", tune=False)):
            file = tmp_path / "model.nnm"
            model = compile_for_target(graph.clone(), "m", device, processors, file)
            (measured,) = measure_models(device, [with_drawn_inputs(model, graph, 0)], QUICK).measured
            assert measured.error is not None
            assert measured.error < 1e-5
        with pytest.raises(UsageError, match=r"board has no opencl:9: it has opencl:0 \("):
            target_processors(device, CompileOptions("opencl:9"), StoredSite())
    monkeypatch.setitem(schemes.TRANSPORTS, "ssh", lambda _: made)
    save(graph, tmp_path / "net.onnx")
    command = ("compile", tmp_path / "net.onnx", "--standalone", "--target", "ssh:board", "-p", options.processors)
    capsys.readouterr()
    assert main([*map(str, command), "-o", str(tmp_path / "app"), "--json"]) == 0
    shown = capsys.readouterr()
    assert "routines are those that are fastest by measurements on" in " ".join(shown.err.split())
    assert read_head(Path(json.loads(shown.out)["files"]["model"]["file"])).has_devices
    there, plan = ("--target", "ssh:board"), str(tmp_path / "net.plan.json")
    assert main(["tune", str(tmp_path / "net.onnx"), *there, "-p", options.processors, "-o", plan]) == 0
    capsys.readouterr()
    assert main(["run", str(tmp_path / "net.onnx"), "--plan", plan, *there, "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    assert made.left == []


@pytest.mark.parametrize(("dtype", "wanted"), [("int8", {"int8"}), ("hybrid", {"int8", "float32"})])
def test_targets_have_routines_of_both_types_for_a_hybrid(dtype: str, wanted: set[str], board: MakeBoard) -> None:
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(MixedNetwork(layers=1).model(), strict_mode=True))
    (convolution,) = [node.layer for node in layers(optimize(graph)) if node.layer.op == "Conv"]
    with Device(board()) as device:
        (cpu,) = target_processors(device, replace(ONE, dtype=dtype), StoredSite()).named
    assert {one.descriptor.dtype for one in cpu.routines if one.supports(convolution)} == wanted


def test_candidates_of_a_layer_race_together(board: MakeBoard, graph: ir.Model) -> None:
    used = board()
    tuned(used, graph)
    assert max(len(set(names)) for names in used.measured) >= 2
    assert used.measurements < 16
    count = used.measurements
    tuned(used, graph)  # runs the network alone, if anything
    assert used.measurements - count <= 2


def test_a_site_that_was_closed_measures_again(board: MakeBoard, graph: ir.Model) -> None:
    with Device(board()) as device, TargetSite(device) as site:
        compiled = plan_model(graph.clone(), target_processors(device, ONE, site), coordinate_descent=False)
        site.close()  # as the profiler of that plan did
        assert len(site.seconds(compiled)) == 3


def test_a_wrong_answer_there_is_a_failure(board: MakeBoard, graph: ir.Model) -> None:
    used = board(winograd=0.001)
    used.wrong = {WINOGRAD}
    assert routine(tuned(used, graph)) != WINOGRAD
    assert all("wrong answer" in reason for reason in failures(used)[WINOGRAD])
    assert list(failures(used)) == [WINOGRAD]


@pytest.mark.parametrize(("how", "reason"), [("crashing", "Segmentation fault"), ("hanging", "hung for")])
def test_a_candidate_that_ends_the_runner_is_a_failure(
    board: MakeBoard, graph: ir.Model, how: str, reason: str
) -> None:
    used = board(winograd=0.001)
    setattr(used, how, {WINOGRAD})
    assert routine(tuned(used, graph)) != WINOGRAD
    assert all(reason in why for why in failures(used)[WINOGRAD])
    assert list(failures(used)) == [WINOGRAD]


def test_a_runner_that_was_ended_for_other_reasons_gets_another_attempt(board: MakeBoard, graph: ir.Model) -> None:
    used = board(winograd=0.001)

    def ended() -> None:
        raise RunnerEndedError("killed")

    used.events = dict.fromkeys((1, 3, 6), ended)
    assert routine(tuned(used, graph)) == WINOGRAD
    assert failures(used) == {}


def test_a_device_that_drops_out_comes_back(board: MakeBoard, graph: ir.Model) -> None:
    used = board(winograd=0.001)
    used.events = {2: lost, 3: lost, 5: lost}
    assert routine(tuned(used, graph)) == WINOGRAD
    assert failures(used) == {}


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("event", "error"), [(lost, TransientTargetError), (interrupted, KeyboardInterrupt)])
def test_a_tuning_that_ended_early_goes_on(
    board: MakeBoard, graph: ir.Model, event: Callable[[], None], error: type[BaseException]
) -> None:
    used = board(winograd=0.001)
    used.events = dict.fromkeys(range(4, 99), event)
    with pytest.raises(error):
        tuned(used, graph)
    kept = {(row.workload, row.routine, str(row.parameters)): row.measurement.samples for row in rows(used)}
    assert kept
    assert from_store(used, graph) is None  # a part of the layers is no plan
    used.events = {}
    used.factors |= {WINOGRAD: 0.002}
    assert routine(tuned(used, graph)) == WINOGRAD
    now = {(row.workload, row.routine, str(row.parameters)): row.measurement.samples for row in rows(used)}
    assert kept.items() <= now.items()
    assert len(now) > len(kept)


def test_a_hot_device_is_noted(board: MakeBoard, graph: ir.Model) -> None:
    for hot, words in ((False, ""), (True, "lowered its clocks in")):
        used = board("hot" if hot else "cool")
        used.is_hot = hot
        with Device(used) as device, TargetSite(device) as site:
            plan_model(graph.clone(), target_processors(device, ONE, site), coordinate_descent=False)
            assert words in site.note
            assert bool(site.note) == hot


def test_a_device_that_is_lost_for_good_is_one_line(
    board: MakeBoard,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    graph: ir.Model,
) -> None:
    used = board()
    used.events = dict.fromkeys(range(3, 99), lost)
    monkeypatch.setitem(schemes.TRANSPORTS, "ssh", lambda _: used)
    ir.save(graph, tmp_path / "net.onnx")
    capsys.readouterr()
    assert main(["tune", str(tmp_path / "net.onnx"), "--target", "ssh:board", "--threads", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the connection was lost; measurements are kept, and the next tuning goes on from there" in line
    assert rows(used)
    assert used.left == []


def test_a_full_device_ends_the_tuning(board: MakeBoard, graph: ir.Model) -> None:
    used = board()

    def fill() -> None:
        used.is_full = True

    used.events = {2: fill}
    with pytest.raises(TargetError, match="No space left on device; free some space there"):
        tuned(used, graph)
    assert failures(used) == {}


def test_measurements_travel_between_users(board: MakeBoard, graph: ir.Model, tmp_path: Path) -> None:
    used = board(winograd=0.001)
    tuned(used, graph)
    with closing(ProfileStore()) as store:
        mine = rows(used)
        own = {row.processor for row in mine}
        about = [one for one in store.descriptions() if one.fingerprint in own]
        write_profiles(Profiles(mine, about), tmp_path / "profiles.json")
        for fingerprint in own:
            store.clear(fingerprint)
    assert from_store(used, graph) is None
    with closing(ProfileStore()) as store:
        read = read_profiles(tmp_path / "profiles.json")
        assert [one.isa for one in read.processors] == [one.isa for one in about] != []
        assert store.merge(read.rows) == len(mine)
    assert routine(from_store(used, graph)) == WINOGRAD


def test_a_plan_file_of_another_kind_of_device_is_noted(board: MakeBoard, graph: ir.Model, tmp_path: Path) -> None:
    one, other = board("one", winograd=0.001), board("other")
    with Device(one) as device, TargetSite(device) as site:
        usable = target_processors(device, ONE, site)
        with open_profiler(usable) as costs:
            space = measured_space(graph.clone(), usable, costs, coordinate_descent=False)
        selection = default_selector().select(space.problem)
        text = plan_file(plan_of(space, selection).plan, space, selection, usable)
    options = CompileOptions(plan=tmp_path / "plan.json")
    for place, wanted in ((one, True), (other, False)):
        (tmp_path / "plan.json").write_text(text)
        with Device(place) as device:
            found = plan_from_file(graph.clone(), device, options)
            assert routine(found.compiled) == WINOGRAD
            assert found.is_of_this_kind == wanted
            (tmp_path / "plan.json").write_text(text.replace('"cpu:0', '"cpu:4095'))
            with pytest.raises(UsageError, match="core 4095 cannot be used"):
                plan_from_file(graph.clone(), device, options)
            isa = json.loads(text)["selection"]["isa"]
            (tmp_path / "plan.json").write_text(text.replace(f'"{isa}"', '"riscv64"'))
            with pytest.raises(UsageError, match=r"plan\.json is for riscv64"):
                plan_from_file(graph.clone(), device, options)
    assert other.measurements == 0


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_two_groups_of_cores_are_tuned_there(board: MakeBoard, graph: ir.Model) -> None:
    first, second = usable_cores()[:2]
    options = CompileOptions(processors=f"cpu:{first},cpu:{second}")
    used = board(winograd=0.001)
    compiled = tuned(used, graph, options)
    assert {queue.cores for queue in compiled.plan.queues} <= {(first,), (second,)}
    assert any(transfer_bytes(row.workload) for row in rows(used))
    assert from_store(used, graph, options) is not None
    assert from_store(used, graph, ONE) is not None  # cores of one kind have one fingerprint


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
@pytest.mark.parametrize("kind", ["cpu:", pytest.param("opencl:0@", marks=pytest.mark.opencl)])
def test_branches_are_made_for_the_processors_of_a_device(
    kind: str, board: MakeBoard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = board(winograd=0.1)
    monkeypatch.setitem(schemes.TRANSPORTS, "ssh", lambda _: used)
    (tmp_path / "net.py").write_text(
        "import torch\nfrom tests.kits.networks.tiny_branching import SIDE, original\n"
        "def made():\n    return original(), torch.zeros(1, 1, SIDE, SIDE)\n"
    )
    one, other = usable_cores()[:2]
    first, second = f"cpu:{one}", f"{kind}{other}"
    limits = (
        "--alpha",
        "100",
        "--beta",
        "100",
        "--min-depth",
        "1",
        "--min-width",
        "0.5",
        "--top",
        "1",
        "--measure-all",
        "--even-if-slower",
    )
    network = ("stretch", f"{tmp_path / 'net.py'}:made", "--target", "ssh:board")
    capsys.readouterr()
    assert main([*network, "-p", f"{first},{second}", *limits, "-o", str(tmp_path / "designs"), "--json"]) == 0
    (design,) = json.loads(capsys.readouterr().out)["designs"]
    assert {branch["processor"] for branch in design["branches"]} == {first, second}
    assert Path(design["file"]).exists()
    assert any(row.workload.startswith("together with") for row in rows(used))
    assert used.left == []
    assert main([*network, "-p", first, *limits]) == 2
    assert "names 1 processor" in capsys.readouterr().err
