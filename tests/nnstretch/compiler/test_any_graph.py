"""Graphs of any kind compute what they do in ONNX Runtime: awkward inputs, scalars, empty tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper, parser

from nnstretch.errors import ModelError, NNStretchError
from nnstretch.graph.layers import layers
from nnstretch.graph.reference import run_layer, run_proto
from nnstretch.passes import optimize
from tests.kits.graphs.any_graph import TOLERANCE, assert_equal, expected, random_feeds, run_compiled
from tests.kits.graphs.awkward_graphs import AwkwardGraph
from tests.kits.hypothesis_examples import examples

SCALES, SIZES = np.array([1, 1, 2, 2], np.float32), np.array([1, 2, 8, 8])
TWICE = "float[4] s = {1, 1, 2, 2}"
SCALES_OF_SHAPES = f"""(float[1,2,4,4] x) => (float[1,2,H,W] y) <{TWICE}>
    {{ n = Shape(x) f = Cast<to=1>(n) g = Mul(f, s) q = Div(g, f) y = Resize(x, , q) }}"""
SIZES_OF_SHAPES = """(float[1,2,4,4] x) => (float[1,2,H,W] y) <int64[4] t = {1, 1, 2, 2}>
    { n = Shape(x) z = Mul(n, t) y = Resize<mode="linear">(x, , , z) }"""
SCALES_OF_VALUES = f"""(float[1,2,4,4] x, float[1] a) => (float[1,2,8,8] y) <{TWICE}>
    {{ b = Div(a, a) q = Mul(s, b) y = Resize(x, , q) }}"""
POOLED_CLASSIFIER = """(float[0,2,4,4] x) => (float[0,1] y) <float[1,2,1,1] w = {1, 2}, float[1,1] v = {3}>
    { c = Conv(x, w) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p) y = Gemm(f, v) }"""


def graph(text: str, opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')


def compare(
    folder: Path, proto: onnx.ModelProto, given: Mapping[str, np.ndarray] | None = None, *, tune: bool = False
) -> list[str]:
    """Compares a model's outputs with those of ONNX Runtime; returns the routines that computed them."""
    feeds = random_feeds(proto) | dict(given or {})
    references = expected(proto, feeds)
    assert references is not None
    outputs, routines = run_compiled(folder / "model.onnx", proto, feeds, tune=tune)
    assert_equal(outputs, references)
    return routines


@pytest.mark.parametrize(
    "nodes",
    [
        *("y = Max(low, x)", "y = Min(x, high)", "c = Min(x, high) y = Max(c, low)", "a = Add(x, x) y = Max(a, low)"),
        *("y = Clip(x, low)", "y = Clip(x, , high)", "y = Clip(x, low, high)", "y = Clip(x)"),
        *("c = Max(x, low) y = Clip(c, , high)", "c = Clip(x, , high) y = Max(c, low)"),
    ],
)
def test_bounds_of_infinities(tmp_path: Path, nodes: str) -> None:
    """Max and Min keep those on the other side; Clip has bounds on both, by default the largest numbers."""
    bounds = "float low = {-0.5}, float high = {0.75}"
    proto = graph(f"(float[1,2,3,5] x) => (float[1,2,3,5] y) <{bounds}> {{ {nodes} }}")
    x = np.linspace(-1, 1, 30, dtype=np.float32).reshape(1, 2, 3, 5)
    x[0, :, 1, :2] = np.inf, -np.inf
    outputs, routines = run_compiled(tmp_path / "model.onnx", proto, {"x": x}, tune=False)
    np.testing.assert_array_equal(outputs[0], run_proto(proto, {"x": x})[0])
    assert not any("onnxruntime" in routine for routine in routines)


