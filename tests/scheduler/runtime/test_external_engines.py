"""Plans in which other engines compute layers and fusion groups beside the native kernels."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import nnstretch
from nnstretch.api.options import CompileOptions
from nnstretch.cli.main import main
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.external.litert.engine import LiteRtRoutine
from nnstretch.devices.external.onnxruntime import OnnxRuntimeRoutine
from nnstretch.errors import ModelError, PackageError, UsageError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.package import read_package
from nnstretch.package.standalone import check_standalone
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.runtime.base_session import Session
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork

pytest.importorskip("ai_edge_litert.interpreter")

CPU = f"cpu:{usable_cores()[0]}"
ENGINES = ("ort", "litert")
ONNXRUNTIME, LITERT = "cpu:float32/onnxruntime", "cpu:float32/litert"


class RandomPrices(CostModel):
    """Random costs per routine and layer; fusion groups cost little more than layers, so that they are chosen."""

    measured = True

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._prices: dict[tuple[str, str], float] = {}

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        key = (layer.name, str(routine.descriptor))
        if key not in self._prices:
            rng = np.random.default_rng([self.seed, *"|".join(key).encode()])
            self._prices[key] = float(rng.random()) * max(1.0, 0.7 * len(layer.parts))
        return self._prices[key]

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return 0.1


def planned(network: RandomNetwork, seed: int, processors: str = CPU) -> Compiled:
    usable = build_processors(CompileOptions(processors, engines=ENGINES))
    return make_plan(optimize(network.graph()), usable.named, usable.host, RandomPrices(seed))


def check(session: Session, network: RandomNetwork) -> None:
    found = session.run(None, {"x": network.input})
    for y, expected in zip(found, network.expected(), strict=True):
        assert relative_error(y, expected) < 1e-4


def routines(compiled: Compiled) -> set[str]:
    return {step.routine for step in compiled.plan.steps if step.op != "Reorder"}


@pytest.mark.parametrize("seed", range(12))
def test_mixed_plans_compute_the_same(seed: int) -> None:
    network = RandomNetwork(seed, processors=0)
    compiled = planned(network, seed)
    assert not compiled.plan.fallback_layers, "chosen is not fallen back to"
    assert compiled.plan.macs == planned(network, seed + 100).plan.macs
    with PlanSession(compiled) as session:
        check(session, network)


def test_the_plans_above_are_mixed() -> None:
    plans = [planned(RandomNetwork(seed, processors=0), seed) for seed in range(12)]
    assert sum({ONNXRUNTIME, LITERT} < routines(plan) for plan in plans) >= 6
    assert any(step.op == "Chain" and step.kind == "call" for plan in plans for step in plan.plan.steps)


@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(4))
def test_with_a_device(seed: int) -> None:
    if len(usable_cores()) < 2:
        pytest.skip("two processors need two cores")
    network = RandomNetwork(seed, processors=0)
    with PlanSession(planned(network, seed, f"{CPU},opencl:0@{usable_cores()[-1]}")) as session:
        check(session, network)


def test_packages_carry_the_models(tmp_path: Path) -> None:
    network, path = RandomNetwork(0, processors=0), tmp_path / "m.nns"
    compiled = next(c for c in (planned(network, seed) for seed in range(99)) if {ONNXRUNTIME, LITERT} < routines(c))
    with PlanSession(compiled) as session:
        session.save(path)
    folders = {name.split("/")[0] for name in zipfile.ZipFile(path).namelist()}
    assert {"onnx", "tflite"} <= folders
    with PlanSession.load(path) as session:
        check(session, network)


def damaged(compiled: Compiled, **changes: object) -> Compiled:
    """The plan with one call step changed."""
    steps = list(compiled.plan.steps)
    number = next(i for i, step in enumerate(steps) if step.kind == "call")
    steps[number] = replace(steps[number], **changes)  # type: ignore[arg-type]
    return Compiled(replace(compiled.plan, steps=tuple(steps)), compiled.constants, compiled.models)


def test_plans_and_models_that_do_not_fit() -> None:
    network = RandomNetwork(0, processors=0)
    compiled = next(c for c in (planned(network, seed) for seed in range(99)) if LITERT in routines(c))
    wrong = TensorType((1, 2, 3))
    cases = [
        damaged(compiled, kernel="absent"),
        damaged(compiled, routine="cpu:float32/direct"),
        damaged(compiled, write_types=(wrong,)),
        damaged(compiled, read_types=()),
        Compiled(compiled.plan, compiled.constants, dict.fromkeys(compiled.models, b"nonsense")),
        Compiled(compiled.plan, compiled.constants, {name: model[:99] for name, model in compiled.models.items()}),
    ]
    for case in cases:
        with pytest.raises((PackageError, ModelError)):
            PlanSession(case)


# ---- tuning -----------------------------------------------------------------------------------------------------


def tuned(network: RandomNetwork, folder: Path) -> tuple[Compiled, ProfileStore]:
    usable = build_processors(CompileOptions(CPU, engines=ENGINES))
    store = ProfileStore(folder / "profiles.sqlite")
    with Profiler(store, usable.host) as profiler:
        return make_plan(optimize(network.graph()), usable.named, usable.host, profiler), store


def failures(folder: Path) -> list[str]:
    import sqlite3

    with sqlite3.connect(folder / "profiles.sqlite") as database:
        return [row[0] for row in database.execute("SELECT failure FROM measurement WHERE failure IS NOT NULL")]


def test_external_engines_are_measured_like_any_routine(tmp_path: Path) -> None:
    network = RandomNetwork(3, processors=0, nodes=5)
    compiled, store = tuned(network, tmp_path)
    store.close()
    assert failures(tmp_path) == []
    with PlanSession(compiled) as session:
        check(session, network)


def test_tuning_survives_an_external_engine_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LiteRtRoutine, layer: Layer) -> bytes:
        raise ModelError(f"{layer.op} is too much")

    monkeypatch.setattr(LiteRtRoutine, "model", refuse)
    monkeypatch.setattr(LiteRtRoutine, "can_express", lambda *_: True)
    monkeypatch.setattr(OnnxRuntimeRoutine, "model", lambda *_: b"nonsense")
    network = RandomNetwork(3, processors=0, nodes=5)
    compiled, store = tuned(network, tmp_path)
    store.close()
    reasons = failures(tmp_path)
    assert any("too much" in reason for reason in reasons)
    assert any("ONNX Runtime cannot run" in reason for reason in reasons)
    assert not {ONNXRUNTIME, LITERT} & routines(compiled)


def test_a_wrong_answer_cannot_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = LiteRtRoutine.model

    def wrong(self: LiteRtRoutine, layer: Layer) -> bytes:
        return right(self, replace(layer, constants={i: 0 * value for i, value in layer.constants.items()}))

    monkeypatch.setattr(LiteRtRoutine, "model", wrong)
    compiled, store = tuned(RandomNetwork(3, processors=0, nodes=5), tmp_path)
    store.close()
    assert any("wrong answer" in reason for reason in failures(tmp_path))
    assert LITERT not in routines(compiled)


def test_a_run_takes_the_fallback_in() -> None:
    """Where ONNX Runtime is free, one call computes everything, including fallback layers."""

    class FreeExternalEngine(RandomPrices):
        def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
            return 1e-6 if str(routine.descriptor) == ONNXRUNTIME else 1.0

    network = RandomNetwork(0, processors=0)
    graph = foreign(network)
    usable = build_processors(CompileOptions(CPU, engines=("ort",)))
    compiled = make_plan(optimize(graph), usable.named, usable.host, FreeExternalEngine(0))
    assert [step.routine for step in compiled.plan.steps] == [ONNXRUNTIME]
    assert not compiled.plan.fallback_layers
    with PlanSession(compiled) as session:
        found = session.run(None, {"x": network.input})
    for y, expected in zip(found, run_proto(ir.to_proto(graph), {"x": network.input}), strict=True):
        assert relative_error(y, expected) < 1e-4


def test_the_fallback_is_measured(tmp_path: Path) -> None:
    usable = build_processors(CPU)
    store = ProfileStore(tmp_path / "profiles.sqlite")
    with Profiler(store, usable.host) as profiler:
        compiled = make_plan(optimize(foreign(RandomNetwork(0, 0))), usable.named, usable.host, profiler)
    store.close()
    assert compiled.plan.fallback_layers
    assert compiled.plan.predicted_ms
    assert all(step.cost_ms for step in compiled.plan.steps if step.is_fallback)


def foreign(network: RandomNetwork) -> ir.Model:
    """A chain of a convolution, an operator that no native routine covers, and a convolution."""
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["" : 20]>
        net (float[SHAPE] x) => (float[SHAPE] y) <float[16,16,3,3] w> {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = Sinh (a)
            y = Conv <pads = [1, 1, 1, 1]> (b, w)
        }""".replace("SHAPE", ",".join(map(str, network.input.shape)))
    )
    weight = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32) / 10
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return ir.from_proto(model)


