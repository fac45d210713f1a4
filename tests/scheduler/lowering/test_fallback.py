"""Layers without native routine run on ONNX Runtime inside the plan, connected ones together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.engine.binding.library import MAX_READS, MAX_WRITES
from nnstretch.errors import ModelError
from nnstretch.graph.reference import relative_error
from nnstretch.scheduler.runtime.session import PlanSession

MIXED = """
<ir_version: 10, opset_import: ["" : 20]>
mixed (float[1,16,8,8] x) => (float[1,4,16,16] y, int64[1,1,1,1] best)
<float[16,16,3,3] w, float[16,16,1,1] v>
{
    a = Conv<pads = [1, 1, 1, 1]>(x, w)
    b = Relu(a)
    c = Sinh(b)
    d = Atan(c)
    e = Conv(d, v)
    y = DepthToSpace<blocksize = 2>(e)
    g = GlobalMaxPool(e)
    best = ArgMax<axis = 1, keepdims = 1>(g)
}
"""

ONLY_FALLBACK = """
<ir_version: 10, opset_import: ["" : 20]>
only (float[2,3] x) => (float[2,3] y)
{
    y = Sinh(x)
}
"""

STRAIGHT_THROUGH = """
<ir_version: 10, opset_import: ["" : 20]>
through (float[1,3,4,4] x) => (float[1,3,4,4] y, float[1,48] z)
{
    y = Identity(x)
    z = Flatten(x)
}
"""


def model_of(text: str) -> onnx.ModelProto:
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for weight in list(model.graph.value_info):
        shape = [d.dim_value for d in weight.type.tensor_type.shape.dim]
        values = rng.standard_normal(shape).astype(np.float32) / 10
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, weight.name))
    return onnx.shape_inference.infer_shapes(model)


def check(model: onnx.ModelProto, processors: str) -> PlanSession:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(1)
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    mine = PlanSession(plan_model(ir.from_proto(model), build_processors(processors), tune=False))
    for expected, found in zip(session.run(None, feeds), mine.run(None, feeds), strict=True):
        assert found.dtype == expected.dtype
        assert relative_error(found, expected) < 1e-4
    return mine


def test_a_mixed_network() -> None:
    with check(model_of(MIXED), "cpu") as session:
        calls = [s for s in session.plan.steps if s.kind == "call"]
        assert any("Sinh" in s.op and "Atan" in s.op for s in calls), "neighbours are one call"
        assert {"Conv"} <= {s.op for s in session.plan.steps if s.kind == "kernel"}


@pytest.mark.opencl
def test_a_mixed_network_on_a_device() -> None:
    check(model_of(MIXED), "opencl").close()


def parallel_einsums(count: int) -> onnx.ModelProto:
    """`count` parallel foreign layers, which sum an axis of one operand alone; each feeds a convolution of its own."""
    branches = range(count)
    weights = ", ".join(f"float[8,2] s{i}, float[8,8,1,1] w{i}" for i in branches)
    foreign = "\n".join(f'e{i} = Einsum<equation = "abcd,de->abdc">(x, s{i})' for i in branches)
    convs = "\n".join(f"c{i} = Conv(e{i}, w{i})" for i in branches)
    joined = ", ".join(f"c{i}" for i in branches)
    return model_of(
        f"""<ir_version: 10, opset_import: ["" : 18]> side (float[1,8,8,8] x) => (float[1,{8 * count},8,8] y) <{weights}>
        {{ {foreign} {convs} y = Concat<axis = 1>({joined}) }}"""
    )


@pytest.mark.parametrize("count", [4, 6, 20])
def test_runs_that_make_more_tensors_than_a_step_may_are_cut(count: int) -> None:
    with check(parallel_einsums(count), "cpu") as session:
        calls = [s for s in session.plan.steps if s.kind == "call"]
        assert len(calls) == -(-count // MAX_WRITES)


def test_runs_that_read_more_tensors_than_a_step_may_are_cut() -> None:
    """Twenty convolutions whose outputs feed consecutive foreign layers."""
    count = 20
    weights = ", ".join(f"float[8,8,1,1] w{i}" for i in range(count))
    convs = "\n".join(f"c{i} = Conv(x, w{i})" for i in range(count))
    foreign = "\n".join(
        f'e{i} = Einsum<equation = "abcd,abce->abcd">({f"e{i - 1}" if i else "x"}, c{i})' for i in range(count)
    )
    text = f"""<ir_version: 10, opset_import: ["" : 18]> deep (float[1,8,8,8] x) => (float[1,8,8,8] y) <{weights}>
        {{ {convs} {foreign} y = Identity(e{count - 1}) }}"""
    with check(model_of(text), "cpu") as session:
        calls = [s for s in session.plan.steps if s.kind == "call"]
        assert len(calls) > 1 and all(len(s.reads) <= MAX_READS for s in calls)


def test_a_layer_that_reads_more_than_a_step_may_is_refused() -> None:
    joined = ", ".join(f"c{i}" for i in range(20))
    convs = "\n".join(f"c{i} = Conv(x, w{i})" for i in range(20))
    weights = ", ".join(f"float[8,8,1,1] w{i}" for i in range(20))
    equation = ",".join(["abcd"] * 20) + "->abcd"
    text = f"""<ir_version: 10, opset_import: ["" : 18]> wide (float[1,8,8,8] x) => (float[1,8,8,8] y) <{weights}>
        {{ {convs} y = Einsum<equation = "{equation}">({joined}) }}"""
    with pytest.raises(ModelError, match=r"reads 20 tensors.*split it into several before export"):
        plan_model(ir.from_proto(model_of(text)), build_processors("cpu"), tune=False)


def test_nothing_native_at_all() -> None:
    with check(model_of(ONLY_FALLBACK), "cpu") as session:
        assert session.plan.fallback_layers


def test_outputs_that_are_inputs() -> None:
    check(model_of(STRAIGHT_THROUGH), "cpu").close()


def test_packages_carry_the_fallback(tmp_path: Path) -> None:
    path = tmp_path / "m.nns"
    with check(model_of(ONLY_FALLBACK), "cpu") as session:
        session.save(path)
    with PlanSession.load(path) as session:
        (y,) = session.run(None, {"x": np.zeros((2, 3), np.float32)})
        assert not y.any()
