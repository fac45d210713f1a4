"""Einsum of two tensors as a product of matrices, so that whatever is known of MatMul, attention above all, holds for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from nnstretch.passes.rewriting import (
    constant,
    float_initializer,
    float_shape,
    insert,
    reshaped,
    set_attributes,
    set_inputs,
)

_Axes = tuple[str, ...]
"""Labels of axes: a letter each, or "0", "1", … for those of an ellipsis, counted from the last one."""


@dataclass(frozen=True)
class _Contraction:
    """What happens to each axis, by its label.

    Attributes:
        images: axes of both operands and the result.
        rows: of the left operand and the result.
        columns: of the right operand and the result.
        summed: of both operands alone.
    """

    images: _Axes
    rows: _Axes
    columns: _Axes
    summed: _Axes


def expand_einsum(node: ir.Node) -> bool:
    """Einsum of two float32 tensors becomes Transpose, Reshape and MatMul, or Mul where one has all axes; all still of ONNX.

    Left as they are: diagonals, sums of axes that one operand has alone, and axes of length 1 that broadcast.
    """
    if len(node.inputs) != 2:
        return False
    shapes, result = [float_shape(value) for value in node.inputs], float_shape(node.outputs[0])
    if shapes[0] is None or shapes[1] is None or result is None or 0 in result:
        return False
    if all(constant(value) is not None for value in node.inputs):
        return False
    axes = _axes(node.attributes.get_string("equation", ""), (len(shapes[0]), len(shapes[1])))
    if axes is None:
        return False
    left, right, out = axes
    if len(out) != len(result):
        return False
    lengths = dict(zip(out, result, strict=True))
    for names, shape in ((left, shapes[0]), (right, shapes[1])):
        if any(lengths.setdefault(name, length) != length for name, length in zip(names, shape, strict=True)):
            return False
    kinds = _contraction(left, right, out)
    if kinds is None:
        return False
    product = _product(node, kinds, (left, right), lengths)
    found = (*kinds.images, *kinds.rows, *kinds.columns)
    node.op_type = "Transpose"
    node.attributes.clear()
    set_attributes(node, {"perm": tuple(found.index(name) for name in out)})
    set_inputs(node, (product,))
    return True


def _axes(equation: str, ranks: tuple[int, int]) -> tuple[_Axes, _Axes, _Axes] | None:
    """Labels of both operands and of the result; None if an operand or the result has a label twice."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if len(operands) != 2:
        return None
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(operands, ranks, strict=True)]
    left, right = (_labels(term, count) for term, count in zip(operands, hidden, strict=True))
    if arrow:
        out = _labels(result, max(hidden))
    else:
        once = sorted(name for name in {*left, *right} if name.isalpha() and (left + right).count(name) == 1)
        out = (*_labels("...", max(hidden)), *once)
    fits = (len(left), len(right)) == ranks and all(len({*names}) == len(names) for names in (left, right, out))
    return (left, right, out) if fits else None


def _labels(term: str, hidden: int) -> _Axes:
    before, ellipsis, after = term.partition("...")
    return (*before, *(map(str, reversed(range(hidden))) if ellipsis else ()), *after)


def _contraction(left: _Axes, right: _Axes, out: _Axes) -> _Contraction | None:
    if any((name in left) + (name in right) + (name in out) < 2 for name in {*left, *right, *out}):
        return None
    return _Contraction(
        images=tuple(name for name in left if name in right and name in out),
        rows=tuple(name for name in left if name not in right),
        columns=tuple(name for name in right if name not in left),
        summed=tuple(name for name in left if name not in out),
    )


def _product(node: ir.Node, kinds: _Contraction, axes: tuple[_Axes, _Axes], lengths: Mapping[str, int]) -> ir.Value:
    """The result with its axes in the order images, rows, columns."""

    def sizes(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(lengths[name] for name in names)

    images, rows, columns, summed = map(sizes, (kinds.images, kinds.rows, kinds.columns, kinds.summed))
    orders = (kinds.images + kinds.rows + kinds.summed, kinds.images + kinds.summed + kinds.columns)
    if summed or (rows and columns):
        op_type = "MatMul"
        inner = math.prod(summed)
        # Without images, rows of several axes are images of the product, which no reshape need merge.
        folded = rows if rows and not images else (math.prod(rows),)
        forms = ((*images, *folded, inner), (*images, inner, math.prod(columns)))
        made = (*images, *folded, math.prod(columns))
    else:
        op_type = "Mul"
        forms = (images + rows + (1,) * len(columns), images + (1,) * len(rows) + columns)
        made = images + rows + columns
    operands = [
        _arranged(node, value, [found.index(name) for name in order], sizes(order), form)
        for value, found, order, form in zip(node.inputs, axes, orders, forms, strict=True)
    ]
    product = insert(node, op_type, operands, made, domain="")
    return reshaped(node, product, images + rows + columns)


def _arranged(
    node: ir.Node, value: ir.Value | None, order: Sequence[int], shape: tuple[int, ...], form: tuple[int, ...]
) -> ir.Value:
    """An operand with its axes in another order, whose lengths are `shape` then, and reshaped to `form`."""
    assert value is not None
    weights = constant(value)
    if weights is not None:
        return float_initializer(node, "operand", np.ascontiguousarray(weights.transpose(order)).reshape(form))
    if list(order) != sorted(order):
        value = insert(node, "Transpose", (value,), shape, {"perm": tuple(order)}, domain="")
    return reshaped(node, value, form)
