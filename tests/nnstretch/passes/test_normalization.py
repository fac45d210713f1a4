"""Normalisations of ONNX, and those that exporters write as sums and roots."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional as fn

from nnstretch.frontends.torch_module import export
from nnstretch.graph.activation import ActivationKind
from nnstretch.graph.layers import GraphNode
from tests.kits.graphs.textual_graphs import model_of, normal, operators

Check = Callable[..., list[GraphNode]]
SHAPE = (2, 6, 4, 5)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def trained(module: nn.Module) -> nn.Module:
    """The module with random weights."""
    for index, parameter in enumerate(module.parameters()):
        parameter.data = torch.from_numpy(normal(*parameter.shape, seed=index))
    return module.eval()


def written_out(x: torch.Tensor) -> torch.Tensor:
    """Layer normalisation of channels, as ConvNeXt's authors wrote it."""
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    normed = (x - mean) / torch.sqrt(variance + 1e-6)
    return torch.linspace(0.5, 2, 6)[:, None, None] * normed + torch.linspace(-1, 1, 6)[:, None, None]


def root_mean_square(x: torch.Tensor) -> torch.Tensor:
    """Root-mean-square normalisation, as language models write it."""
    return torch.linspace(0.5, 2, 5) * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))


MODULES = {
    "last axis": (nn.LayerNorm(5), ["LayerNorm"]),
    "without weights": (nn.LayerNorm(5, elementwise_affine=False), ["LayerNorm"]),
    "last axes": (nn.LayerNorm((4, 5)), ["Reshape", "LayerNorm", "Reshape"]),
    "groups": (nn.GroupNorm(3, 6), ["GroupNorm"]),
    "one group": (nn.GroupNorm(1, 6), ["GroupNorm"]),
    "instances": (nn.InstanceNorm2d(6, affine=True), ["GroupNorm"]),
    "instances without weights": (nn.InstanceNorm2d(6), ["GroupNorm"]),
    "written out": (Calls(written_out), ["LayerNorm"]),
    "root mean square": (Calls(root_mean_square), ["LayerNorm"]),
    "root mean square of torch": (nn.RMSNorm(5, eps=1e-6), ["LayerNorm"]),
}


@pytest.mark.parametrize("name", list(MODULES))
def test_modules_of_torch(check: Check, name: str) -> None:
    module, wanted = MODULES[name]
    nodes = check(export(trained(module), (torch.from_numpy(normal(*SHAPE)),)))
    assert [node.layer.op for node in nodes] == wanted


@pytest.mark.parametrize("name", [name for name in MODULES if "of torch" not in name])
def test_modules_of_torch_by_the_older_exporter(check: Check, name: str) -> None:
    module, wanted = MODULES[name]
    nodes = check(torchscript(trained(module), torch.from_numpy(normal(*SHAPE))))
    extra = ["Mul", "Add"] if name == "last axes" else []  # constants of more than one axis are not folded
    assert [node.layer.op for node in nodes] == wanted + extra


def torchscript(module: nn.Module, x: torch.Tensor) -> ir.Model:
    """The model that torch's older exporter writes, in which layer normalisation is written out."""
    target = io.BytesIO()
    torch.onnx.export(module, (x,), target, dynamo=False, opset_version=15)  # type: ignore[arg-type]
    return ir.from_proto(onnx.load_from_string(target.getvalue()))


def test_an_activation_follows_in_the_same_layer(check: Check) -> None:
    module = nn.Sequential(nn.Conv2d(6, 8, 1), nn.GroupNorm(2, 8), nn.SiLU())
    nodes = check(export(trained(module), (torch.from_numpy(normal(*SHAPE)),)))
    assert operators(nodes) == ["Conv+none", "GroupNorm+silu"]


def test_a_constant_for_each_pixel_stays_a_layer_of_its_own(check: Check) -> None:
    weights = {"c": normal(4, 1), "s": normal(5)}
    model = model_of(
        "g (float[2,6,4,5] x) => (float[2,6,4,5] y) { n = LayerNormalization(x, s) y = Add(n, c) }", weights
    )
    assert [node.layer.op for node in check(model)] == ["LayerNorm", "Add"]


