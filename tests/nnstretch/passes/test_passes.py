"""Each pass, on small graphs: what the layers are, and that they compute what ONNX Runtime does from the original."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.layers import GraphNode, layers
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.graph.reference import run_proto
from nnstretch.passes import optimize
from tests.kits.fused_graphs import run_layers

Check = Callable[..., list[GraphNode]]


def model_of(text: str, weights: Mapping[str, np.ndarray] | None = None, opset: int = 20) -> ir.Model:
    """A model from ONNX's textual syntax of a graph, with these initializers."""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')
    for name, array in (weights or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def operators(nodes: Sequence[GraphNode]) -> list[str]:
    return [f"{node.layer.op}+{node.layer.activation}" for node in nodes]


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CONV = {"w": normal(4, 3, 3, 3), "b": normal(4)}


@pytest.mark.parametrize(
    ("nodes", "activation"),
    [
        ("y = Relu(t)", Activation(ActivationKind.RELU)),
        ("y = Clip(t, low, high)", Activation(ActivationKind.CLIP, -0.5, 0.75)),
        ("y = Clip(t, zero)", Activation(ActivationKind.RELU)),
        ("u = Max(t, zero) y = Min(u, six)", Activation(ActivationKind.CLIP, 0.0, 6.0)),
        ("u = Min(six, t) y = Relu(u)", Activation(ActivationKind.CLIP, 0.0, 6.0)),
        ("y = Sigmoid(t)", Activation(ActivationKind.SIGMOID)),
        ("y = Tanh(t)", Activation(ActivationKind.TANH)),
        ("y = Exp(t)", Activation(ActivationKind.EXP)),
        ("u = Sigmoid(t) y = Mul(t, u)", Activation(ActivationKind.SILU)),
        ("u = Sigmoid(t) y = Mul(u, t)", Activation(ActivationKind.SILU)),
        ("y = HardSwish(t)", Activation(ActivationKind.HARD_SWISH)),
        ("y = HardSigmoid<alpha=0.2,beta=0.4>(t)", Activation(ActivationKind.HARD_SIGMOID, 0.2, 0.4)),
        ("u = HardSigmoid<alpha=0.16666667,beta=0.5>(t) y = Mul(u, t)", Activation(ActivationKind.HARD_SWISH)),
        (
            "u = Add(t, three) v = Clip(u, zero, six) q = Div(v, six) y = Mul(t, q)",
            Activation(ActivationKind.HARD_SWISH),
        ),
        (
            "u = Add(three, t) v = Clip(u, zero, six) q = Mul(v, t) y = Div(q, six)",
            Activation(ActivationKind.HARD_SWISH),
        ),
        (
            "u = Add(t, three) v = Clip(u, zero, six) q = Mul(t, v) y = Mul(sixth, q)",
            Activation(ActivationKind.HARD_SWISH),
        ),
        (
            "u = Add(t, three) v = Clip(u, zero, six) y = Div(v, six)",
            Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 0.5),
        ),
        ("y = LeakyRelu<alpha=0.3>(t)", Activation(ActivationKind.LEAKY_RELU, 0.3)),
        ("y = PRelu(t, sixth)", Activation(ActivationKind.LEAKY_RELU, 1 / 6)),
    ],
)
def test_activation_is_fused_into_convolution(check: Check, nodes: str, activation: Activation) -> None:
    constants = {"zero": 0.0, "three": 3.0, "six": 6.0, "sixth": 1 / 6, "low": -0.5, "high": 0.75}
    weights = {name: np.array(value, np.float32) for name, value in constants.items()} | CONV
    model = model_of(
        f"g (float[2,3,6,5] x) => (float[2,4,6,5] y) {{ t = Conv<pads=[1,1,1,1]>(x, w, b) {nodes} }}", weights
    )
    (node,) = check(model)
    assert node.layer.op == "Conv"
    assert node.layer.activation.kind is activation.kind
    assert math.isclose(node.layer.activation.a, activation.a, rel_tol=1e-6)
    assert math.isclose(node.layer.activation.b, activation.b, rel_tol=1e-6)


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


def test_a_slice_that_reverses_is_kept(check: Check) -> None:
    weights = {name: np.array([value]) for name, value in (("begin", -1), ("end", -6), ("axis", 3), ("step", -1))}
    check(
        model_of(
            "g (float[2,4,6,5] x) => (float[2,4,6,5] y) { s = Slice(x, begin, end, axis, step) y = Relu(s) }", weights
        )
    )


def test_a_difference_keeps_its_order(check: Check) -> None:
    check(model_of("g (float[2,4,1,1] s, float[2,4,6,5] x) => (float[2,4,6,5] y) { y = Sub(s, x) }", {}))


def test_a_gate_with_another_shift_is_no_hard_swish(check: Check) -> None:
    weights = {name: np.array(value, np.float32) for name, value in (("zero", 0.0), ("two", 2.0), ("six", 6.0))}
    lines = "u = Add(x, two) v = Clip(u, zero, six) q = Div(v, six) y = Mul(x, q)"
    nodes = check(model_of(f"g (float[2,4,6,5] x) => (float[2,4,6,5] y) {{ {lines} }}", weights))
    assert not any("hard" in name for name in operators(nodes))