@pytest.mark.parametrize(
    ("opset", "text", "native"),
    [
        (17, f"(float[1,2,4,4] x) => (float[1,2,8,8] y) <{TWICE}> {{ y = Resize(x, , s) }}", True),
        (17, f"(float[1,2,4,4] x, float[4] s) => (float[1,2,8,8] y) <{TWICE}> {{ y = Resize(x, , s) }}", True),
        (17, "(float[1,2,4,4] x) => (float[1,2,8,8] y) <int64[4] z = {1, 2, 8, 8}> { y = Resize(x, , , z) }", True),
        (18, "(float[1,2,4,4] x) => (float[1,2,8,8] y) <float[2] s = {2, 2}> { y = Resize<axes=[2,3]>(x, , s) }", True),
        (18, "(float[1,2,4,4] x) => (float[1,2,8,8] y) <int64[2] z={8,8}> { y = Resize<axes=[2,3]>(x, , , z) }", True),
        # Computed from shapes, which are constant.
        (17, SCALES_OF_SHAPES, True),
        (17, SIZES_OF_SHAPES, True),
        # An input of the run.
        (17, "(float[1,2,4,4] x, float[4] s) => (float[1,2,8,8] y) { y = Resize(x, , s) }", False),
        (17, "(float[1,2,4,4] x, int64[4] z) => (float[1,2,8,8] y) { y = Resize(x, , , z) }", None),
        (10, "(float[1,2,4,4] x, float[4] s) => (float[1,2,8,8] y) { y = Resize(x, s) }", False),
        (9, "(float[1,2,4,4] x, float[4] s) => (float[1,2,8,8] y) { y = Upsample(x, s) }", False),
        (17, SCALES_OF_VALUES, False),
        # Further forms.
        (17, f"(float[2,1,4,4] x) => (float[2,1,8,8] y) <{TWICE}> {{ r = Relu(x) y = Resize(r, , s) }}", True),
        (17, "(float[2,4,4] x) => (float[2,8,8] y) <float[3] s = {1, 2, 2}> { y = Resize(x, , s) }", False),
    ],
)
def test_resizes(tmp_path: Path, opset: int, text: str, native: bool | None) -> None:
    proto = graph(text, opset)
    names = {value.name for value in proto.graph.input}
    given = {name: array for name, array in (("s", SCALES), ("z", SIZES)) if name in names}
    given = {name: array for name, array in given.items() if not any(t.name == name for t in proto.graph.initializer)}
    routines = compare(tmp_path, proto, given)
    assert native is None or any(routine.endswith("/resize") for routine in routines) == native


@pytest.mark.parametrize(
    "text",
    [
        "(float[4] x, float[4] z) => (float y) { y = MatMul(x, z) }",
        "(float[4] x) => (float y) <float[4] w = {1, 2, 3, 4}> { y = MatMul(x, w) }",
        "(float[3,4] x, float[4] z) => (float[3] y) { y = MatMul(x, z) }",
        "(float[2] x) => (float[2] y) <float[2,2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }",
        "(float[3,2] x) => (float[3] y) <float[2] w = {1, 2}> { y = MatMul(x, w) }",
        "(float x) => (float y) { t = Relu(x) y = Neg(t) }",
        "(float x, float[3] z) => (float[3] y) { y = Add(x, z) }",
        "(float x, float z) => (float y, float p) { y = Sub(x, z) p = Sigmoid(y) }",
        "(float[3,4] x) => (float y) { m = ReduceMean<keepdims=0>(x) y = Sigmoid(m) }",
        "(float[1] x) => (float y) <int64[0] s = {}> { y = Reshape(x, s) }",
        "(float x) => (float y) { t = Transpose(x) y = Identity(t) }",
        "(float x) => (float[1,1] y) <int64[2] a = {0, 1}> { y = Unsqueeze(x, a) }",
    ],
)
def test_scalars_and_vectors(tmp_path: Path, text: str) -> None:
    compare(tmp_path, graph(text))


@pytest.mark.parametrize(
    "text",
    [
        POOLED_CLASSIFIER,
        "(float[0,3] x, float[0,3] z) => (float[0,3] y, float[0,3] n) { y = Add(x, z) n = Neg(x) }",
        "(float[2,0] x, float[0,3] z) => (float[2,3] y) { y = MatMul(x, z) }",
        "(float[1,0,4] x, float[1,2,4] z) => (float[1,2,4] y) { y = Concat<axis=1>(x, z) }",
        "(float[2,0] x) => (float[2] y) <int64[1] a = {1}> { y = ReduceSum<keepdims=0>(x, a) }",
        "(float[2,4] x) => (float[2,4] y) <int64[1] n = {0}> { t = Slice(x, n, n, n) r = Exp(t) y = Concat<axis=0>(r, x) }",
        "(float[4,2] x) => (float[4,2] a, float[0,2] b) <int64[2] n = {4, 0}> { a, b = Split<axis=0>(x, n) }",
        "(int64[0] x) => (int64[0] y, float[0] f) { y = Abs(x) f = Cast<to=1>(x) }",
    ],
)
def test_empty_tensors(tmp_path: Path, text: str) -> None:
    compare(tmp_path, graph(text))


