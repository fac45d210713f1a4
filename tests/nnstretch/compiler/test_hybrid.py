"""Quantised networks in float32, in int8, and in mixtures of both, against the same mixtures written in ONNX."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper, shape_inference

import nnstretch as nns
from nnstretch.api.options import CompileOptions
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import Estimates
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.units import working_set
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of_choices
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.selection.hybrid import FLOAT32, INT8, choice_dtype
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.graphs.mixed_networks import IMAGE, OUTPUT, MixedNetwork
from tests.kits.graphs.quantized_networks import QuantizedNetwork
from tests.kits.hypothesis_examples import examples

NETWORK = MixedNetwork()
FEEDS = {"x": NETWORK.input}


def with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    return shape_inference.infer_shapes(model, strict_mode=True)


@pytest.fixture(scope="module")
def space() -> ChoiceSpace:
    processors = build_processors(CompileOptions("cpu:0", dtype="hybrid"))
    return choice_space(
        optimize(ir.from_proto(with_shapes(NETWORK.model()))), processors.named, processors.host, Estimates()
    )


def outputs_of(space: ChoiceSpace, chosen: list[Choice]) -> np.ndarray:
    made = plan_of_choices(space.graph, chosen, space.pool, space.costs, space.host.blocked.block)
    with PlanSession(made) as session:
        assert not session.plan.fallback_layers
        (y,) = session.run(None, FEEDS)
    return y


def reference(space: ChoiceSpace, chosen: list[Choice]) -> np.ndarray:
    """What ONNX Runtime makes of the network with the same tensors rounded."""
    pairs = list(zip(space.graph.units, chosen, strict=True))
    names = {unit.name: unit.name.removesuffix("_q") if unit.outputs != (OUTPUT,) else OUTPUT for unit, _ in pairs}
    assert set(names.values()) == {*NETWORK.names, OUTPUT}
    floating = [names[unit.name] for unit, choice in pairs if choice.outputs[0].dtype is not None]
    unrounded = [names[unit.name] for unit, choice in pairs if choice_dtype(unit.layer, choice) == FLOAT32]
    unrounded += [OUTPUT] if pairs[-1][1].inputs[0].dtype is not None else []
    (y,) = run_proto(NETWORK.model(floating, unrounded), FEEDS)
    return y


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(25), deadline=None)
def test_any_mixture(space: ChoiceSpace, draws: random.Random) -> None:
    """Every layer in one of its types and layouts: conversions of all kinds lie between them."""
    chosen = [draws.choice(list(choices)) for choices in space.choices]
    error = np.abs(outputs_of(space, chosen) - reference(space, chosen)).max()
    assert error <= 1.01 * NETWORK.step()


@pytest.mark.parametrize("dtype", [FLOAT32, INT8])
def test_one_type(dtype: str, space: ChoiceSpace) -> None:
    chosen = []
    for unit, choices in zip(space.graph.units, space.choices, strict=True):
        mine = [choice for choice in choices if choice_dtype(unit.layer, choice) == dtype]
        chosen.append((mine or choices)[0])
    error = np.abs(outputs_of(space, chosen) - reference(space, chosen)).max()
    assert error <= (1e-5 if dtype == FLOAT32 else 1.01 * NETWORK.step())


def test_networks_in_float32_have_larger_weights(space: ChoiceSpace) -> None:
    """Layers are measured with their weights where a network of that size leaves them."""
    weights = {layer.name: layer.weight_bytes for layer in (unit.layer for unit in space.graph.units)}
    scales = {name: 4 * outs for name, outs in (("a", 16), ("b", 16), ("d", 16), ("g", 8), ("j", 5))}
    floats = replace(space.graph, in_float32=True)
    largest = {kind: 2 * kind * 16 * IMAGE[2] * IMAGE[3] for kind in (1, 4)}
    assert working_set(space.graph) == sum(weights.values()) + max(largest[1], 2 * 4 * 3 * IMAGE[2] * IMAGE[3])
    assert working_set(floats) == 4 * sum(weights[name] - scales[name] for name in scales) + largest[4]


@given(st.integers(0, 10**6))
@settings(max_examples=examples(6), deadline=None)
def test_random_networks_in_float32(seed: int) -> None:
    """Every layer computes floats, but for pools of what may have lost a ReLU."""
    network = QuantizedNetwork(seed)
    wanted = run_proto(without_rounding(network.model), {"x": network.input})
    processors = build_processors(CompileOptions("cpu:0", dtype=FLOAT32))
    with compile_model(ir.from_proto(network.model), processors, tune=False) as session:
        found = session.run(None, {"x": network.input})
        assert not session.plan.fallback_layers
    for y, exact in zip(found, wanted, strict=True):
        assert relative_error(y, exact) < 3e-3


_CLIPPED = ("Conv", "Gemm", "Add", "Sub", "Mul")


def without_rounding(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network with Clip in place of the rounding of what is multiplied or added up, and no other rounding."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    operators = {node.output[0]: node for node in model.graph.node}
    replaced: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        source = node.input[0]
        if node.op_type == "QuantizeLinear":
            kind = values[node.input[2]].dtype
            limits = np.array([np.iinfo(kind).min, np.iinfo(kind).max]).astype(kind)
            low, high = (limits.astype(np.float32) - values[node.input[2]]) * values[node.input[1]]
            bounds = {f"{source}_least": low, f"{source}_most": high}
            maker = operators.get(source)
            while maker is not None and maker.op_type in ("Relu", "Clip") and maker.input[0] in operators:
                maker = operators[maker.input[0]]
            replaced[node.output[0]] = source
            if maker is None or maker.op_type in _CLIPPED:
                values |= {name: np.array(bound, np.float32) for name, bound in bounds.items()}
                nodes.append(helper.make_node("Clip", [source, *bounds], [f"{source}_clipped"]))
                replaced[node.output[0]] = f"{source}_clipped"
        elif node.op_type == "DequantizeLinear" and source not in values:
            nodes.append(helper.make_node("Identity", [replaced[source]], [node.output[0]]))
        else:
            nodes.append(node)
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "floating", model.graph.input, model.graph.output, constants)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=10)


@pytest.fixture(scope="module")
def int8_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hybrid") / "int8.onnx"
    onnx.save(with_shapes(NETWORK.model()), path)
    return path


def test_tuning_says_which_type_each_layer_has(cli: Cli, int8_file: Path, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    answer = answer_of(cli("tune", str(int8_file), "-p", "cpu:0", "--dtype", "hybrid", "-o", plan, "--json"))
    predicted, layers = answer["dtypes"]["predicted_ms"], answer["dtypes"]["layers"]
    assert set(predicted) == {FLOAT32, INT8, "hybrid"}
    assert predicted["hybrid"] <= min(predicted[FLOAT32], predicted[INT8])
    assert {"x_q", *NETWORK.names[1:]} <= set(layers)
    for layer in answer["layers"]:
        if layer["op"] not in ("Reorder", "Dequantize"):
            assert f":{layers[layer['name']]}/" in layer["routine"]
    assert cli("run", str(int8_file), "--plan", plan, "--max-error", "0.05", "--check", "--json")[0] == 0
    refuses(cli("run", str(int8_file), "--plan", plan, "--dtype", "int8"), "a plan fixes", "dtype")


def test_the_table_says_what_each_type_would_take(cli: Cli, int8_file: Path) -> None:
    status, out, _ = cli("tune", str(int8_file), "-p", "cpu:0", "--dtype", "hybrid", "--selector", "greedy")
    assert status == 0
    assert "predicted: float32 " in out
    assert ", hybrid " in out
    status, out, _ = cli("tune", str(int8_file), "-p", "cpu:0", "--dtype", "float32")
    assert status == 0
    assert "hybrid" not in out
    assert "cpu:float32/" in out
    assert "cpu:int8/" not in out


def test_packages_keep_the_types(int8_file: Path, tmp_path: Path) -> None:
    with nns.compile(int8_file, processors="cpu:0", dtype=FLOAT32, tune=False) as session:
        (y,) = session.run(None, FEEDS)
        session.save(tmp_path / "float.nns")
    with nns.compile(tmp_path / "float.nns") as again:
        np.testing.assert_array_equal(again.run(None, FEEDS)[0], y)
    with nns.compile(int8_file, processors="cpu:0", tune=False) as session:
        assert {step.routine.partition("/")[0] for step in session.plan.steps} == {"cpu:int8"}


DATA = """
import numpy as np
from nnstretch.training.data.split import ArraySplit, Dataset