# ---- the option -------------------------------------------------------------------------------------------------


def test_the_option_of_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnstretch.compiler.costs.ProfileStore", lambda: ProfileStore(tmp_path / "profiles.sqlite"))
    network = RandomNetwork(1, processors=0, nodes=4)
    with nnstretch.compile(network.graph(), processors=CPU, engines=ENGINES) as session:
        check(session, network)


def test_without_the_option_there_are_none() -> None:
    names = {str(r.descriptor) for r in build_processors(CPU).host.routines}
    assert not {ONNXRUNTIME, LITERT} & names


def test_engines_are_for_tuned_plans_on_a_cpu() -> None:
    graph = RandomNetwork(1, processors=0, nodes=4).graph()
    with pytest.raises(UsageError, match="tune, or leave them out"):
        plan_model(graph, build_processors(CompileOptions(CPU, engines=ENGINES)), tune=False)
    with pytest.raises(UsageError, match="no CPU"):
        build_processors(CompileOptions("opencl:0", engines=ENGINES))
    with pytest.raises(UsageError, match="abacus"):
        build_processors(CompileOptions(CPU, engines=("abacus",)))


def test_untuned_plans_have_none() -> None:
    usable = build_processors(CompileOptions(CPU, engines=ENGINES))
    for seed in range(4):
        compiled = make_plan(optimize(RandomNetwork(seed, 0).graph()), usable.named, usable.host)
        assert not {ONNXRUNTIME, LITERT} & routines(compiled)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tune", "resnet18", "--engines", "abacus"), "ort, litert"),
        (("compile", "resnet18", "--engines", "ort", "--no-tune"), "tune, or leave them out"),
        (("compile", "resnet18", "--engines", "ort", "--standalone"), "leave --engines or --standalone out"),
        (("tune", "resnet18", "--engines", "ort", "-p", "opencl"), "no CPU is among the processors"),
    ],
)
def test_the_command_line(arguments: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(list(arguments)) == 2
    assert said in " ".join(capfd.readouterr()[1].split())


def test_standalone_models_have_none() -> None:
    compiled = next(c for c in (planned(RandomNetwork(0, 0), s) for s in range(99)) if LITERT in routines(c))
    with pytest.raises(UsageError, match="cpu:float32/litert computes"):
        check_standalone(compiled.plan)


def test_only_the_first_cpu_has_external_engines() -> None:
    cores = usable_cores()
    if len(cores) < 2:
        pytest.skip("needs two cores")
    first, second = build_processors(CompileOptions(f"cpu:{cores[0]},cpu:{cores[1]}", engines=ENGINES)).named
    assert [str(r.descriptor) for r in first.routines][-2:] == [ONNXRUNTIME, LITERT]
    assert ONNXRUNTIME not in {str(r.descriptor) for r in second.routines}


def test_packages_say_which_models_they_hold(tmp_path: Path) -> None:
    path = tmp_path / "m.nns"
    compiled = next(c for c in (planned(RandomNetwork(0, 0), s) for s in range(99)) if LITERT in routines(c))
    with PlanSession(compiled) as session:
        session.save(path)
    package = read_package(path).first
    wanted = [step["kernel"] for step in json.loads(package.plan)["steps"] if step["kind"] == "call"]
    assert sorted(package.models) == sorted(wanted)