SQUEEZE = {
    "w": normal(8, 8, 1, 1),
    "w1": normal(2, 8, 1, 1),
    "b1": normal(2),
    "w2": normal(8, 2, 1, 1),
    "b2": normal(8),
    "m1": normal(2, 8),
    "m2": normal(8, 2),
    "three": np.array(3, np.float32),
    "zero": np.array(0, np.float32),
    "six": np.array(6, np.float32),
    "axes": np.array([2, 3]),
    "back": np.array([1, 8, 1, 1]),
}
_CONVOLUTIONS = "q = Conv(p, w1, b1) r = Relu(q) s = Conv(r, w2, b2)"


@pytest.mark.parametrize(
    "pool",
    [
        "p = GlobalAveragePool(t)",
        "p = ReduceMean<keepdims=1>(t, axes)",
        "p = AveragePool<kernel_shape=[6,5]>(t)",
    ],
)
@pytest.mark.parametrize(
    ("gate", "activation"),
    [
        ("g = Sigmoid(s)", "sigmoid"),
        ("g = HardSigmoid<alpha=0.16666667, beta=0.5>(s)", "hard_sigmoid(0.166667,0.5)"),
        ("u = Add(s, three) v = Clip(u, zero, six) g = Div(v, six)", "hard_sigmoid(0.166667,0.5)"),
    ],
)
@pytest.mark.parametrize("product", ["y = Mul(t, g)", "y = Mul(g, t)"])
def test_squeeze_and_excitation_is_four_layers(
    check: Check, pool: str, gate: str, activation: str, product: str
) -> None:
    text = f"""g (float[1,8,6,5] x) => (float[1,8,6,5] y) {{
        c = Conv(x, w) k = Sigmoid(c) t = Mul(c, k) {pool} {_CONVOLUTIONS} {gate} {product}
    }}"""
    wanted = ["Conv+silu", "GlobalPool+none", "Conv+relu", f"Conv+{activation}", "Mul+none"]
    assert operators(check(model_of(text, SQUEEZE))) == wanted


def test_squeeze_and_excitation_with_dense_layers(check: Check) -> None:
    text = """g (float[1,8,6,5] x) => (float[1,8,6,5] y) {
        p = ReduceMean<keepdims=0>(x, axes)
        q = Gemm<transB=1>(p, m1, b1) r = Relu(q) s = Gemm<transB=1>(r, m2, b2) g = Sigmoid(s)
        e = Reshape(g, back) z = Mul(x, e) y = Relu(z)
    }"""
    wanted = ["GlobalPool+none", "Reshape+none", "Dense+relu", "Dense+sigmoid", "Reshape+none", "Mul+relu"]
    assert operators(check(model_of(text, SQUEEZE))) == wanted


def test_gate_of_another_tensor_stays_a_product(check: Check) -> None:
    model = model_of("g (float[1,2,3,3] x, float[1,2,3,3] z) => (float[1,2,3,3] y) { u = Sigmoid(z) y = Mul(x, u) }")
    assert operators(check(model)) == ["Activation+sigmoid", "Mul+none"]


def test_activation_of_what_others_read_stays_alone(check: Check) -> None:
    model = model_of(
        "g (float[1,3,5,5] x) => (float[1,4,3,3] y, float[1,4,3,3] z) { t = Conv(x, w, b) y = Relu(t) z = Tanh(t) }",
        CONV,
    )
    assert operators(check(model)) == ["Conv+none", "Activation+relu", "Activation+tanh"]


def test_output_in_the_middle_is_kept(check: Check) -> None:
    model = model_of(
        "g (float[1,3,5,5] x) => (float[1,4,3,3] t, float[1,4,3,3] y) { t = Conv(x, w, b) y = Relu(t) }", CONV
    )
    assert operators(check(model)) == ["Conv+none", "Activation+relu"]


BATCH_NORM = {
    "gamma": normal(4, seed=2),
    "beta": normal(4, seed=3),
    "mean": normal(4, seed=4),
    "var": normal(4, seed=5) ** 2,
}


def test_batch_normalisation_and_residual_are_fused_into_convolution(check: Check) -> None:
    text = """g (float[1,3,6,6] x, float[1,4,6,6] z) => (float[1,4,6,6] y) {
        t = Conv<pads=[1,1,1,1]>(x, w, b)
        u = BatchNormalization(t, gamma, beta, mean, var)
        s = Add(z, u)
        y = Relu(s)
    }"""
    (node,) = check(model_of(text, CONV | BATCH_NORM))
    assert (node.layer.op, str(node.layer.activation), node.inputs[3]) == ("Conv", "relu", "z")


def test_of_two_convolutions_the_later_takes_the_sum(check: Check) -> None:
    text = """g (float[1,3,6,6] x, float[1,3,6,6] z) => (float[1,4,4,4] y) {
        t = Conv(x, w, b)
        u = Conv(z, v)
        s = Add(u, t)
        y = Relu(s)
    }"""
    nodes = check(model_of(text, CONV | {"v": normal(4, 3, 3, 3, seed=6)}))
    assert operators(nodes) == ["Conv+none", "Conv+relu"]
    assert nodes[1].inputs[3] == nodes[0].outputs[0]
    assert nodes[1].inputs[1] == "v"


