"""Layers that move elements of other types than float32 run natively, unless only fallback layers are around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from nnstretch.compiler.compile import compile_model, plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.graph.dtypes import element_type
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.hypothesis_examples import examples

TYPES = ("int8", "uint8", "int16", "float16", "int32", "int64", "float64", "bool")
ROUTINES = {"Transpose": "strided", "Slice": "strided", "Concat": "concat"}


def moving_model(dtype: str, shape: tuple[int, ...], order: tuple[int, ...], start: int) -> ModelProto:
    """Transposes, cuts the last axis from `start` on, and puts the halves after the whole."""
    kind = helper.np_dtype_to_tensor_dtype(element_type(dtype).storage)
    moved = tuple(shape[axis] for axis in order)
    bounds = [numpy_helper.from_array(np.array([v]), n) for n, v in (("a", start), ("e", 1 << 30), ("x_", -1))]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=order),
        helper.make_node("Slice", ["t", "a", "e", "x_"], ["s"]),
        helper.make_node("Concat", ["s", "t"], ["y"], axis=len(shape) - 1),
    ]
    result = (*moved[:-1], 2 * moved[-1] - start)
    ends = [helper.make_tensor_value_info(n, kind, s) for n, s in (("x", shape), ("y", result))]
    graph = helper.make_graph(nodes, "moving", ends[:1], ends[1:], bounds)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def random_feed(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)


@given(
    st.sampled_from(TYPES),
    st.lists(st.integers(1, 9), min_size=1, max_size=5).flatmap(
        lambda shape: st.tuples(st.just(tuple(shape)), st.permutations(range(len(shape))), st.integers(0, 8))
    ),
)
@settings(max_examples=examples(40), deadline=None)
def test_they_agree_with_onnx_runtime(dtype: str, case: tuple[tuple[int, ...], list[int], int]) -> None:
    shape, order, cut = case
    start = min(cut, shape[order[-1]] - 1)
    model, feed = moving_model(dtype, shape, tuple(order), start), random_feed(dtype, shape)
    session = compile_model(ir.from_proto(model), build_processors("cpu:0"), tune=False)
    (found,) = session.run(None, {"x": feed})
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": feed})
    assert found.dtype == feed.dtype
    np.testing.assert_array_equal(found, wanted)
    assert not session.plan.fallback_layers
    for step in session.plan.steps:
        if step.op != "Reorder":
            assert step.routine in (f"cpu:{dtype}/{ROUTINES.get(step.op, 'reshape')}", f"cpu:{dtype}/reshape")


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_they_are_tuned(dtype: str) -> None:
    model = moving_model(dtype, (1, 6, 20, 30), (0, 2, 3, 1), 2)
    session = compile_model(ir.from_proto(model), build_processors("cpu:0"))
    assert [step.routine for step in session.plan.steps] == [
        *[f"cpu:{dtype}/strided"] * 2,
        f"cpu:{dtype}/concat",
    ]
    feed = random_feed(dtype, (1, 6, 20, 30))
    moved = feed.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(session.run(None, {"x": feed})[0], np.concatenate([moved[..., 2:], moved], -1))


def test_they_run_from_a_package(tmp_path: Path) -> None:
    model, feed = moving_model("int16", (2, 5, 7), (2, 0, 1), 1), random_feed("int16", (2, 5, 7))
    session = compile_model(ir.from_proto(model), build_processors("cpu:0"), tune=False)
    session.save(tmp_path / "moving.nns")
    with PlanSession.load(tmp_path / "moving.nns") as loaded:
        np.testing.assert_array_equal(loaded.run(None, {"x": feed})[0], session.run(None, {"x": feed})[0])


def test_fallback_layers_keep_what_is_between_them() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32),
        helper.make_node("Transpose", ["i"], ["t"], perm=(1, 0)),
        helper.make_node("Concat", ["t", "t"], ["c"], axis=0),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.INT64),
    ]
    given, wanted = TensorProto.FLOAT, TensorProto.INT64
    ends = [helper.make_tensor_value_info(n, t, s) for n, t, s in (("x", given, (3, 4)), ("y", wanted, (8, 3)))]
    graph = helper.make_graph(nodes, "between", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    plan = plan_model(ir.from_proto(model), build_processors("cpu:0"), tune=False).plan
    assert [step.op for step in plan.steps] == ["Cast+Transpose+Concat+Cast"]
