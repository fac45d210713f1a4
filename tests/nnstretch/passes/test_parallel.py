"""Sums of convolutions of one tensor: which become one, and which stay."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from nnstretch.graph.layers import GraphNode, layers
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.passes import optimize
from tests.kits.graphs.textual_graphs import model_of, normal

Check = Callable[..., list[GraphNode]]
WEIGHTS = {
    "large": normal(6, 6, 3, 3),
    "small": normal(6, 6, 1, 1, seed=2),
    "wide": normal(6, 6, 1, 5, seed=3),
    "tall": normal(6, 6, 3, 1, seed=4),
    "deep": normal(6, 1, 3, 3, seed=5),
    "deeper": normal(6, 1, 5, 5, seed=6),
    "each": normal(6, 1, 1, 1, seed=7),
    "grouped": normal(6, 3, 3, 3, seed=8),
    "b": normal(6, seed=9),
    "scale": normal(6, 1, 1, seed=10),
}
LARGE = "p = Conv<pads=[1,1,1,1]>(x, large, b)"
MERGED = {
    "3x3 and 1x1": (f"{LARGE} q = Conv(x, small, b) y = Add(q, p)", (3, 3), 1),
    "3x3 and the input": (f"{LARGE} y = Add(x, p)", (3, 3), 1),
    "3x3 and a scale": (f"{LARGE} q = Mul(x, scale) y = Add(p, q)", (3, 3), 1),
    "a difference": (f"{LARGE} q = Conv(x, small, b) y = Sub(q, p)", (3, 3), 1),
    "all of a block": (f"{LARGE} q = Conv(x, small) r = Add(p, q) s = Mul(r, scale) y = Add(x, s)", (3, 3), 1),
    "depthwise": (
        "p = Conv<pads=[1,1,1,1], group=6>(x, deep) q = Conv<pads=[2,2,2,2], group=6>(x, deeper, b) y = Add(p, q)",
        (5, 5),
        6,
    ),
    "depthwise in groups": (
        "p = Conv<pads=[1,1,1,1], group=2>(x, grouped) q = Conv<group=6>(x, each, b) y = Sub(p, q)",
        (3, 3),
        2,
    ),
    "a stride that leaves a pixel": (
        "p = Conv<pads=[1,1,1,1], strides=[2,2]>(x, large) q = Conv<strides=[2,2]>(x, small, b) y = Add(p, q)",
        (3, 3),
        1,
    ),
    "dilated": (
        "p = Conv<pads=[2,2,2,2], dilations=[2,2]>(x, large) q = Conv(x, small) y = Add(p, q)",
        (3, 3),
        1,
    ),
    "uneven pads": ("p = Conv<pads=[2,0,0,2]>(x, large) q = Conv<pads=[1,1,1,1]>(x, large) y = Add(p, q)", (4, 4), 1),
}
KEPT = {
    "more multiply-adds": "p = Conv<pads=[0,2,0,2]>(x, wide) q = Conv<pads=[1,0,1,0]>(x, tall) y = Add(p, q)",
    "depthwise and full": "p = Conv<pads=[1,1,1,1], group=6>(x, deep) q = Conv(x, small) y = Add(p, q)",
    "other inputs": f"{LARGE} r = Relu(x) q = Conv(r, small) y = Add(p, q)",
    "an activation between": f"{LARGE} r = Relu(p) q = Conv(x, small) y = Add(r, q)",
    "other steps": (
        "p = Conv<pads=[1,1,1,1], dilations=[1,1]>(x, large) q = Conv<pads=[2,2,2,2], dilations=[2,2]>(x, large) "
        "y = Add(p, q)"
    ),
}


@pytest.mark.parametrize(("body", "kernel", "groups"), list(MERGED.values()), ids=list(MERGED))
def test_sums_become_one_convolution(check: Check, body: str, kernel: tuple[int, int], groups: int) -> None:
    nodes = check(network(body))
    (node,) = nodes
    assert node.layer.op == "Conv"
    assert (node.layer.type_of(1).shape[2:], node.layer.attributes["groups"]) == (kernel, groups)
    assert not node.layer.has(3)


@pytest.mark.parametrize("body", list(KEPT.values()), ids=list(KEPT))
def test_other_sums_stay(check: Check, body: str) -> None:
    assert sum(node.layer.op == "Conv" for node in check(network(body))) == 2


def test_a_convolution_that_is_read_elsewhere_stays(check: Check) -> None:
    body = f"{LARGE} q = Conv(x, small) r = Add(p, q) s = Relu(p) y = Add(r, s)"
    assert sum(node.layer.op == "Conv" for node in check(network(body))) == 2


def test_branches_of_a_design_stay_apart() -> None:
    model = network(f"{LARGE} q = Conv(x, small) y = Add(p, q)")
    for node, branch in zip(model.graph, ("0", "1", "0"), strict=True):
        node.metadata_props[PLACEMENT_KEY] = branch
    assert sum(node.layer.op == "Conv" for node in layers(optimize(model))) == 2


def network(body: str) -> ir.Model:
    """A graph from x to y; strides leave a shape of their own."""
    extents = "4,3" if "strides" in body else "7,6"
    return model_of(f"g (float[2,6,7,6] x) => (float[2,6,{extents}] y) {{ {body} }}", WEIGHTS)