def test_convolution_waits_for_its_residual(check: Check) -> None:
    text = """g (float[1,3,6,6] x, float[1,4,4,4] z) => (float[1,4,4,4] y) {
        t = Conv(x, w, b)
        u = Tanh(z)
        y = Add(t, u)
    }"""
    assert operators(check(model_of(text, CONV))) == ["Activation+tanh", "Conv+none"]


def test_sum_of_a_convolution_with_itself_or_a_smaller_tensor_stays(check: Check) -> None:
    twice = "g (float[1,3,6,6] x) => (float[1,4,4,4] y) { t = Conv(x, w, b) y = Add(t, t) }"
    assert operators(check(model_of(twice, CONV))) == ["Conv+none", "Add+none"]
    smaller = "g (float[1,3,6,6] x, float[1,4,1,1] z) => (float[1,4,4,4] y) { t = Conv(x, w, b) y = Add(z, t) }"
    assert operators(check(model_of(smaller, CONV))) == ["Conv+none", "Add+none"]


def test_sum_after_activation_is_a_layer_of_its_own(check: Check) -> None:
    text = """g (float[1,3,6,6] x, float[1,4,4,4] z) => (float[1,4,4,4] y) {
        t = Conv(x, w, b)
        u = Relu(t)
        s = Add(u, z)
        y = Relu(s)
    }"""
    assert operators(check(model_of(text, CONV))) == ["Conv+relu", "Add+relu"]


def test_batch_normalisation_without_convolution_is_affine(check: Check) -> None:
    text = """g (float[2,4,3,3] x) => (float[2,4,3,3] y) {
        t = BatchNormalization<epsilon=0.01>(x, gamma, beta, mean, var)
        y = Relu(t)
    }"""
    assert operators(check(model_of(text, BATCH_NORM))) == ["Affine+relu"]


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (2, 4, 2, 3, 2)])
def test_batch_normalisation_of_other_ranks_is_reshaped(check: Check, shape: tuple[int, ...]) -> None:
    kind = f"float[{','.join(map(str, shape))}]"
    text = f"g ({kind} x) => ({kind} y) {{ y = BatchNormalization(x, gamma, beta, mean, var) }}"
    assert operators(check(model_of(text, BATCH_NORM))) == ["Reshape+none", "Affine+none", "Reshape+none"]


@pytest.mark.parametrize(("pads", "layers_left"), [("[0,0,0,0]", 1), ("[1,1,1,1]", 2)])
def test_affine_goes_forward_into_unpadded_grouped_convolution(check: Check, pads: str, layers_left: int) -> None:
    text = f"""g (float[1,4,5,5] x) => (float[1,6,k,k] y) {{
        t = BatchNormalization(x, gamma, beta, mean, var)
        y = Conv<group=2, pads={pads}>(t, w)
    }}""".replace("k", "3" if layers_left == 1 else "5")
    assert len(check(model_of(text, BATCH_NORM | {"w": normal(6, 2, 3, 3)}))) == layers_left


@pytest.mark.parametrize(
    ("operation", "operand"),
    [
        ("Add(t, c)", normal(4, 1, 1)),
        ("Mul(c, t)", normal(1, 4, 1, 1)),
        ("Sub(c, t)", normal(1)),
        ("Sub(t, c)", normal(4, 1, 1)),
        ("Div(t, c)", np.array(3.0, np.float32)),
    ],
)
def test_arithmetic_with_channel_constants_is_folded(check: Check, operation: str, operand: np.ndarray) -> None:
    model = model_of(
        f"g (float[1,3,6,6] x) => (float[1,4,4,4] y) {{ t = Conv(x, w, b) y = {operation} }}", CONV | {"c": operand}
    )
    assert operators(check(model)) == ["Conv+none"]


@pytest.mark.parametrize(
    ("operation", "operand", "expected"),
    [
        ("Add(x, c)", normal(1, 4, 5, 5), "Add"),
        ("Mul(c, x)", normal(5), "Mul"),
        ("Div(x, c)", normal(5, 5), "Mul"),
        ("Add(x, c)", normal(4, 1, 1), "Affine"),
        ("Div(c, x)", normal(1), "onnx:Div"),
        ("Sub(c, x)", normal(5), "Mul Add"),
        ("Max(x, c)", normal(4, 5, 5), "Max"),
        ("Min(c, x)", normal(5), "Min"),
    ],
)
def test_arithmetic_with_constants_alone(check: Check, operation: str, operand: np.ndarray, expected: str) -> None:
    model = model_of(f"g (float[1,4,5,5] x) => (float[1,4,5,5] y) {{ y = {operation} }}", {"c": operand})
    assert operators(check(model)) == [f"{op}+none" for op in expected.split()]