def test_outputs_that_a_node_leaves_out(tmp_path: Path) -> None:
    weights = [numpy_helper.from_array(np.full((1, 8, 2), 0.3, np.float32), name) for name in "wr"]
    shape = (1, 1, 2)
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r"], ["", "", "c"], hidden_size=2)],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("c", 1, shape)],
        weights,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compare(tmp_path, proto)
    feeds = random_feeds(proto)
    (node,) = layers(optimize(ir.from_proto(proto)))
    references = expected(proto, feeds)
    assert references is not None
    assert_equal(run_layer(node.layer, *feeds.values()), references)


@pytest.mark.parametrize(
    "text",
    [
        "(string[2] x, string[2] z) => (bool[2] y) { y = Equal(x, z) }",
        "(float[2] x) => (string[2] y) { y = Cast<to=8>(x) }",
        "(float[4,2] x) => (seq(float[2,2]) y) <int64 n = {2}> { y = SplitToSequence(x, n) }",
        "(float[4] x) => (int64[1,N] y) { y = NonZero(x) }",
        "(float[4,N] x) => (float[4,N] y) { y = Relu(x) }",
    ],
)
def test_what_plans_cannot_hold_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelError, match="; "):
        run_compiled(tmp_path / "model.onnx", graph(text, 20), {})


def test_texts_within_a_part_of_onnx_runtime(tmp_path: Path) -> None:
    compare(
        tmp_path,
        graph("(int64[2] x, int64[2] z) => (bool[2] y) { a = Cast<to=8>(x) b = Cast<to=8>(z) y = Equal(a, b) }", 20),
    )


def test_a_batch_of_nothing(tmp_path: Path) -> None:
    proto = graph("(float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> { t = Gemm(x, w) y = Softmax(t) }")
    outputs, _ = run_compiled(tmp_path / "model.onnx", proto, {"x": np.empty((0, 2), np.float32)}, shapes={"x": (0, 2)})
    assert [y.shape for y in outputs] == [(0, 2)]


def test_tuning_measures_what_can_be_measured(tmp_path: Path) -> None:
    text = """(float[1,2,4,4] x, float[4] s, float[3] a, float[3] b) => (float[1,2,8,8] y, float p, float[0,2] e)
    <int64[1] n = {0}> { y = Resize(x, , s) d = MatMul(a, b) p = Relu(d) m = ReduceMax<axes=[2,3],keepdims=0>(x)
      t = Slice(m, n, n, n) e = Sqrt(t) }"""
    compare(tmp_path, graph(text), {"s": SCALES}, tune=True)


@pytest.mark.parametrize(
    "text",
    [
        # A part that is empty between two units, and no other memory.
        """(float[2,8,1,8] x) => (float[1,4] y, float[2,8,1,1] p) <int64[1] n = {0}>
        { t = Slice(x, n, n, n) p = GlobalMaxPool(x) r = ReduceSum<keepdims=0>(t) q = Shape(t) c = Cast<to=1>(q)
          s = Add(c, r) k = Unsqueeze(s, n) y = Identity(k) }""",
        "(float[1,5,1,5] x) => (float[1,5,1,5] y) { y = Sum(x) }",
        """(float[1] x) => (float[1] y, float[0] p) <int64[2] n = {1, 0}>
        { d = Abs(x) s, t = Split<axis=0>(d, n) y = LeakyRelu(s) p = Neg(t) }""",
    ],
)
def test_parts_that_are_empty(tmp_path: Path, text: str) -> None:
    compare(tmp_path, graph(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(float[2] x) => (float[2] x, float[2] y) { y = Relu(x) }", "output 'x' is an input too"),
        ("(float[1] x) => (float[N] y) <int64[2] p = {-1, -2}> { y = Pad(x, p) }", "has the shape -2"),
    ],
)
def test_odd_graphs_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        run_compiled(tmp_path / "model.onnx", graph(text), {})


@pytest.mark.parametrize("seed", range(examples(120)))
def test_random_graphs(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """The seeds are fixed: what hypothesis draws changes with every change of a source."""
    drawn = AwkwardGraph(Random(seed))
    feeds = random_feeds(drawn.model)
    references = expected(drawn.model, feeds)
    try:
        outputs, _ = run_compiled(tmp_path_factory.getbasetemp() / "random.onnx", drawn.model, feeds)
    except NNStretchError:
        assert references is None
    else:
        if references is not None:
            assert_equal(outputs, references, _ROUNDED if drawn.is_quantized else TOLERANCE)


_ROUNDED = 0.1
"""Largest error of outputs that were rounded to int8 on the way."""