def noise():
    file = np.load("noise.npz")
    split = ArraySplit(file["images"], file["labels"])
    return Dataset("noise", 5, 3, 10, tuple("abcde"), (0.0,) * 3, (1.0,) * 3, split, split, split)
"""


def write_noise(folder: Path) -> None:
    """A data set whose labels are what the network in float32 says."""
    images = np.random.default_rng(1).standard_normal((200, *IMAGE[1:])).astype(np.float32)
    exact = NETWORK.model(NETWORK.names, [*NETWORK.names, OUTPUT])
    logits = [run_proto(exact, {"x": image[None]})[0] for image in images]
    np.savez(folder / "noise.npz", images=images, labels=np.concatenate(logits).argmax(axis=1))
    (folder / "noise.py").write_text(DATA)


def test_a_front_of_accuracy(cli: Cli, int8_file: Path, folder: Path) -> None:
    """Its ends are the fastest plan and the most accurate one; the table shows what the answer has."""
    write_noise(folder)
    options = ("-p", "cpu:0", "--dtype", "hybrid", "--data", "noise.py:noise")
    front = ("--pareto", "latency,memory,accuracy", "--pareto-plans", "5")
    answer = answer_of(cli("tune", str(int8_file), *options, *front, "--json"))
    found, predicted = answer["pareto"], answer["dtypes"]["predicted_ms"]
    points = found["points"]
    assert "accuracy" not in answer, "nothing is limited"
    assert found["objectives"] == ["latency", "memory", "accuracy"]
    assert (found["images"], found["measured_plans"], found["complete"]) == (200, 5, False)
    assert found["candidates"] > 5
    assert points[0]["latency_ms"] == pytest.approx(predicted["hybrid"])
    assert max(point["accuracy"] for point in points) == 100.0
    for one, other in itertools.permutations(points, 2):
        better = [one[name] <= other[name] for name in ("latency_ms", "memory")]
        assert not (all(better) and one["accuracy"] >= other["accuracy"])
    report = cli("tune", str(int8_file), *options, *front, "-o", "front.md")[1]
    assert "top-1 measured of 5 plans of " in " ".join(report.split())
    assert "| top-1 | int8 layers |" in Path("front.md").read_text()


@pytest.mark.parametrize("points", [0.0, 100.0])
def test_a_limit_of_accuracy(cli: Cli, int8_file: Path, folder: Path, points: float) -> None:
    """Labels are what the network in float32 says, so that layers in int8 cost accuracy."""
    write_noise(folder)
    limit = ("--limit", f"accuracy={points}", "--data", "noise.py:noise")
    answer = answer_of(cli("tune", str(int8_file), "-p", "cpu:0", "--dtype", "hybrid", *limit, "--json"))
    found, predicted = answer["accuracy"], answer["dtypes"]["predicted_ms"]
    assert found["images"] == 200
    assert found["points"] == points
    assert found["top1"]["float32"] == 100.0
    assert found["top1"]["hybrid"] >= 100.0 - points
    assert predicted["hybrid"] <= predicted["float32"]
    assert "rounding" not in answer.get("amounts", {})
    if points == 100.0:
        assert found["measured_plans"] == 2
        assert predicted["hybrid"] <= predicted["int8"]
    report = cli("tune", str(int8_file), "-p", "cpu:0", "--dtype", "hybrid", *limit)[1]
    assert "top-1 on 200 validation images: " in report


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--dtype", "float16"), ("dtype 'float16' is not supported", "float32, bfloat16, int8, hybrid")),
        (("--dtype", "hybrid", "--no-tune"), ("compares measured times",)),
        (("--dtype", "bfloat16"), ("all layers of the network are int8", "bfloat16")),
    ],
)
def test_what_is_refused(cli: Cli, int8_file: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    refuses(cli("run", str(int8_file), *options), *words)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_benchmarks_name_the_type_in_which_layers_compute(cli: Cli, int8_file: Path, dtype: str) -> None:
    """Also where inputs and outputs of a plan in float32 are quantised."""
    options = ("--dtype", dtype, "--no-tune", "--against", "ort", "-r", "1", "--budget", "0.01", "--json")
    (result,) = answer_of(cli("bench", str(int8_file), *options))["results"]
    assert (result["dtype"], result["engines"]["nnstretch"]["dtype"]) == (dtype, dtype)


def test_a_network_in_float32_has_no_integers(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    onnx.save(with_shapes(QuantizedNetwork(0).floating), path)
    for dtype in ("int8", "hybrid"):
        refuses(cli("run", str(path), "--dtype", dtype), "no int8 layers", "nnstretch quantize")
    assert cli("run", str(path), "-p", "cpu:0", "--no-tune", "--dtype", "float32", "--json")[0] == 0