@pytest.mark.parametrize(
    ("operation", "other", "expected"),
    [
        ("Div(x, z)", "2,3,4,5", "Div"),
        ("Max(z, x)", "2,3,1,1", "Max"),
        ("Max(x, z, x)", "2,3,4,5", "Max Max"),
        ("Mul(x, z)", "2,1,4,5", "Expand Mul"),
        ("Sub(z, x)", "4,1", "Expand Sub"),
        ("Div(x, z)", "2,3,4,1", "Reshape Reshape Div Reshape"),
        ("Min(z, x)", "2,1,1,1", "Reshape Reshape Min Reshape"),
        ("Add(z, p)", "1,1,4,5", "GlobalPool Expand Expand Add"),
    ],
)
def test_arithmetic_of_tensors_that_broadcast(check: Check, operation: str, other: str, expected: str) -> None:
    pool = "p = GlobalMaxPool(x)" if "p" in operation else ""
    text = f"g (float[2,3,4,5] x, float[{other}] z) => (float[2,3,4,5] y) {{ {pool} y = {operation} }}"
    assert operators(check(model_of(text))) == [f"{op}+none" for op in expected.split()]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("y = Pow(x, two)", ["Mul+none"]),
        ("y = Pow(x, three)", ["Mul+none", "Mul+none"]),
        ("y = Pow(x, half)", ["onnx:Pow+none"]),
        ("y = Neg(x)", ["Mul+none"]),
        ("y = Abs(x)", ["Activation+leaky_relu(-1)"]),
    ],
)
def test_functions_that_are_arithmetic(check: Check, nodes: str, expected: list[str]) -> None:
    weights: dict[str, np.ndarray] = {
        "two": np.array(2, np.float32),
        "three": np.array([3], np.int64),
        "half": np.array(1.5, np.float32),
    }
    assert operators(check(model_of(f"g (float[2,3,5] x) => (float[2,3,5] y) {{ {nodes} }}", weights))) == expected


def test_squeeze_and_excite_keeps_the_large_operand_first(check: Check) -> None:
    text = "g (float[2,4,5,5] x) => (float[2,4,5,5] y) { p = GlobalAveragePool(x) s = Sigmoid(p) y = Mul(s, x) }"
    nodes = check(model_of(text))
    assert operators(nodes) == ["GlobalPool+none", "Activation+sigmoid", "Mul+none"]
    assert [kind and kind.shape for kind in nodes[2].layer.inputs] == [(2, 4, 5, 5), (2, 4, 1, 1)]


def test_dense_with_folded_factors(check: Check) -> None:
    text = """g (float[3,5] x, float[3,7] z) => (float[3,7] y) {
        t = Gemm<alpha=0.5, beta=2.0, transB=0>(x, w, c)
        u = BatchNormalization(t, gamma, beta, mean, var)
        s = Add(u, z)
        y = Relu(s)
    }"""
    norm = {"gamma": normal(7), "beta": normal(7, seed=2), "mean": normal(7, seed=3), "var": normal(7, seed=4) ** 2}
    nodes = check(model_of(text, {"w": normal(5, 7), "c": normal(1, 7)} | norm))
    assert operators(nodes) == ["Dense+relu"]
    assert nodes[0].layer.type_of(1).shape == (7, 5)


def test_matmul_and_bias_is_dense(check: Check) -> None:
    weights = {"w": normal(5, 7), "c": normal(7)}
    assert operators(
        check(model_of("g (float[3,5] x) => (float[3,7] y) { t = MatMul(x, w) y = Add(c, t) }", weights))
    ) == ["Dense+none"]
    flattened = model_of("g (float[2,3,5] x) => (float[2,3,7] y) { y = MatMul(x, w) }", weights)
    assert operators(check(flattened)) == ["Reshape+none", "Dense+none", "Reshape+none"]


def test_products_that_are_no_dense_layers(check: Check) -> None:
    transposed = model_of("g (float[5,3] x) => (float[3,7] y) { y = Gemm<transA=1>(x, w) }", {"w": normal(5, 7)})
    assert operators(check(transposed)) == ["onnx:Gemm+none"]
    product = model_of("g (float[3,5] x, float[5,2] z) => (float[3,2] y) { y = MatMul(x, z) }")
    assert operators(check(product)) == ["MatMul+none"]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[2, 3], [-1, -2]])
def test_mean_over_the_image_is_a_global_pool(check: Check, keep: int, axes: list[int]) -> None:
    result = "[2,4,1,1]" if keep else "[2,4]"
    model = model_of(
        f"g (float[2,4,5,3] x) => (float{result} y) {{ y = ReduceMean<keepdims={keep}>(x, a) }}", {"a": np.array(axes)}
    )
    assert [node.layer.op for node in check(model)] == ["GlobalPool"] + ["Reshape"] * (1 - keep)


def test_pool_over_the_whole_image_is_a_global_pool(check: Check) -> None:
    model = model_of("g (float[2,4,5,3] x) => (float[2,4,1,1] y) { y = MaxPool<kernel_shape=[5,3]>(x) }")
    (node,) = check(model)
    assert (node.layer.op, node.layer.attributes["mode"]) == ("GlobalPool", "max")


