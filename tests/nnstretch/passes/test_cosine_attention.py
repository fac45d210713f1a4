"""Attention whose queries and keys are divided by their norms, with a factor of each head."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import nnstretch as nns
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import layers as layers_of_graph
from nnstretch.graph.reference import relative_error
from nnstretch.passes import optimize
from tests.kits.boards.cores import OWN_CORE
from tests.kits.graphs.textual_graphs import Check, model_of, normal
from tests.kits.hypothesis_examples import examples

OPSET = {"axes as an input": 20, "axes as an attribute": 17, "sum of squares": 20, "operator": 20}
"""How norms are written -> operator set: by torch's exporters, and by others."""


def normalised(form: str, source: str, result: str) -> str:
    """Nodes that divide the last axis of `source` by its norm."""
    names = {"source": source, "result": result}
    if form == "operator":
        return "{result} = LpNormalization<axis=-1, p=2>({source})".format(**names)
    norms = {
        "axes as an input": "{result}n = ReduceL2<keepdims=1>({source}, last)",
        "axes as an attribute": "{result}n = ReduceL2<axes=[-1], keepdims=1>({source})",
        "sum of squares": """{result}x = Mul({source}, {source})  {result}s = ReduceSum<keepdims=1>({result}x, last)
            {result}n = Sqrt({result}s)""",
    }
    divided = """{result}c = Clip({result}n, epsilon)  {result}e = Expand({result}c, extents)
        {result} = Div({source}, {result}e)"""
    return (norms[form] + divided).format(**names)


@dataclass(frozen=True)
class Windows:
    """Attention of some windows, with a bias of each head and a mask of each window."""

    windows: int
    tokens: int
    heads: int
    depth: int

    @property
    def scores(self) -> tuple[int, int, int, int]:
        return self.windows, self.heads, self.tokens, self.tokens

    def weights(self) -> dict[str, np.ndarray]:
        channels = self.heads * self.depth
        return {
            "w": normal(channels, 3 * channels),
            "b": normal(3 * channels),
            "split": np.array([self.windows, self.tokens, 3, self.heads, self.depth]),
            "whole": np.array([self.windows, self.tokens, channels]),
            "zero": np.array([0]),
            "last": np.array([-1]),
            "thirds": np.array([1, 1, 1]),
            "extents": np.array([self.windows, self.heads, self.tokens, self.depth]),
            "epsilon": np.array(1e-12, np.float32),
            "factor": np.abs(normal(self.heads, 1, 1)) * 10,
            "scale": np.array(3.0, np.float32),
            "bias": normal(*self.scores[1:]),
            "mask": normal(self.windows, 1, self.tokens, self.tokens),
        }

    def graph(self, vectors: str, scores: str, outputs: str = "") -> str:
        """Text of a graph: `vectors` make qn of q and kn of k, `scores` makes s of the product m."""
        tokens = f"{self.windows},{self.tokens},{self.heads * self.depth}"
        return f"""g (float[{tokens}] x) => (float[{tokens}] y{outputs}) {{
            d = MatMul(x, w)  a = Add(b, d)  h = Reshape(a, split)  t = Transpose<perm=[2,0,3,1,4]>(h)
            q1, k1, v1 = Split<axis=0>(t, thirds)
            q = Squeeze(q1, zero)  k = Squeeze(k1, zero)  v = Squeeze(v1, zero)
            {vectors}  kt = Transpose<perm=[0,1,3,2]>(kn)  m = MatMul(qn, kt)
            {scores}  p = Softmax<axis=-1>(s)  e = MatMul(p, v)
            z = Transpose<perm=[0,2,1,3]>(e)  y = Reshape(z, whole)
        }}"""


SWIN = Windows(windows=3, tokens=9, heads=2, depth=4)


def layers_of(
    check: Check, found: Windows, text: str, opset: int = 20, changed: Mapping[str, np.ndarray] | None = None
) -> list[Layer]:
    """Layers of a graph, whose results are those of ONNX Runtime."""
    used = {name: value for name, value in {**found.weights(), **(changed or {})}.items() if name in text}
    return [node.layer for node in check(model_of(text, used, opset))]


