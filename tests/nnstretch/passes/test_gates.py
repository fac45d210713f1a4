"""Activations that exporters write as a product: which are recognised, and which are left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from nnstretch.frontends.torch_module import export
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.layers import GraphNode, layers
from nnstretch.passes import optimize
from tests.kits.graphs.textual_graphs import model_of, normal

Check = Callable[..., list[GraphNode]]
CONSTANTS = {
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "root": 2**0.5,
    "inverse": 0.5**0.5,
    "cubic": 0.044715,
    "scale": (2 / np.pi) ** 0.5,
    "slope": 1.702,
    "other": 0.7,
}
ERF = "d = Div(x, root) e = Erf(d) f = Add(e, one)"
CUBE = "p = Pow(x, three) q = Mul(p, cubic) r = Add(x, q) s = Mul(r, scale) t = Tanh(s)"
PRODUCTS = "p = Mul(x, x) q = Mul(p, x) r = Mul(cubic, q) s = Add(r, x) t = Mul(scale, s) u = Tanh(t)"
GELU = Activation(ActivationKind.GELU)
GELU_TANH = Activation(ActivationKind.GELU_TANH)
FOUND = {
    "x*f*0.5": (f"{ERF} g = Mul(x, f) y = Mul(g, half)", GELU),
    "0.5*(f*x)": (f"{ERF} g = Mul(f, x) y = Mul(half, g)", GELU),
    "(0.5*x)*f": (f"{ERF} g = Mul(half, x) y = Mul(g, f)", GELU),
    "x*(f/2)": (f"{ERF} g = Div(f, two) y = Mul(g, x)", GELU),
    "x*f/2": (f"{ERF} g = Mul(f, x) y = Div(g, two)", GELU),
    "multiplied by the inverse": (
        "d = Mul(inverse, x) e = Erf(d) f = Add(one, e) g = Mul(x, f) y = Mul(g, half)",
        GELU,
    ),
    "Gelu": ("y = Gelu(x)", GELU),
    "Gelu of tanh": ('y = Gelu<approximate="tanh">(x)', GELU_TANH),
    "Pow": (f"{CUBE} u = Add(t, one) v = Mul(x, half) y = Mul(v, u)", GELU_TANH),
    "x*x*x": (f"{PRODUCTS} v = Add(one, u) w = Mul(half, v) y = Mul(x, w)", GELU_TANH),
    "quick": ("p = Mul(x, slope) q = Sigmoid(p) y = Mul(x, q)", Activation(ActivationKind.SWISH, 1.702)),
    "Mish": ("y = Mish(x)", Activation(ActivationKind.MISH)),
    "mish": ("p = Softplus(x) q = Tanh(p) y = Mul(q, x)", Activation(ActivationKind.MISH)),
    "Softplus": ("y = Softplus(x)", Activation(ActivationKind.SOFTPLUS)),
    "Erf": ("y = Erf(x)", Activation(ActivationKind.ERF)),
    "Elu": ("y = Elu<alpha=0.7>(x)", Activation(ActivationKind.ELU, 0.7, 1.0)),
    "Celu": ("y = Celu<alpha=0.7>(x)", Activation(ActivationKind.ELU, 0.7, 1 / 0.7)),
    "Selu": ("y = Selu<alpha=1.5, gamma=1.1>(x)", Activation(ActivationKind.SELU, 1.5, 1.1)),
}
OTHER = {
    "another divisor": "d = Div(x, two) e = Erf(d) f = Add(e, one) g = Mul(x, f) y = Mul(g, half)",
    "another summand": "d = Div(x, root) e = Erf(d) f = Add(e, two) g = Mul(x, f) y = Mul(g, half)",
    "another factor": f"{ERF} g = Mul(x, f) y = Mul(g, other)",
    "another tensor": f"{ERF} n = Neg(x) g = Mul(n, f) y = Mul(g, half)",
    "divided by the gate": f"{ERF} g = Div(x, f) y = Mul(g, half)",
    "a square": (
        "p = Pow(x, two) q = Mul(p, cubic) r = Add(x, q) s = Mul(r, scale) t = Tanh(s) u = Add(t, one) v = Mul(x, half)"
        " y = Mul(v, u)"
    ),
    "a negative slope": "n = Neg(x) p = Mul(n, slope) q = Sigmoid(p) y = Mul(x, q)",
}


@pytest.mark.parametrize(("nodes", "activation"), list(FOUND.values()), ids=list(FOUND))
def test_gates_become_activations(check: Check, nodes: str, activation: Activation) -> None:
    model = model_of(f"g (float[2,3,6,5] x) => (float[2,3,6,5] y) {{ {nodes} }}", _weights())
    (node,) = check(model)
    assert node.layer.op == "Activation"
    assert node.layer.activation.kind is activation.kind
    np.testing.assert_allclose(node.layer.activation.words()[1:], activation.words()[1:], rtol=1e-6)


@pytest.mark.parametrize("nodes", list(OTHER.values()), ids=list(OTHER))
def test_what_differs_in_a_constant_is_computed_as_written(check: Check, nodes: str) -> None:
    model = model_of(f"g (float[2,3,6,5] x) => (float[2,3,6,5] y) {{ {nodes} }}", _weights())
    known = {activation.kind for _, activation in FOUND.values()} - {ActivationKind.ERF}
    assert not known & {node.layer.activation.kind for node in check(model)}


def test_a_product_that_is_gated_itself_is_the_source(check: Check) -> None:
    """The x of the gate may be a product; its factors are not those of the activation."""
    body = f"x = Mul(a, b) {ERF} g = Mul(x, f) y = Mul(g, half)"
    model = model_of(f"g (float[2,3,6,5] a, float[2,3,6,5] b) => (float[2,3,6,5] y) {{ {body} }}", _weights())
    (node,) = check(model)
    assert (node.layer.op, node.layer.activation) == ("Mul", GELU)


@pytest.mark.parametrize(("shape", "op"), [((3, 1, 1), "PRelu"), ((1, 3, 1, 1), "PRelu"), ((1,), "Activation")])
def test_slopes_of_negative_numbers(check: Check, shape: tuple[int, ...], op: str) -> None:
    model = model_of("g (float[2,3,6,5] x) => (float[2,3,6,5] y) { y = PRelu(x, s) }", {"s": normal(*shape)})
    assert [node.layer.op for node in check(model)] == [op]


def test_slopes_along_another_axis_stay_with_the_fallback(check: Check) -> None:
    model = model_of("g (float[2,3,6,3] x) => (float[2,3,6,3] y) { y = PRelu(x, s) }", {"s": normal(3)})
    assert [node.layer.op for node in check(model)] == ["onnx:PRelu"]


def test_a_convolution_carries_what_follows(check: Check) -> None:
    body = f"x = Conv(i, w) {ERF} g = Mul(x, f) y = Mul(g, half)"
    weights = _weights() | {"w": normal(3, 4, 1, 1)}
    model = model_of(f"g (float[2,4,6,5] i) => (float[2,3,6,5] y) {{ {body} }}", weights)
    (node,) = check(model)
    assert (node.layer.op, node.layer.activation) == ("Conv", GELU)


@pytest.mark.parametrize("module", [nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.ELU(), nn.SELU(), nn.CELU(0.5)], ids=str)
def test_modules_of_torch_become_one_layer(module: nn.Module) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), module).eval()
    graph = optimize(export(network, (torch.zeros(1, 3, 4, 4),)))
    assert len(layers(graph)) == 1


def _weights() -> dict[str, np.ndarray]:
    return {name: np.array(value, np.float32) for name, value in CONSTANTS.items()}