def test_pads_go_into_windows(check: Check) -> None:
    pads = {"p": np.array([0, 0, 1, 2, 0, 0, 0, 1]), "lowest": np.array(-np.inf, np.float32)}
    conv = model_of("g (float[1,3,6,6] x) => (float[1,4,5,7] y) { t = Pad(x, p) y = Conv(t, w, b) }", pads | CONV)
    (node,) = check(conv)
    assert node.layer.ints("pads") == (1, 2, 0, 1)
    mean = model_of(
        "g (float[1,3,6,6] x) => (float[1,3,5,7] y) { t = Pad(x, p) y = AveragePool<kernel_shape=[3,3]>(t) }", pads
    )
    (node,) = check(mean)
    assert (node.layer.ints("pads"), node.layer.attributes["count_include_pad"]) == ((1, 2, 0, 1), 1)
    largest = "g (float[1,3,6,6] x) => (float[1,3,5,7] y) { t = Pad(x, p%s) y = MaxPool<kernel_shape=[3,3]>(t) }"
    assert operators(check(model_of(largest % ", lowest", pads))) == ["MaxPool+none"]
    # Zeros are larger than what else there is, unless an activation says that there is nothing below zero.
    assert operators(check(model_of(largest % "", pads))) == ["Pad+none", "MaxPool+none"]
    positive = largest.replace("t = Pad(x,", "r = Relu(x) t = Pad(r,") % ""
    assert operators(check(model_of(positive, pads))) == ["Activation+relu", "MaxPool+none"]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_pads_are_resolved(check: Check, auto_pad: str) -> None:
    size = 2 if auto_pad == "VALID" else 3
    text = f"""g (float[1,3,6,6] x) => (float[1,4,{size},{size}] y) {{
        y = Conv<auto_pad="{auto_pad}", strides=[2,2]>(x, w, b)
    }}"""
    assert operators(check(model_of(text, CONV))) == ["Conv+none"]


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", [5, 6, 7, 8])
@pytest.mark.parametrize("pad", [0, 1])
def test_ceil_mode_is_resolved(check: Check, operator: str, size: int, pad: int) -> None:
    result = math.ceil((size + 2 * pad - 3) / 2) + 1
    if (result - 1) * 2 >= size + pad:
        result -= 1
    text = f"""g (float[1,3,{size},{size}] x) => (float[1,3,{result},{result}] y) {{
        y = {operator}<kernel_shape=[3,3], strides=[2,2], pads=[{pad},{pad},{pad},{pad}], ceil_mode=1>(x)
    }}"""
    assert operators(check(model_of(text))) == [f"{operator}+none"]


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


def test_shape_arithmetic_becomes_one_reshape(check: Check) -> None:
    text = """g (float[2,3,4,4] x) => (float[2,48] y) {
        s = Shape(x)
        n = Gather<axis=0>(s, first)
        u = Unsqueeze(n, axis)
        t = Concat<axis=0>(u, rest)
        q = Reshape(x, t)
        r = Unsqueeze(q, axis)
        y = Squeeze(r, axis)
    }"""
    weights = {"first": np.array(0), "axis": np.array([0]), "rest": np.array([-1])}
    assert operators(check(model_of(text, weights))) == ["Reshape+none"]


def test_pads_that_torch_writes_for_a_stem_are_the_convolution_s(check: Check) -> None:
    """Pads of the last axes first, which become ONNX's order by a ConstantOfShape, Reshape, Slice and Transpose."""
    text = """g (float[1,3,8,8] x) => (float[1,4,4,4] y) {
        rest = ConstantOfShape<value = int64[1] {0}>(four)
        all = Concat<axis=0>(pads, rest)
        rows = Reshape(all, pairs)
        back = Slice(rows, last, first, axis, last)
        columns = Transpose<perm=[1,0]>(back)
        flat = Reshape(columns, last)
        p = Pad(x, flat, zero)
        s = Shape(p)
        y = Conv<strides=[2,2]>(p, w, b)
    }"""
    weights = {
        "four": np.array([4]),
        "pads": np.array([0, 1, 0, 1]),
        "pairs": np.array([-1, 2]),
        "last": np.array([-1]),
        "first": np.array([-(2**63) + 1]),
        "axis": np.array([0]),
        "zero": np.zeros((), np.float32),
    }
    (node,) = check(model_of(text, weights | CONV))
    assert (node.layer.op, node.layer.ints("pads")) == ("Conv", (0, 0, 1, 1))


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


def test_transposition_of_single_elements_is_a_reshape(check: Check) -> None:
    model = model_of("g (float[2,1,4,1] x) => (float[1,2,1,4] y) { y = Transpose<perm=[3,0,1,2]>(x) }")
    assert operators(check(model)) == ["Reshape+none"]
    model = model_of("g (float[2,1,4,1] x) => (float[4,1,2,1] y) { y = Transpose<perm=[2,1,0,3]>(x) }")
    assert operators(check(model)) == ["Transpose+none"]


def test_transpositions_move_axes(check: Check) -> None:
    model = model_of("g (float[2,3,4,5] x) => (float[2,4,5,3] y) { y = Transpose<perm=[0,2,3,1]>(x) }")
    (node,) = check(model)
    assert (node.layer.op, node.layer.ints("perm")) == ("Transpose", (0, 2, 3, 1))
    (node,) = check(model_of("g (float[2,3,4] x) => (float[4,3,2] y) { y = Transpose(x) }"))
    assert node.layer.ints("perm") == (2, 1, 0)