@given(
    found=st.builds(Windows, st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.integers(2, 9)),
    form=st.sampled_from(sorted(OPSET)),
    scores=st.lists(st.sampled_from(["Mul(factor", "Mul(scale", "Add(bias", "Add(mask"]), unique=True),
)
@settings(max_examples=examples(20), deadline=None)
def test_norms_and_factors_are_part_of_attention(check: Check, found: Windows, form: str, scores: list[str]) -> None:
    scores = sorted(scores, reverse=True)  # products first
    steps = [f"s{number + 1} = {step}, s{number})" for number, step in enumerate(scores)]
    text = " ".join(["s0 = Identity(m)", *steps, f"s = Identity(s{len(steps)})"])
    graph = found.graph(normalised(form, "q", "qn") + normalised(form, "k", "kn"), text)
    layers = layers_of(check, found, graph, OPSET[form])
    (layer,) = (layer for layer in layers if layer.op == "Attention")
    assert not {"Softmax", "MatMul", "Reduce", "Div"}.intersection(layer.op for layer in layers)
    assert layer.attributes["epsilon"]
    assert layer.has(5) == ("Mul(factor" in scores and found.heads > 1)


@pytest.mark.parametrize(
    "scores",
    [
        "s = Mul(m, factor)",
        "s = Div(m, factor)",
        "n = Mul(scale, m)  o = Mul(factor, n)  s = Add(bias, o)",
        "n = Mul(m, factor)  o = Reshape(n, windows)  r = Add(o, masks)  s = Reshape(r, heads)",
    ],
)
def test_heads_have_factors(check: Check, scores: str) -> None:
    """Temperatures of heads whose queries and keys are as they are."""
    changed = {
        "windows": np.array([1, *SWIN.scores]),
        "masks": normal(1, 3, 1, 9, 9),
        "heads": np.array(SWIN.scores),
    }
    text = SWIN.graph("qn = Identity(q)  kn = Identity(k)", scores)
    layers = layers_of(check, SWIN, text, changed=changed)
    (layer,) = (layer for layer in layers if layer.op == "Attention")
    assert layer.type_of(5).shape == (1, 2, 1, 1)
    assert "epsilon" not in layer.attributes


@pytest.mark.parametrize("batch", [1, 2])
def test_cross_covariance_is_attention_of_images(check: Check, batch: int) -> None:
    """Tokens of a head are channels, and its channels are tokens (XCiT)."""
    text = f"""g (float[{batch},10,24] x) => (float[{batch},10,8] y) {{
        h = Reshape(x, split)  t = Transpose<perm=[2,0,3,4,1]>(h)  q1, k1, v1 = Split<axis=0>(t, thirds)
        q = Squeeze(q1, zero)  k = Squeeze(k1, zero)  v = Squeeze(v1, zero)
        {normalised("axes as an input", "q", "qn")}  {normalised("axes as an input", "k", "kn")}
        kt = Transpose<perm=[0,1,3,2]>(kn)  m = MatMul(qn, kt)  s = Mul(m, factor)
        p = Softmax<axis=-1>(s)  e = MatMul(p, v)  u = Transpose<perm=[0,3,1,2]>(e)  y = Reshape(u, whole)
    }}"""
    changed = {"split": np.array([batch, 10, 3, 2, 4]), "whole": np.array([batch, 10, 8])}
    changed["extents"] = np.array([batch, 2, 4, 10])
    layers = layers_of(check, SWIN, text, changed=changed)
    (layer,) = (layer for layer in layers if layer.op == "Attention")
    assert layer.attributes["heads"] == 1
    assert layer.attributes["epsilon"]
    assert layer.type_of(5).shape == (2 * batch, 1, 1, 1)


UNIT = normalised("axes as an input", "q", "qn"), normalised("axes as an input", "k", "kn")


