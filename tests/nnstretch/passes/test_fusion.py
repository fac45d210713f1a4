"""Layers that take activations, sums, gates and normalisations of their neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nnstretch.graph.activation import Activation, ActivationKind
from tests.kits.graphs.textual_graphs import BATCH_NORM, CONV, Check, model_of, normal, operators

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
    ("nodes", "activation"),
    [
        ("y = Relu(t)", Activation(ActivationKind.RELU)),
        ("y = Clip(t, low, high)", Activation(ActivationKind.CLIP, -0.5, 0.75)),
        ("y = Clip(t, zero)", Activation(ActivationKind.RELU)),
        ("y = Clip(t, zero, largest)", Activation(ActivationKind.RELU)),
        ("y = Clip(t, low)", Activation(ActivationKind.CLIP, -0.5, float(np.finfo(np.float32).max))),
        ("y = Max(low, t)", Activation(ActivationKind.CLIP, -0.5, math.inf)),
        ("y = Min(t, high)", Activation(ActivationKind.CLIP, -math.inf, 0.75)),
        ("u = Max(t, low) y = Min(u, high)", Activation(ActivationKind.CLIP, -0.5, 0.75)),
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
    constants["largest"] = float(np.finfo(np.float32).max)
    weights = {name: np.array(value, np.float32) for name, value in constants.items()} | CONV
    model = model_of(
        f"g (float[2,3,6,5] x) => (float[2,4,6,5] y) {{ t = Conv<pads=[1,1,1,1]>(x, w, b) {nodes} }}", weights
    )
    (node,) = check(model)
    assert node.layer.op == "Conv"
    assert node.layer.activation.kind is activation.kind
    assert math.isclose(node.layer.activation.a, activation.a, rel_tol=1e-6)
    assert math.isclose(node.layer.activation.b, activation.b, rel_tol=1e-6)


def test_a_gate_with_another_shift_is_no_hard_swish(check: Check) -> None:
    weights = {name: np.array(value, np.float32) for name, value in (("zero", 0.0), ("two", 2.0), ("six", 6.0))}
    lines = "u = Add(x, two) v = Clip(u, zero, six) q = Div(v, six) y = Mul(x, q)"
    nodes = check(model_of(f"g (float[2,4,6,5] x) => (float[2,4,6,5] y) {{ {lines} }}", weights))
    assert not any("hard" in name for name in operators(nodes))


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


@pytest.mark.parametrize(("pads", "layers_left"), [("[0,0,0,0]", 1), ("[1,1,1,1]", 2)])
def test_affine_goes_forward_into_unpadded_grouped_convolution(check: Check, pads: str, layers_left: int) -> None:
    text = f"""g (float[1,4,5,5] x) => (float[1,6,k,k] y) {{
        t = BatchNormalization(x, gamma, beta, mean, var)
        y = Conv<group=2, pads={pads}>(t, w)
    }}""".replace("k", "3" if layers_left == 1 else "5")
    assert len(check(model_of(text, BATCH_NORM | {"w": normal(6, 2, 3, 3)}))) == layers_left


@pytest.mark.parametrize(("shifted", "layers_left"), [(0, 1), (1, 2)])
def test_affine_goes_forward_into_a_padded_convolution_if_it_shifts_no_channel(
    check: Check, shifted: int, layers_left: int
) -> None:
    text = """g (float[1,4,5,5] x) => (float[1,6,5,5] y) {
        t = BatchNormalization(x, gamma, beta, mean, var)
        y = Conv<pads=[1,1,1,1]>(t, w)
    }"""
    zeros, beta = np.zeros(4, np.float32), np.array([shifted, 0, 0, 0], np.float32)
    constants = BATCH_NORM | {"mean": zeros, "beta": beta, "w": normal(6, 4, 3, 3)}
    assert len(check(model_of(text, constants))) == layers_left


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
def test_a_global_pool_of_a_line_is_one_of_an_image(check: Check, operator: str) -> None:
    text = f"g (float[2,4,7] x) => (float[2,4,1] y) {{ y = {operator}(x) }}"
    assert operators(check(model_of(text))) == ["Reshape+none", "GlobalPool+none", "Reshape+none"]


def test_squeeze_and_excite_keeps_the_large_operand_first(check: Check) -> None:
    text = "g (float[2,4,5,5] x) => (float[2,4,5,5] y) { p = GlobalAveragePool(x) s = Sigmoid(p) y = Mul(s, x) }"
    nodes = check(model_of(text))
    assert operators(nodes) == ["GlobalPool+none", "Activation+sigmoid", "Mul+none"]
    assert [kind and kind.shape for kind in nodes[2].layer.inputs] == [(2, 4, 5, 5), (2, 4, 1, 1)]


@pytest.mark.parametrize(
    ("attributes", "size", "kernel", "pads", "dilations"),
    [
        ("pads=[9,9,9,9], dilations=[9,9]", (9, 9), (1, 1), (0, 0, 0, 0), (1, 1)),
        ("pads=[9,4,9,4], dilations=[9,4]", (9, 9), (1, 3), (0, 4, 0, 4), (1, 4)),
        ("pads=[8,8,8,8], dilations=[8,8]", (9, 9), (3, 3), (8, 8, 8, 8), (8, 8)),
        ("pads=[0,1,4,1], dilations=[3,1]", (5, 5), (2, 3), (0, 1, 1, 1), (3, 1)),
        ("pads=[0,1,6,1], dilations=[3,1], strides=[2,1]", (3, 5), (1, 3), (0, 1, 0, 1), (1, 1)),
        ("pads=[3,3,3,3], dilations=[4,4]", (5, 5), (3, 3), (3, 3, 3, 3), (4, 4)),
        ("pads=[4,4,4,4], dilations=[5,5]", (4, 4), (3, 3), (4, 4, 4, 4), (5, 5)),  # the middle tap would need a crop
    ],
)
def test_taps_that_read_only_pads_are_dropped(
    check: Check,
    attributes: str,
    size: tuple[int, int],
    kernel: tuple[int, int],
    pads: tuple[int, ...],
    dilations: tuple[int, int],
) -> None:
    text = f"g (float[1,4,{size[0]},{size[1]}] x) => (float[1,6,h,w] y) {{ y = Conv<{attributes}>(x, w) }}"
    (node,) = check(model_of(text, {"w": normal(6, 4, 3, 3)}))
    assert node.layer.type_of(1).shape[2:] == kernel
    assert (node.layer.ints("pads"), node.layer.ints("dilations")) == (pads, dilations)


def test_a_pad_in_front_of_a_convolution_has_no_taps(check: Check) -> None:
    text = "g (float[1,4,5,5] x) => (float[1,6,5,5] y) { p = Pad(x, pads) y = Conv<dilations=[7,7]>(p, w) }"
    constants = {"w": normal(6, 4, 3, 3), "pads": np.array([0, 0, 7, 7, 0, 0, 7, 7])}
    (node,) = check(model_of(text, constants))
    assert node.layer.type_of(1).shape == (6, 4, 1, 1)