@pytest.mark.parametrize(
    ("bounds", "result", "starts", "steps"),
    [
        (((1,), (3,), (1,)), (2, 2, 8), (0, 1, 0), (1, 1, 1)),
        (((-2, 1), (2**62, -1), (1, -1)), (2, 2, 6), (0, 3, 1), (1, 1, 1)),
        (((1, 0), (8, 5), (2, 1), (3, 2)), (2, 3, 3), (0, 0, 1), (1, 2, 3)),
    ],
)
def test_slice(
    check: Check,
    bounds: tuple[tuple[int, ...], ...],
    result: tuple[int, ...],
    starts: tuple[int, ...],
    steps: tuple[int, ...],
) -> None:
    weights = {f"b{index}": np.array(values) for index, values in enumerate(bounds)}
    shape = ",".join(map(str, result))
    (node,) = check(
        model_of(f"g (float[2,5,8] x) => (float[{shape}] y) {{ y = Slice(x, {', '.join(weights)}) }}", weights)
    )
    assert (node.layer.op, node.layer.ints("starts"), node.layer.ints("steps")) == ("Slice", starts, steps)


def test_slice_of_opset_9_and_slices_that_go_backwards(check: Check) -> None:
    old = model_of("g (float[2,5] x) => (float[2,3] y) { y = Slice<starts=[2], ends=[9], axes=[1]>(x) }", opset=9)
    (node,) = check(old)
    assert (node.layer.op, node.layer.ints("starts")) == ("Slice", (0, 2))
    backwards = {"s": np.array([-1]), "e": np.array([-9]), "a": np.array([1]), "t": np.array([-1])}
    model = model_of("g (float[2,5] x) => (float[2,5] y) { y = Slice(x, s, e, a, t) }", backwards)
    assert operators(check(model)) == ["onnx:Slice+none"]


def test_split_is_a_slice_for_every_part_that_is_used(check: Check) -> None:
    text = """g (float[2,6,4] x) => (float[2,1,4] a, float[2,2,4] y) {
        a, b, c = Split<axis=-2>(x, sizes)
        y = Relu(c)
    }"""
    nodes = check(model_of(text, {"sizes": np.array([1, 3, 2])}))
    assert operators(nodes) == ["Slice+none", "Slice+none", "Activation+relu"]
    assert [node.layer.ints("starts") for node in nodes[:2]] == [(0, 0, 0), (0, 4, 0)]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("scales", [(2.0, 3.0), (1.3, 0.6)])
def test_resize(check: Check, mode: str, coordinates: str, nearest: str, scales: tuple[float, float]) -> None:
    height, width = (math.floor(7 * scale) for scale in scales)
    text = f"""g (float[1,2,7,7] x) => (float[1,2,{height},{width}] y) {{
        y = Resize<mode="{mode}", coordinate_transformation_mode="{coordinates}", nearest_mode="{nearest}">(x, , s)
    }}"""
    model = model_of(text, {"s": np.array([1.0, 1.0, *scales], np.float32)})
    assert operators(check(model)) == ["Resize+none"]


@pytest.mark.parametrize(
    ("nodes", "shape", "weights", "expected"),
    [
        ("y = Gather<axis=-1>(x, i)", "2,3,4", {"i": np.array(-1)}, ["Slice", "Reshape"]),
        ("y = Gather<axis=1>(x, i)", "2,2,4,5", {"i": np.array([0, 2])}, ["Slice"]),
        ("y = Gather<axis=1>(x, i)", "2,2,4,5", {"i": np.array([2, 0])}, ["onnx:Gather"]),
        ("y = Concat<axis=2>(c, x, c)", "2,3,8,5", {"c": normal(2, 3, 2, 5)}, ["Concat"]),
        ("y = Expand(x, s)", "4,2,3,4,5", {"s": np.array([4, 1, 1, 1, 1])}, ["Expand"]),
        ("y = Tile(x, s)", "4,3,8,15", {"s": np.array([2, 1, 2, 3])}, ["Reshape", "Expand", "Reshape"]),
        (
            "p = GlobalMaxPool(x) t = Expand(p, s) y = Mul(t, x)",
            "2,3,4,5",
            {"s": np.array([2, 3, 4, 5])},
            ["GlobalPool", "Mul"],
        ),
        (
            "t = Conv(x, w) y = SpaceToDepth<blocksize=2>(t)",
            "2,16,2,2",
            {"w": normal(4, 3, 1, 2)},
            ["Conv", "SpaceToDepth"],
        ),
    ],
)
def test_elements_are_moved(
    check: Check, nodes: str, shape: str, weights: Mapping[str, np.ndarray], expected: list[str]
) -> None:
    found = check(model_of(f"g (float[2,3,4,5] x) => (float[{shape}] y) {{ {nodes} }}", weights))
    assert [node.layer.op for node in found] == expected