@pytest.mark.parametrize(
    ("vectors", "layer"),
    [
        (f"{UNIT[0]} kn = Identity(k)", "Reduce"),  # only queries
        (f"{UNIT[0]} {UNIT[1].replace('epsilon', 'scale')}", "Reduce"),  # shorter keys stay shorter
        (" ".join(UNIT).replace("last", "first"), "Reduce"),  # over the tokens
        (" ".join(UNIT).replace("Clip", "Add"), "Reduce"),
        (" ".join(UNIT).replace("Clip", "Max"), None),
        (" ".join(UNIT).replace("epsilon", "epsilon, scale"), "Reduce"),  # norms have an upper bound, too
        (" ".join(UNIT).replace("epsilon", "zero_norm"), "Reduce"),  # zeros become numbers that are not
        (" ".join(UNIT).replace("q, last", "o, last") + " o = Sigmoid(q)", "Reduce"),  # norms of something else
    ],
)
def test_norms_of_other_forms(check: Check, vectors: str, layer: str | None) -> None:
    if "o = " in vectors:
        vectors = f"o = Sigmoid(q) {vectors.replace(' o = Sigmoid(q)', '')}"
    changed = {"first": np.array([2]), "zero_norm": np.array(0.0, np.float32)}
    layers = layers_of(check, SWIN, SWIN.graph(vectors, "s = Mul(m, factor)"), changed=changed)
    found = Counter(layer.op for layer in layers)
    assert found["Attention"] == 1
    assert found["Reduce"] > 0 if layer else not found["Reduce"]


@pytest.mark.parametrize(
    "scores",
    [
        "s = Mul(m, bias)",
        "n = Add(m, bias)  s = Mul(n, factor)",
        "s = Div(factor, m)",
    ],
)
def test_other_scores_are_kept(check: Check, scores: str) -> None:
    layers = layers_of(check, SWIN, SWIN.graph(" ".join(UNIT), scores))
    assert "Softmax" in {layer.op for layer in layers}


def test_factors_before_the_norm_do_not_scale(check: Check) -> None:
    """A multiple of a vector has the same direction, but is compared with epsilon."""
    scaled = normalised("axes as an input", "qs", "qn")
    layers = layers_of(check, SWIN, SWIN.graph(f"qs = Mul(q, scale)  {scaled} {UNIT[1]}", "s = Identity(m)"))
    (layer,) = (layer for layer in layers if layer.op == "Attention")
    assert layer.attributes["scale"] == 1.0


class Block(nn.Module):
    """Swin v2's attention over windows of 4 × 4 pixels, between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 24, 1), nn.Conv2d(24, 5, 1)
        self.qkv, self.project = nn.Linear(24, 72), nn.Linear(24, 24)
        self.temperature = nn.Parameter(torch.rand(3, 1, 1) * 3)
        self.bias = nn.Parameter(torch.randn(3, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.first(x).permute(0, 2, 3, 1).reshape(2, 4, 2, 4, 24).transpose(1, 2).reshape(4, 16, 24)
        q, k, v = self.qkv(rows).reshape(4, 16, 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
        scores = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).transpose(-2, -1)
        weights = (scores * self.temperature.clamp(max=4.6).exp() + self.bias).softmax(-1)
        rows = self.project((weights @ v).transpose(1, 2).reshape(4, 16, 24))
        found: Tensor = self.last(rows.reshape(2, 2, 4, 4, 24).transpose(1, 2).reshape(1, 8, 8, 24).permute(0, 3, 1, 2))
        return found


@pytest.mark.parametrize("newer", [False, True])
def test_modules_of_torch_by_both_exporters(newer: bool) -> None:
    """The compiled network computes what ONNX Runtime does, and copies nothing but the windows."""
    torch.manual_seed(0)
    module, x = Block().eval(), torch.randn(1, 3, 8, 8)
    target = io.BytesIO()
    torch.onnx.export(module, (x,), target, dynamo=False, opset_version=17)  # type: ignore[arg-type]
    older = onnx.load_from_string(target.getvalue())
    model = export(module, (x,)) if newer else ir.from_proto(older)
    found = Counter(node.layer.op for node in layers_of_graph(optimize(model)))
    assert found["Attention"] == 1
    assert found["Rearrange"] == 2
    assert not found.keys() & {"Transpose", "Reduce", "Div", "Softmax"}
    with nns.compile(model, processors=f"cpu:{OWN_CORE}", tune=False) as session:
        (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    reference = onnxruntime.InferenceSession(older.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = reference.run(None, {reference.get_inputs()[0].name: x.numpy()})
    assert relative_error(result, wanted) < 1e-5
