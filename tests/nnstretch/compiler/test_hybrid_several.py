"""Hybrids on several processors and on OpenCL devices: commands, packages, streams and saved plans."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import shape_inference

import nnstretch as nns
from nnstretch.api.options import CompileOptions
from nnstretch.compiler.processors import build_processors
from nnstretch.compiler.saved_plan import plan_file
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.package.standalone import check_standalone
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import Estimates
from nnstretch.scheduler.placement.sharing import NEAR
from nnstretch.scheduler.planner import choice_space, plan_of
from nnstretch.scheduler.selection.hybrid import FLOAT32, INT8
from nnstretch.scheduler.selection.problem import Assignment
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.graphs.mixed_networks import MixedNetwork
from tests.scheduler.lowering.test_crossing import RandomPrices

CORES = sorted(os.sched_getaffinity(0))
CPU, DEVICE = f"cpu:{CORES[0]}", f"opencl:0@{CORES[-1]}"
TWO_CPUS = f"{CPU},cpu:{CORES[-1]}"
NETWORK = MixedNetwork()
FEEDS = {"x": NETWORK.input}
ERROR = 0.05
"""Of the output's range: rounding, and layers that are not rounded."""
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
on_opencl = pytest.mark.opencl


@pytest.fixture(scope="module")
def int8_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hybrid") / "int8.onnx"
    onnx.save(shape_inference.infer_shapes(NETWORK.model(), strict_mode=True), path)
    return path


def check(outputs: list[np.ndarray]) -> None:
    assert relative_error(outputs[0], run_proto(NETWORK.model(), FEEDS)[0]) < ERROR


@needs_two_cores
def test_commands_take_several_processors(cli: Cli, int8_file: Path, tmp_path: Path) -> None:
    plan, package = str(tmp_path / "plan.json"), str(tmp_path / "two.nns")
    options = ("-p", TWO_CPUS, "--dtype", "hybrid")
    answer = answer_of(cli("tune", str(int8_file), *options, "-o", plan, "--json"))
    predicted = answer["dtypes"]["predicted_ms"]
    assert set(predicted) == {FLOAT32, INT8, "hybrid"}
    assert predicted["hybrid"] <= NEAR * min(predicted.values())
    assert answer["predicted_ms"] == pytest.approx(predicted["hybrid"])
    checked = ("--check", "--max-error", str(ERROR), "--json")
    assert cli("run", str(int8_file), "--plan", plan, *checked)[0] == 0
    assert cli("run", str(int8_file), *options, *checked)[0] == 0
    assert cli("compile", str(int8_file), *options, "-o", package)[0] == 0
    assert cli("run", package, "--json")[0] == 0
    once = ("-r", "1", "--budget", "0.01", "--json")
    assert answer_of(cli("bench", str(int8_file), *options, *once))


@needs_two_cores
@pytest.mark.parametrize("streams", [None, 2])
def test_sessions_and_streams(int8_file: Path, streams: int | None) -> None:
    with nns.compile(int8_file, processors=TWO_CPUS, dtype="hybrid", streams=streams) as session:
        check(session.run(None, FEEDS))


@on_opencl
@needs_two_cores
@pytest.mark.parametrize("processors", [DEVICE, f"{CPU},{DEVICE}"])
def test_devices_compute_floats_of_a_quantised_network(int8_file: Path, tmp_path: Path, processors: str) -> None:
    with nns.compile(int8_file, processors=processors, dtype=FLOAT32, tune=False) as session:
        found = session.run(None, FEEDS)
        names = {step.routine.partition("/")[0] for step in session.plan.steps}
        assert {name.partition(":")[0] for name in names} >= {
            spec.partition(":")[0] for spec in session.plan.processors
        }
        session.save(tmp_path / "float.nns")
    (exact,) = run_proto(NETWORK.model(NETWORK.names, [*NETWORK.names, "y"]), FEEDS)
    assert relative_error(found[0], exact) < 1e-5
    with nns.compile(tmp_path / "float.nns") as again:
        np.testing.assert_array_equal(again.run(None, FEEDS)[0], found[0])


@needs_two_cores
@pytest.mark.parametrize(
    "processors", [TWO_CPUS, pytest.param(f"{CPU},{DEVICE}", marks=on_opencl)], ids=["two cpus", "opencl"]
)
@pytest.mark.parametrize("seed", range(3))
def test_saved_plans_keep_who_converts(int8_file: Path, tmp_path: Path, processors: str, seed: int) -> None:
    """Whatever the costs were that the plan was made with."""
    usable = build_processors(CompileOptions(processors, dtype="hybrid"))
    graph = optimize(ir.from_proto(shape_inference.infer_shapes(NETWORK.model(), strict_mode=True)))
    space = choice_space(graph, usable.named, usable.host, Estimates())
    draw = random.Random(seed)
    space = replace(space, costs=RandomPrices(seed))
    answer = Assignment(tuple(draw.randrange(len(options)) for options in space.choices), 0.0, False, 1.0)
    made = plan_of(space, answer)
    path = tmp_path / "plan.json"
    path.write_text(plan_file(made.plan, space, answer, usable))
    with nns.compile(int8_file, plan=path) as session:
        assert [step.kernel for step in session.plan.steps] == [step.kernel for step in made.plan.steps]
        check(session.run(None, FEEDS))
    if processors == TWO_CPUS:
        check_standalone(made.plan)


@pytest.mark.parametrize("dtype", [FLOAT32, "hybrid"])
def test_processors_without_floats_are_refused(cli: Cli, int8_file: Path, dtype: str) -> None:
    words = ("quantised layers as the file says", f"dtype {dtype}", "name a CPU or an OpenCL device")
    refuses(cli("run", str(int8_file), "--dtype", dtype, "-p", "sim:phone/cpu"), *words)