@pytest.mark.parametrize("mode", ["CRD", "DCR"])
def test_a_convolution_makes_channels_in_the_order_of_whole_blocks(check: Check, mode: str) -> None:
    text = f"""g (float[1,3,4,4] x) => (float[1,2,8,8] y) {{
        t = Conv(x, w, b)
        u = Relu(t)
        y = DepthToSpace<blocksize=2, mode="{mode}">(u)
    }}"""
    first, second = check(model_of(text, {"w": normal(8, 3, 1, 1), "b": normal(8)}))
    assert (first.layer.op, second.layer.op, second.layer.attributes["mode"]) == ("Conv", "DepthToSpace", "DCR")


@pytest.mark.parametrize("attributes", ["group=3, pads=[2,1], strides=[2]", 'auto_pad="SAME_UPPER", group=3'])
def test_a_convolution_of_one_axis_is_one_of_two(check: Check, attributes: str) -> None:
    length = 5 if "strides" in attributes else 9
    text = f"g (float[2,3,9] x) => (float[2,6,{length}] y) {{ y = Conv<{attributes}>(x, w, b) }}"
    nodes = check(model_of(text, {"w": normal(6, 1, 4 if "strides" in attributes else 3), "b": normal(6)}))
    assert [node.layer.op for node in nodes] == ["Reshape", "Conv", "Reshape"]


@pytest.mark.parametrize(
    ("operator", "length", "expected"),
    [
        ("MaxPool<kernel_shape=[3], strides=[2], pads=[1,1]>", 5, "MaxPool"),
        ("AveragePool<kernel_shape=[2], strides=[2], ceil_mode=1>", 5, "AveragePool"),
        ("AveragePool<kernel_shape=[9]>", 1, "GlobalPool"),
    ],
)
def test_a_pool_of_one_axis_is_one_of_two(check: Check, operator: str, length: int, expected: str) -> None:
    nodes = check(model_of(f"g (float[2,6,9] x) => (float[2,6,{length}] y) {{ y = {operator}(x) }}"))
    assert [node.layer.op for node in nodes] == ["Reshape", expected, "Reshape"]


def test_resize_by_sizes_and_of_other_kinds(check: Check) -> None:
    sizes = {"s": np.array([1, 2, 10, 3])}
    by_size = 'g (float[1,2,7,7] x) => (float[1,2,10,3] y) { y = Resize<mode="%s">(x, , , s) }'
    assert operators(check(model_of(by_size % "linear", sizes))) == ["Resize+none"]
    assert operators(check(model_of(by_size % "cubic", sizes))) == ["onnx:Resize+none"]
    by_axes = model_of(
        "g (float[1,2,7,7] x) => (float[1,2,14,7] y) { y = Resize<axes=[2]>(x, , s) }",
        {"s": np.array([2.0], np.float32)},
    )
    assert operators(check(by_axes)) == ["Resize+none"]


def test_softmax_before_opset_13(check: Check) -> None:
    def text(axis: int) -> str:
        return f"g (float[2,3,4] x) => (float[2,3,4] y) {{ y = Softmax<axis={axis}>(x) }}"

    assert operators(check(model_of(text(1), opset=11))) == ["onnx:Softmax+none"]
    assert operators(check(model_of(text(2), opset=11))) == ["Softmax+none"]
    assert operators(check(model_of(text(1), opset=13))) == ["Softmax+none"]


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


def test_shared_weights_are_folded_apart(check: Check) -> None:
    text = """g (float[1,3,6,6] x) => (float[1,4,4,4] y, float[1,4,4,4] z) {
        t = Conv(x, w, b)
        y = BatchNormalization(t, gamma, beta, mean, var)
        u = Conv(x, w, b)
        v = Relu(u)
        z = Add(v, y)
    }"""
    check(model_of(text, CONV | BATCH_NORM))


@pytest.mark.parametrize(
    ("attributes", "weight", "size", "expected"),
    [
        ("strides=[2,2]", (6, 4, 2, 2), (10, 12), ["Conv", "DepthToSpace"]),
        ("strides=[2,2], pads=[1,1,1,1]", (6, 4, 4, 4), (10, 12), [*["Conv"] * 4, "Concat", "DepthToSpace"]),
        ("strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]", (6, 4, 3, 3), (10, 12), None),
        ("strides=[2,2], pads=[1,0,0,1], group=2", (6, 2, 3, 3), (10, 12), None),
        ("strides=[3,3], pads=[2,0,3,1]", (6, 4, 5, 4), (12, 18), None),
        ("strides=[4,4]", (6, 4, 3, 3), (19, 23), None),
        ("pads=[1,1,0,2]", (6, 4, 3, 3), (6, 5), ["Conv"]),
        ('strides=[2,2], auto_pad="SAME_UPPER"', (6, 4, 3, 3), (10, 12), None),
        ("strides=[2,2], output_shape=[11,12]", (6, 4, 5, 4), (11, 12), None),
        ("strides=[2,2], pads=[4,4,4,4]", (6, 4, 3, 3), (3, 5), None),
        ("strides=[2,1]", (6, 4, 2, 2), (10, 7), ["onnx:ConvTranspose"]),
    ],
)
def test_transposed_convolutions(
    check: Check, attributes: str, weight: tuple[int, ...], size: tuple[int, int], expected: list[str] | None
) -> None:
    text = f"g (float[2,6,5,6] x) => (float[2,4,{size[0]},{size[1]}] y) {{ y = ConvTranspose<{attributes}>(x, w, b) }}"
    found = [node.layer.op for node in check(model_of(text, {"w": normal(*weight), "b": normal(4)}))]
    assert found == expected if expected else "onnx:ConvTranspose" not in found


