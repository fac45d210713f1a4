"""Graphs as a whole: what is merged, folded, kept, and left to ONNX Runtime."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from nnstretch.graph.layers import layers
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.graph.reference import run_proto
from nnstretch.passes import optimize
from tests.kits.graphs.fused_graphs import run_layers
from tests.kits.graphs.textual_graphs import BATCH_NORM, CONV, Check, model_of, normal, operators


@pytest.mark.parametrize("placed", [False, True])
def test_equal_nodes_are_merged_unless_a_design_has_placed_them(placed: bool) -> None:
    pools = "p = MaxPool<kernel_shape=[2,2]>(x) q = MaxPool<kernel_shape=[2,2]>(x)"
    model = model_of(
        f"g (float[1,4,6,6] x) => (float[1,8,5,5] y) {{ {pools} r = Relu(p) s = Sigmoid(q) y = Concat<axis=1>(r, s) }}",
        {},
    )
    if placed:
        for node, branch in zip(model.graph, ("0", "1", "0", "1"), strict=False):
            node.metadata_props[PLACEMENT_KEY] = branch
    assert sum(node.layer.op == "MaxPool" for node in layers(optimize(model))) == (2 if placed else 1)


def test_output_in_the_middle_is_kept(check: Check) -> None:
    model = model_of(
        "g (float[1,3,5,5] x) => (float[1,4,3,3] t, float[1,4,3,3] y) { t = Conv(x, w, b) y = Relu(t) }", CONV
    )
    assert operators(check(model)) == ["Conv+none", "Activation+relu"]


def test_nothing_is_left_of_no_ops(check: Check) -> None:
    text = """g (float[2,3,4,4] x) => (float[2,3,4,4] y) {
        a = Identity(x)
        b = Dropout(a)
        c = Cast<to=1>(b)
        d = Transpose<perm=[0,1,2,3]>(c)
        e = Reshape(d, shape)
        f = Concat<axis=1>(e)
        h = Pad(f, none)
        i = Mul(h, one)
        j = Add(i, zero)
        k = MaxPool<kernel_shape=[1,1]>(j)
        l = Relu(k)
        y = Identity(l)
    }"""
    weights = {
        "shape": np.array([2, 3, 4, 4]),
        "none": np.zeros(8, np.int64),
        "one": np.ones(1, np.float32),
        "zero": np.zeros((3, 1, 1), np.float32),
    }
    assert operators(check(model_of(text, weights))) == ["Activation+relu"]


def test_weights_that_are_standardised_in_the_graph_are_constants(check: Check) -> None:
    """As torch exports `F.batch_norm(weight, training=True)`; a Split of constants has several outputs."""
    text = """g (float[1,3,8,8] x) => (float[1,2,6,6] y) {
        normal, mean, variance = BatchNormalization<training_mode=1>(w, gain, zero, m, v)
        low, high = Split<axis=0, num_outputs=2>(normal)
        y = Conv(x, high)
    }"""
    # ONNX Runtime writes the running statistics over those that it reads.
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    weights = {"w": normal(4, 3, 3, 3), "gain": ones, "zero": zeros, "m": zeros, "v": ones}
    assert operators(check(model_of(text, weights))) == ["Conv+none"]


def test_a_class_token_is_expanded_before_the_run(check: Check) -> None:
    text = """g (float[1,4,8] x) => (float[1,5,8] y) {
        ones = ConstantOfShape<value = int64[1] {1}>(three)
        low = Mul(ones, minus)
        whole = Equal(wanted, low)
        shape = Where(whole, ones, wanted)
        tokens = Expand(token, shape)
        z = Concat<axis=1>(tokens, x)
        y = Relu(z)
    }"""
    weights = {
        "three": np.array([3]),
        "minus": np.array(-1),
        "wanted": np.array([1, -1, -1]),
        "token": normal(1, 1, 8),
    }
    nodes = check(model_of(text, weights))
    assert not {node.layer.op for node in nodes} & {f"onnx:{op}" for op in ("ConstantOfShape", "Where", "Expand")}


def test_what_the_table_lacks_stays_onnx(check: Check) -> None:
    volume = model_of("g (float[1,3,9,3,3] x) => (float[1,4,7,1,1] y) { y = Conv(x, w) }", {"w": normal(4, 3, 3, 3, 3)})
    assert operators(check(volume)) == ["onnx:Conv+none"]
    runtime_weight = model_of("g (float[1,3,6,6] x, float[4,3,3,3] w) => (float[1,4,4,4] y) { y = Conv(x, w) }")
    assert operators(check(runtime_weight)) == ["onnx:Conv+none"]
    double = model_of("g (double[2,3] x) => (double[2,3] y) { y = Relu(x) }")
    assert operators(check(double)) == ["onnx:Relu+none"]
    indices = model_of(
        "g (float[1,3,4,4] x) => (float[1,3,2,2] y, int64[1,3,2,2] i) { y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x) }"
    )
    assert operators(check(indices)) == ["onnx:MaxPool+none"]


def test_outputs_that_no_layer_computes(check: Check) -> None:
    model = model_of(
        """g (float[2,3] x) => (float[2,3] y, float[2] z, float[2] c, float[2,3] r, float[2,3] q) {
            y = Identity(x)
            z = Add(c, c)
            r = Relu(x)
            q = Identity(r)
        }""",
        {"c": normal(2)},
    )
    assert Counter(node.layer.op for node in check(model)) == {"Reshape": 2, "onnx:Identity": 2, "Activation": 1}


def test_functions_are_inlined(check: Check) -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "mine": 1]>
    g (float[1,3,6,6] x) => (float[1,4,4,4] y) { t = mine.block(x, w) y = Relu(t) }
    <domain: "mine", opset_import: ["": 20]>
    block (a, b) => (c) { c = Conv(a, b) }"""
    proto = parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(CONV["w"], "w"))
    assert operators(check(ir.from_proto(proto))) == ["Conv+relu"]


