"""Models in float16 and bfloat16, which are computed in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import nnstretch as nns
from nnstretch.frontends.half_precision import compute_in_float32
from nnstretch.frontends.onnx_file import load
from nnstretch.frontends.resolve import load_any
from nnstretch.frontends.torch_from_onnx.convert import to_torch
from nnstretch.frontends.torch_module import export
from tests.kits.boards.cores import OWN_CORE

HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'

# The parser takes the bits of float16 and bfloat16: 1, 2, 3, …
GRAPHS = {
    "constants and casts": """g (float[2,3] x) => (float[2,3] y) {
        h = Cast <to = 10> (x)
        c = Constant <value = float16[1] {14336}> ()
        d = Mul (h, c)
        y = Cast <to = 1> (d)
    }""",
    "inputs and outputs": """g (float16[2,3] x, float[2,3] z) => (float16[2,3] y, float[2,3] w)
    <float16[3] s = {15360, 16384, 16896}> {
        y = Add (x, s)
        v = Cast <to = 1> (y)
        w = Mul (v, z)
    }""",
    "branches": """g (float16[2,3] x, bool c) => (float16[2,3] y) {
        y = If (c) <
            then_branch = a () => (float16[2,3] p) { p = Add (x, x) },
            else_branch = b () => (float16[2,3] q) { q = Mul (x, x) }
        >
    }""",
    "bfloat16 within": """g (float[2,3] x) => (float[2,3] y) <bfloat16[3] s = {16256, 16384, 16448}> {
        t = Cast <to = 1> (s)
        y = Mul (x, t)
    }""",
    "an output that others read": """g (float16[2,3] x) => (float16[2,3] y, float16[2,3] z) {
        y = Relu (x)
        x_float32 = Neg (y)
        z = Add (x_float32, y)
    }""",
    "an initializer has a name like that of a cast": """g (float16[2,3] x) => (float[2,3] y)
    <float[3] x_float32 = {1.0, 2.0, 3.0}> {
        f = Cast <to = 1> (x)
        y = Add (f, x_float32)
    }""",
    "an initializer is an output": """g (float16[2,3] x) => (float16[2,3] y, float16[3] s)
    <float16[3] s = {15360, 16384, 16896}> {
        y = Add (x, s)
    }""",
}


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def values(model: ir.Model) -> list[ir.Value]:
    return [
        value
        for graph in model.graphs()
        for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs))
    ]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_graph_is_valid_and_computes_the_same(name: str, tmp_path: Path) -> None:
    proto = parsed(GRAPHS[name])
    onnx.save(proto, tmp_path / "model.onnx")
    model = load(tmp_path / "model.onnx")
    edges = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    assert not [v.name for v in values(model) if v.dtype in HALVES and id(v) not in edges]
    given, made = proto.graph, ir.to_proto(model).graph
    for before, after in ((given.input, made.input), (given.output, made.output)):
        assert [(v.name, v.type.tensor_type.elem_type) for v in before] == [
            (v.name, v.type.tensor_type.elem_type) for v in after
        ]
    wide = ir.to_proto(model)
    onnx.checker.check_model(wide, full_check=True)
    draws = np.random.default_rng(1)
    feeds = {
        value.name: np.asarray(True)
        if value.type.tensor_type.elem_type == onnx.TensorProto.BOOL
        else draws.integers(-8, 8, (2, 3)).astype(
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
        for value in given.input
    }
    found, wanted = (onnxruntime.InferenceSession(one.SerializeToString()).run(None, feeds) for one in (wide, proto))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("from_file", [True, False])
def test_networks_run_on_our_kernels_and_are_as_exact_as_in_float32(from_file: bool, tmp_path: Path) -> None:
    torch.manual_seed(2)
    network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 5))
    network.eval().half()
    x = torch.randn(1, 3, 8, 8).half()
    path = tmp_path / "half.onnx"
    ir.save(export(network, x), path)
    with nns.compile(path if from_file else network, None if from_file else x, processors=f"cpu:{OWN_CORE}") as session:
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert not session.plan.fallback_layers
        routines = {step.routine for step in session.plan.steps}
    assert y.dtype == np.float16
    assert any("dense" in routine for routine in routines)
    with torch.no_grad():
        wanted = network.float()(x.float()).numpy()
    assert np.abs(y - wanted).max() < 1e-3 * np.ptp(wanted)


def test_other_models_stay_as_they_are() -> None:
    float32 = ir.from_proto(parsed("g (float[2] x) => (float[2] y) { y = Relu (x) }"))
    sequence = ir.from_proto(
        parsed("g (float16[2] x) => (float16[2] y) { s = SequenceConstruct (x)\n i = Constant <value_int = 0> ()\n"
               " y = SequenceAt (s, i) }")
    )  # fmt: skip
    for value in sequence.graph[0].outputs:
        value.type = ir.SequenceType(ir.TensorType(ir.DataType.FLOAT16))
    for model in (float32, sequence):
        before = ir.to_proto(model)
        assert ir.to_proto(compute_in_float32(model)) == before


def test_a_loaded_model_is_stretched_in_float32(tmp_path: Path) -> None:
    """What torch makes of a file in float16 has weights in float32."""
    onnx.save(parsed("g (float[1,3] x) => (float[1,2] y) <float16[3,2] s = {15360, 16384, 16896, 17408, 17664, 17920}> {"
                     " h = Cast <to = 10> (x)\n m = MatMul (h, s)\n y = Cast <to = 1> (m) }"), tmp_path / "m.onnx")  # fmt: skip
    module = to_torch(load_any(tmp_path / "m.onnx"), "m.onnx").module
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert module(torch.ones(1, 3)).tolist() == [[9.0, 12.0]]