@pytest.mark.parametrize("taps", [2, 4])
def test_what_follows_a_transposed_convolution_goes_into_its_phases(check: Check, taps: int) -> None:
    pads = "" if taps == 2 else ", pads=[1,1,1,1]"
    text = f"""g (float[1,6,5,6] x) => (float[1,4,10,12] y) {{
        t = ConvTranspose<strides=[2,2]{pads}>(x, w)
        u = BatchNormalization(t, gain, shift, shift, gain)
        y = Relu(u)
    }}"""
    weights = {"w": normal(6, 4, taps, taps), "gain": np.abs(normal(4)), "shift": normal(4, seed=2)}
    nodes = check(model_of(text, weights))
    assert {node.layer.op for node in nodes} <= {"Conv", "Concat", "DepthToSpace"}
    assert all(node.layer.activation.kind == ActivationKind.RELU for node in nodes if node.layer.op == "Conv")


@pytest.mark.parametrize(
    ("operator", "axes", "keep", "expected"),
    [
        ("ReduceSum", [2, 3], 0, ["GlobalPool", "Mul", "Reshape"]),
        ("ReduceSum", [1], 1, ["Reduce"]),
        ("ReduceMean", [-1], 0, ["Reduce"]),
        ("ReduceMax", [1, 2, 3], 0, ["Reduce"]),
        ("ReduceMin", [0, 2], 1, ["Reduce", "Reduce"]),
        ("ReduceL1", [1, 3], 0, ["Reduce", "Reduce"]),
        ("ReduceSumSquare", [1, 3], 1, ["Reduce", "Reduce"]),
        ("ReduceL2", [1, 2], 1, ["Reduce"]),
        ("ReduceL2", [1, 3], 1, ["onnx:ReduceL2"]),
        ("ReduceProd", [3], 1, ["Reduce"]),
    ],
)
def test_reductions(check: Check, operator: str, axes: list[int], keep: int, expected: list[str]) -> None:
    whole = {axis % 4 for axis in axes}
    sizes = [1 if a in whole else n for a, n in enumerate((2, 3, 4, 5)) if keep or a not in whole]
    text = f"g (float[2,3,4,5] x) => (float[{','.join(map(str, sizes))}] y) {{ y = {operator}<keepdims={keep}>(x, a) }}"
    nodes = check(model_of(text, {"a": np.array(axes)}))
    assert [node.layer.op for node in nodes] == expected


@pytest.mark.parametrize("opset", [13, 20])
def test_a_reduction_of_everything(check: Check, opset: int) -> None:
    nodes = check(model_of("g (float[2,3,4] x) => (float y) { y = ReduceMean<keepdims=0>(x) }", opset=opset))
    assert [node.layer.op for node in nodes] == ["Reduce"]


@pytest.mark.parametrize(
    ("pads", "mode", "expected"),
    [
        ([0, 0, 1, 2, 0, 0, 0, 1], "constant", 1),
        ([0, 0, 1, 2, 0, 0, 0, 1], "reflect", 1),
        ([0, 0, 3, 2, 0, 0, 4, 1], "wrap", 1),
        ([0, 2, 1, 0, 0, 0, 0, 0], "edge", 2),
        ([1, 2, 1, 2, 0, 0, 0, 0], "constant", 2),
        ([1, 0, 0, 2, 0, 0, 0, 0], "constant", 2),
        ([0, 0, -1, 2, 0, 0, 0, 0], "constant", 0),
    ],
)
def test_pads_that_no_layer_takes(check: Check, pads: list[int], mode: str, expected: int) -> None:
    sizes = [n + pads[a] + pads[4 + a] for a, n in enumerate((2, 3, 4, 5))]
    text = f'g (float[2,3,4,5] x) => (float[{",".join(map(str, sizes))}] y) {{ y = Pad<mode="{mode}">(x, p, v) }}'
    nodes = check(model_of(text, {"p": np.array(pads), "v": np.array(0.5, np.float32)}))
    assert [node.layer.op for node in nodes] == (["Pad"] * expected or ["onnx:Pad"])


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


def test_views_with_axes_of_one_length_are_told_apart(check: Check) -> None:
    """A view whose last axis is its base's channels is imported with other channels, as rotary embeddings need."""
    text = """g (float[2,4,3,8] x, float[2,3,8,2] z) => (float[2,4,3,8] y) {
        a = Transpose<perm=[0,2,1,3]>(x)
        q = Slice(a, four, eight, last)
        e = Relu(z)
        f = Reshape(e, shape)
        c = Concat<axis=-1>(f, q)
        y = Transpose<perm=[0,2,1,3]>(c)
    }"""
    weights = {
        "four": np.array([4]),
        "eight": np.array([8]),
        "last": np.array([3]),
        "shape": np.array([2, 3, 4, 4]),
    }
    check(model_of(text, weights))


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
