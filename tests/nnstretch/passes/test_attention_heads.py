"""Attention of heads that are computed one by one, each as an image of its own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kits.graphs.textual_graphs import Check, model_of, normal

_WEIGHTS = {"cos": normal(12, 4), "gamma": normal(4), "scale": np.array(0.7, np.float32)}


@pytest.mark.parametrize(
    ("batch", "bias", "scores"),
    [
        (1, None, "s = MatMul(q, k)"),
        (2, None, "n = Mul(q, scale) s = MatMul(n, k)"),
        (2, None, "n = Mul(scale, k) m = MatMul(q, n) s = Mul(m, scale)"),
        (1, (1, 3, 12, 7), "m = MatMul(q, k) s = Add(m, bias)"),
        (2, (12, 7), "m = MatMul(q, k) n = Mul(m, scale) s = Add(bias, n)"),
        (2, (2, 3, 1, 7), "m = MatMul(q, k) s = Add(m, bias)"),
        (2, None, "s = MatMul(q, copied)"),
    ],
)
def test_heads_are_images(check: Check, batch: int, bias: tuple[int, ...] | None, scores: str) -> None:
    """Rotary position embeddings and normalisations leave queries and keys that are no channels of tokens."""
    text = f"""g (float[{batch},3,12,4] a, float[{batch},3,7,4] b, float[{batch},3,7,6] c, float[{batch},3,4,7] d)
            => (float[{batch},3,12,6] y, float[{batch},3,4,7] copied) {{
        q = Mul(a, cos)
        e = LayerNormalization(b, gamma)
        k = Transpose<perm=[0,1,3,2]>(e)
        copied = Sigmoid(d)
        v = Relu(c)
        {scores}
        p = Softmax(s)
        y = MatMul(p, v)
    }}"""
    weights = _WEIGHTS | ({} if bias is None else {"bias": normal(*bias)})
    found = [node.layer.op for node in check(model_of(text, weights))]
    assert found.count("Attention") == 1
    assert not {"MatMul", "Softmax"}.intersection(found)
    assert found.count("Transpose") == ("copied" in scores)


@pytest.mark.parametrize(
    ("queries", "scores", "result"),
    [
        ("2,3,12,4", "m = MatMul(q, k) s = Add(m, bias)", "MatMul(p, c)"),  # a bias of every head, in two images
        ("2,1,12,4", "s = MatMul(q, k)", "MatMul(p, c)"),  # one head of queries for all keys
        ("2,3,12,4", "m = MatMul(q, k) s = Relu(m)", "MatMul(p, c)"),
        ("2,3,12,4", "s = MatMul(q, k)", "MatMul(u, t)"),  # transposed values and weights
        ("2,3,12,4", "t = Transpose<perm=[0,1,3,2]>(f) s = MatMul(t, k)", "MatMul(p, c)"),  # MatMul reads f as it is
        (
            "2,3,12,4",
            "i = Slice(q, begin, end, axis) s = MatMul(i, d)",
            "MatMul(p, c)",
        ),  # a copy of d is dear for few queries
    ],
)
def test_other_products_are_kept(check: Check, queries: str, scores: str, result: str) -> None:
    turned = "u = Transpose<perm=[0,1,3,2]>(c) t = Transpose<perm=[0,1,3,2]>(p)" if "u, t" in result else ""
    rows = 5 if "Slice" in scores else 12
    shape = f"2,3,6,{rows}" if turned else f"2,3,{rows},6"
    text = f"""g (float[{queries}] a, float[2,3,7,4] b, float[2,3,7,6] c, float[2,3,4,7] d, float[2,3,4,12] f)
            => (float[{shape}] y) {{
        q = Mul(a, cos)
        k = Transpose<perm=[0,1,3,2]>(b)
        {scores}
        p = Softmax(s)
        {turned}
        y = {result}
    }}"""
    weights = _WEIGHTS | {
        "bias": normal(1, 3, 12, 7),
        "begin": np.array([0]),
        "end": np.array([5]),
        "axis": np.array([2]),
    }
    assert "Softmax" in {node.layer.op for node in check(model_of(text, weights))}


_TOKENS = "a = Reshape(q, of_q) b = Transpose<perm=[0,2,1,3]>(a) c = Reshape(m, of_m) d = Transpose<perm=[0,2,3,1]>(c)"


@pytest.mark.parametrize(
    ("inputs", "of_q", "of_m", "values", "result"),
    [
        ("float[1,16,32] q, float[4,20,32] m", (1, 16, 4, 8), (4, 20, 4, 8), "Transpose<perm=[0,2,1,3]>(c)", "4,4,16,8"),
        ("float[4,16,32] q, float[1,20,32] m", (4, 16, 4, 8), (1, 20, 4, 8), "Transpose<perm=[0,2,1,3]>(c)", "4,4,16,8"),
        (
            "float[1,16,32] q, float[1,20,32] m, float[1,1,20,8] n",
            (1, 16, 4, 8), (1, 20, 4, 8), "Relu(n)", "1,4,16,8",
        ),
        (
            "float[1,16,32] q, float[1,20,8] m, float[1,4,20,8] n",
            (1, 16, 4, 8), (1, 20, 1, 8), "Relu(n)", "1,4,16,8",
        ),
    ],
)  # fmt: skip
def test_operands_that_broadcast_to_others(
    check: Check, inputs: str, of_q: tuple[int, ...], of_m: tuple[int, ...], values: str, result: str
) -> None:
    """Images of queries for all memories and the other way round; values and keys of unlike numbers of heads."""
    text = f"""g ({inputs}) => (float[{result}] y) {{
        {_TOKENS}
        v = {values}
        s = MatMul(b, d)
        p = Softmax(s)
        y = MatMul(p, v)
    }}"""
    check(model_of(text, {"of_q": np.array(of_q), "of_m": np.array(of_m)}))