def test_a_scale_that_is_computed_stays_with_the_fallback(check: Check) -> None:
    model = model_of("g (float[2,6,5] x, float[5] s) => (float[2,6,5] y) { y = LayerNormalization(x, s) }")
    assert [node.layer.op for node in check(model)] == ["onnx:LayerNormalization"]


@pytest.mark.parametrize(
    "body",
    [
        "m = ReduceMean<axes=[1]>(x) d = Sub(m, x) f = Sub(x, m) q = Mul(f, f) v = ReduceMean<axes=[1]>(q) e = Add(v, eps)",
        "d = Neg(x) q = Mul(d, x) v = ReduceMean<axes=[1]>(q) w = Abs(v) e = Add(w, eps)",
    ],
    ids=["another dividend", "no square"],
)
def test_what_is_no_normalisation(check: Check, body: str) -> None:
    weights = {"eps": np.array(1e-3, np.float32)}
    model = model_of(
        f"g (float[2,6,4,5] x) => (float[2,6,4,5] y) {{ {body} r = Sqrt(e) y = Div(d, r) }}", weights, opset=13
    )
    assert not [node for node in check(model) if node.layer.op == "LayerNorm"]


def test_a_variance_of_another_axis_is_the_root_mean_square_of_a_difference(check: Check) -> None:
    body = "m = ReduceMean<axes=[1]>(x) d = Sub(x, m) q = Mul(d, d) v = ReduceMean<axes=[2]>(q) e = Add(v, eps)"
    weights = {"eps": np.array(1e-3, np.float32)}
    model = model_of(
        f"g (float[2,6,4,5] x) => (float[2,6,4,5] y) {{ {body} r = Sqrt(e) y = Div(d, r) }}", weights, opset=13
    )
    (norm,) = (node.layer for node in check(model) if node.layer.op == "LayerNorm")
    assert (norm.attributes["axis"], norm.attributes["rms"]) == (2, 1)


def test_a_batch_of_groups_is_no_group_normalisation(check: Check) -> None:
    """The reshape back is to another shape than the one before."""
    weights = {
        "grouped": np.array([2, 3, 40]),
        "other": np.array([2, 3, 8, 5]),
        "one": np.ones(3, np.float32),
        "zero": np.zeros(3, np.float32),
    }
    model = model_of(
        "g (float[2,6,4,5] x) => (float[2,3,8,5] y) { r = Reshape(x, grouped) n = InstanceNormalization(r, one, zero)"
        " y = Reshape(n, other) }",
        weights,
    )
    assert [node.layer.op for node in check(model)] == ["Reshape", "GroupNorm", "Reshape"]


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization_of_both_operator_sets(check: Check, opset: int) -> None:
    """Scales are those of groups before operator set 21. ONNX Runtime computes the newer form alone."""
    count = 3 if opset == 18 else 6
    weights = {"s": normal(count), "b": normal(count, seed=2)}
    model = model_of(
        "g (float[2,6,4,5] x) => (float[2,6,4,5] y) { y = GroupNormalization<num_groups=3>(x, s, b) }", weights, opset
    )
    (node,) = check(model)
    assert node.layer.op == "GroupNorm"
    each = np.repeat(weights["s"], 6 // count)
    np.testing.assert_array_equal(node.layer.constants[1], each)


def test_silu_is_not_lost_where_a_norm_is_gated(check: Check) -> None:
    model = export(Calls(lambda x: fn.gelu(fn.layer_norm(x, (5,)))), (torch.from_numpy(normal(*SHAPE)),))
    (node,) = check(model)
    assert (node.layer.op, node.layer.activation.kind) == ("LayerNorm", ActivationKind.GELU)


def test_a_mean_that_is_an_output_is_computed(check: Check) -> None:
    text = """g (float[1,8,16] x) => (float[1,8,16] y, float[1,8,1] mean) {
        y, mean = LayerNormalization<axis=-1>(x, scale)
    }"""
    assert len(check(model_of(text, {"scale": normal(16)}))) == 1
