"""Attention of heads that are computed one by one, each as an image of its own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kits.graphs.textual_graphs import Check, model_of, normal


@pytest.mark.parametrize(
    ("batch", "bias", "scores", "result"),
    [
        (1, None, "s = MatMul(q, k)", "MatMul(p, v)"),
        (2, None, "n = Mul(q, scale) s = MatMul(n, k)", "MatMul(p, v)"),
        (2, None, "n = Mul(scale, k) m = MatMul(q, n) s = Mul(m, scale)", "MatMul(p, v)"),
        (1, (1, 3, 5, 7), "m = MatMul(q, k) s = Add(m, bias)", "MatMul(p, v)"),
        (2, (5, 7), "m = MatMul(q, k) n = Mul(m, scale) s = Add(bias, n)", "MatMul(p, v)"),
        (2, (2, 3, 1, 7), "m = MatMul(q, k) s = Add(m, bias)", "MatMul(p, v)"),
        (1, None, "s = MatMul(q, k)", "MatMul(t, u)"),
    ],
)
def test_attention_of_heads_that_are_computed_one_by_one(
    check: Check, batch: int, bias: tuple[int, ...] | None, scores: str, result: str
) -> None:
    """Rotary position embeddings and normalisations leave queries and keys that are no channels of tokens."""
    turned = "u = Transpose<perm=[0,1,3,2]>(v) t = Transpose<perm=[0,1,3,2]>(p)" if "t, u" in result else ""
    result = result.replace("t, u", "u, t")
    shape = f"{batch},3,6,5" if turned else f"{batch},3,5,6"
    text = f"""g (float[{batch},3,5,4] a, float[{batch},3,7,4] b, float[{batch},3,7,6] c) => (float[{shape}] y) {{
        q = Mul(a, cos)
        e = LayerNormalization(b, gamma)
        k = Transpose<perm=[0,1,3,2]>(e)
        v = Relu(c)
        {scores}
        p = Softmax(s)
        {turned}
        y = {result}
    }}"""
    weights = {"cos": normal(5, 4), "gamma": normal(4), "scale": np.array(0.7, np.float32)}
    weights |= {} if bias is None else {"bias": normal(*bias)}
    found = {node.layer.op for node in check(model_of(text, weights))}
    assert "Attention" in found
    assert not found & {"MatMul", "Softmax"}


@pytest.mark.parametrize(("shape", "bias"), [("2,3,5,4", (1, 3, 5, 7)), ("1,1,5,4", None)])
def test_attention_of_other_heads_is_kept(check: Check, shape: str, bias: tuple[int, ...] | None) -> None:
    """A bias of every head in each of several images, and queries of one head for several keys."""
    batch = shape[0]
    text = f"""g (float[{shape}] a, float[{batch},3,7,4] b, float[{batch},3,7,6] c) => (float[{batch},3,5,6] y) {{
        q = Mul(a, cos)
        k = Transpose<perm=[0,1,3,2]>(b)
        m = MatMul(q, k)
        {"s = Add(m, bias)" if bias else "s = Relu(m)"}
        p = Softmax(s)
        y = MatMul(p, c)
    }}"""
    weights = {"cos": normal(5, 4)} | ({} if bias is None else {"bias": normal(*bias)})
    assert "Softmax" in {node.layer.op for node in check(model_of(text, weights))}