def test_control_flow_reads_what_it_captures() -> None:
    text = """g (bool[1] c, float[2,3] x) => (float[2,3] y) {
        t = Relu(x)
        y = If(c) <
            then_branch = yes () => (float[2,3] a) { a = Add(t, t) },
            else_branch = no () => (float[2,3] b) { b = Identity(t) }
        >
    }"""
    model = model_of(text)
    x = normal(2, 3)
    for flag in (True, False):
        feeds = {"c": np.array([flag]), "x": x}
        (wanted,) = run_proto(ir.to_proto(model), feeds)
        (result,) = run_layers(optimize(model), feeds)
        np.testing.assert_array_equal(result, wanted)
    assert layers(optimize(model))[1].inputs == ("c", "t")


def test_a_bias_that_a_branch_adds_stays_there() -> None:
    text = """g (bool[1] c, float[1,4,8] x) => (float[1,4,6] y) {
        t = MatMul(x, w)
        y = If(c) <
            then_branch = yes () => (float[1,4,6] a) { a = Add(t, b) },
            else_branch = no () => (float[1,4,6] d) { e = Constant<value_float=2.0>() d = Expand(e, s) }
        >
    }"""
    model = model_of(text, {"w": normal(8, 6), "b": normal(6), "s": np.array([1, 4, 6])})
    x = normal(1, 4, 8)
    for flag in (True, False):
        feeds = {"c": np.array([flag]), "x": x}
        (wanted,) = run_proto(ir.to_proto(model), feeds)
        (result,) = run_layers(optimize(model), feeds)
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_shared_weights_are_folded_apart(check: Check) -> None:
    text = """g (float[1,3,6,6] x) => (float[1,4,4,4] y, float[1,4,4,4] z) {
        t = Conv(x, w, b)
        y = BatchNormalization(t, gamma, beta, mean, var)
        u = Conv(x, w, b)
        v = Relu(u)
        z = Add(v, y)
    }"""
    check(model_of(text, CONV | BATCH_NORM))


def test_shapes_that_depend_on_values_stay_in_one_call_of_the_fallback(check: Check) -> None:
    """The sum of the positive elements, by their places; two regions with a convolution between them."""
    text = """g (float[1,3,6,6] x) => (float[1,4,4,4] y) {
        zero = Sub(x, x)
        positive = Greater(x, zero)
        places = NonZero(positive)
        turned = Transpose<perm=[1,0]>(places)
        found = GatherND(x, turned)
        sum = ReduceSum<keepdims=0>(found)
        larger = Mul(x, sum)
        t = Conv(larger, w, b)
        low = Compress(t, first)
        s = ReduceMean<keepdims=0>(low)
        u = Sub(t, s)
        y = Relu(u)
    }"""
    nodes = check(model_of(text, CONV | {"first": np.array([True, False, True])}))
    assert [node.layer.op for node in nodes if node.layer.op != "onnx:Greater"] == [
        "Sub",
        "onnx:If",
        "Mul",
        "Conv",
        "onnx:If",
        "Sub",
    ]


def test_bodies_may_read_shapes_that_depend_on_values(check: Check) -> None:
    text = """g (float[1,3,6,6] x) => (float[1,3,6,6] y) {
        zero = Sub(x, x)
        positive = Greater(x, zero)
        places = NonZero(positive)
        some = Size(places)
        enough = Greater(some, few)
        s = If(enough) <
            then_branch = many () => (float l) { t = Cast<to=1>(places) l = ReduceMean<keepdims=0>(t) },
            else_branch = none () => (float e) { e = Constant<value = float {1.0}>() }
        >
        y = Mul(x, s)
    }"""
    nodes = check(model_of(text, {"few": np.array(3)}))
    assert [node.layer.op for node in nodes if node.layer.op != "onnx:Greater"] == ["Sub", "onnx:If"]


def test_a_pool_over_lines_whose_means_no_pads_say_keeps_to_its_operator_set(check: Check) -> None:
    """torch's AvgPool1d in ceil mode; before operator set 19, AveragePool has no dilations."""
    text = """g (float[1,4,8] x) => (float[1,4,5] y) {
        y = AveragePool<kernel_shape=[3], strides=[2], pads=[1,1], ceil_mode=1, count_include_pad=1>(x)
    }"""
    check(model_of(text, opset=17))


@pytest.mark.parametrize(
    "function", ["Exp(r)", "Sigmoid(r)", "Relu(r)", "Clip(r, low, high)", "PRelu(r, slope)", "Max(r, low)"]
)
def test_activations_of_a_number_that_is_stored_in_int8(check: Check, function: str) -> None:
    text = f"""g (float[1,4,8] x) => (float[1,4,8] y) {{
        r = DequantizeLinear(q, scale)
        e = {function}
        y = Mul(x, e)
    }}"""
    numbers = {"scale": 0.5, "low": -1.0, "high": 2.5, "slope": 0.25}
    weights = {name: np.array(number, np.float32) for name, number in numbers.items()}
    check(model_of(text, weights | {"q": np.array(-7, np.int8)}))


def test_a_hard_swish_with_a_factor_of_more_axes(check: Check) -> None:
    text = """g (float[1,64] x) => (float[1,1,1,64] y) {
        t = Add(x, three)
        c = Clip(t, zero, six)
        y = Mul(c, sixth)
    }"""
    numbers = {"three": 3.0, "zero": 0.0, "six": 6.0}
    weights = {name: np.array(number, np.float32) for name, number in numbers.items()}
    check(model_of(text, weights | {"sixth": np.full((1, 1, 1, 1), 1 / 6, np.float32)}))
