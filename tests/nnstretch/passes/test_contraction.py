"""Einsum becomes a product of matrices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kits.graphs.textual_graphs import Check, model_of, normal, operators
from tests.kits.hypothesis_examples import examples
from tests.nnstretch.conftest import fuse_and_compare

Shape = tuple[int, ...]
LENGTHS = {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6, "k": 7}


def einsum_model(
    equation: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], result: tuple[int, ...], *, fixed: bool
) -> ir.Model:
    """y = Einsum(x, z), z a weight if it is fixed."""
    x, z, y = (",".join(map(str, shape)) for shape in (*shapes, result))
    ends = f"float[{x}] x" if fixed else f"float[{x}] x, float[{z}] z"
    text = f'g ({ends}) => (float[{y}] y) {{ y = Einsum<equation="{equation}">(x, z) }}'
    return model_of(text, {"z": normal(*shapes[1])} if fixed else {})


def shape_of(labels: str) -> tuple[int, ...]:
    return tuple(LENGTHS[name] for name in labels)


@pytest.mark.parametrize("fixed", [False, True], ids=["two inputs", "a weight"])
@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("bhid,bhjd->bhij", {"MatMul"}),
        ("bhij,bhjd->bhid", {"MatMul"}),
        ("bihd,bjhd->bhij", {"MatMul", "Transpose"}),
        ("bid,dk->bik", {"MatMul", "Dense", "Reshape"}),
        ("bihd,kdh->bik", {"MatMul", "Dense", "Transpose", "Reshape"}),
        ("bhijd,ikd->bhijk", {"MatMul", "Transpose", "Reshape"}),
        ("bhi,bhi->bhi", {"Mul"}),
        ("bi,bk->bik", {"MatMul", "Reshape"}),
        ("bhi,bh->bhi", {"Mul", "Reshape"}),
        ("bhi,bhi->bh", {"MatMul", "Reshape"}),
        ("bhid,bhjd", {"MatMul", "Dense", "Transpose", "Reshape"}),
    ],
)
def test_two_operands(check: Check, equation: str, expected: set[str], *, fixed: bool) -> None:
    terms, _, out = equation.partition("->")
    left, right = terms.split(",")
    out = out or "".join(sorted(name for name in {*left, *right} if (left + right).count(name) == 1))
    nodes = check(einsum_model(equation, (shape_of(left), shape_of(right)), shape_of(out), fixed=fixed))
    assert {node.layer.op for node in nodes} <= expected


def test_attention(check: Check) -> None:
    """Products by equations, between which a Softmax is, are attention; the axes of an ellipsis are images."""
    heads = {"heads": np.array([2, 5, 3, 6]), "tokens": np.array([2, 5, 18])}
    model = model_of(
        """g (float[2,5,18] a, float[2,5,18] b, float[2,5,18] c) => (float[2,5,18] y) {
            q = Reshape(a, heads) k = Reshape(b, heads) v = Reshape(c, heads)
            s = Einsum<equation="bihd,bjhd->bhij">(q, k)
            p = Softmax<axis=-1>(s)
            r = Einsum<equation="bhij,bjhd->bihd">(p, v)
            y = Reshape(r, tokens)
        }""",
        heads,
    )
    assert {node.layer.op for node in check(model)} == {"Attention", "Reshape", "Transpose"}


def test_an_ellipsis(check: Check) -> None:
    nodes = check(
        einsum_model("...id,...jd->...ij", (shape_of("bhid"), shape_of("bhjd")), shape_of("bhij"), fixed=False)
    )
    assert operators(nodes) == ["MatMul+none"]


@pytest.mark.parametrize(
    ("equation", "shapes", "result"),
    [
        ("bii,bk->bik", ((2, 4, 4), (2, 7)), (2, 4, 7)),  # a diagonal
        ("bij,bk->bk", ((2, 4, 5), (2, 7)), (2, 7)),  # a sum of one operand's axes
        ("...i,...i->...", ((1, 4), (3, 4)), (3,)),  # axes of length 1
    ],
)
def test_others_stay(check: Check, equation: str, shapes: tuple[Shape, Shape], result: Shape) -> None:
    nodes = check(einsum_model(equation, shapes, result, fixed=False))
    assert [node.layer.op for node in nodes] == ["onnx:Einsum"]


@st.composite
def equations(draw: st.DrawFn) -> str:
    kinds = {name: draw(st.sampled_from(["image", "row", "column", "summed"])) for name in LENGTHS}
    of = {
        "left": [name for name in LENGTHS if kinds[name] != "column"],
        "right": [name for name in LENGTHS if kinds[name] != "row"],
        "out": [name for name in LENGTHS if kinds[name] != "summed"],
    }
    left, right, out = ("".join(draw(st.permutations(names))) for names in of.values())
    return f"{left},{right}->{out}"


@given(equations(), st.booleans())
@settings(max_examples=examples(60))
def test_any_equation(equation: str, fixed: bool) -> None:
    terms, _, out = equation.partition("->")
    left, right = terms.split(",")
    if not (left and right and out):
        return
    model = einsum_model(equation, (shape_of(left), shape_of(right)), shape_of(out), fixed=fixed)
    assert not any(node.layer.op == "onnx:Einsum" for node in fuse_and_compare(model))
