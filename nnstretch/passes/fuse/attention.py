"""Attention: MatMul, Softmax and MatMul become one layer that keeps no scores.

The scores of head h are scale · q kᵀ, times a constant of the head, plus constants or tensors that broadcast (position biases,
masks). Queries and keys of a head may be divided by their norms (cosine attention); the layer does this itself. Exporters write
the heads by reshapes, transpositions, splits and slices of one tensor or of three. This pass does not match their forms: it
follows the queries, keys and values up to the tensor that holds their elements, and computes which element each is. If the
heads turn out to be ranges of channels of the same tokens, the layer reads these channels; if they are channels in another
order (heads that hold query, key and value beside each other), the columns of the product that makes them are reordered.
If heads are computed one by one, as by rotary position embeddings or layer normalisation of queries and keys, or are ranges of
tokens (cross-covariance), every head becomes an image of its own. Whatever else it finds, such as a convolution between the
heads, it leaves as it is.

Layers of this pass read tensors B,L,C; `nnstretch.passes.tokens.views` makes them read N,C,W,L where that saves transpositions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from nnstretch.graph.layer import Attribute
from nnstretch.passes.fuse.head_channels import (
    MOST_ELEMENTS,
    Selection,
    in_ranges,
    scaled_input,
    selection_of,
    tokens_of,
)
from nnstretch.passes.fuse.unit_vectors import unit_vectors
from nnstretch.passes.rewriting import (
    Lowerings,
    argument,
    become,
    constant,
    float_initializer,
    float_shape,
    graph_of,
    insert,
    integers,
    is_canonical,
    is_onnx,
    producer_of,
    sole_use,
)

_MOST_ADDENDS = 2
"""Biases of a layer."""
_MOST_CHANNELS = 4096
"""Channels of a head: kernels of attention take no more, those that multiply matrices do."""

_COPIED = 2
"""Least ratio of scores to elements of keys from which on a transposed copy of the keys costs less than the scores' traffic."""


@dataclass(frozen=True)
class Scores:
    """What Softmax reads.

    Attributes:
        product: the MatMul of queries and keys.
        factor: by which it is multiplied.
        of_heads: constants by which each matrix of it is multiplied, too, and the shape to which they broadcast.
        addends: tensors that are added, and the shape to which they broadcast.
    """

    product: ir.Node
    factor: float
    of_heads: tuple[tuple[np.ndarray, tuple[int, ...]], ...]
    addends: tuple[tuple[ir.Value | np.ndarray, tuple[int, ...]], ...]


@dataclass(frozen=True)
class WeightedSum:
    """A product of Softmax(scores) and values.

    Attributes:
        scores: what Softmax reads.
        shape: of the scores, B,H,L,S; B counts all axes before the heads as one.
        swapped: whether the product is that of transposed values and transposed weights.
    """

    scores: Scores
    shape: tuple[int, int, int, int]
    swapped: bool


def fuse_attention(node: ir.Node) -> bool:
    """A MatMul of Softmax(scores) and values, …,H,L,S by …,H,S,E, becomes Attention of heads that are channels of tokens.

    The axes … are the images.
    """
    found = _weighted_sum(node)
    if found is None:
        return False
    scores, whole, swapped = found.scores, found.shape, found.swapped
    operands = _queries_and_keys(scores.product)
    values = selection_of(node.inputs[0 if swapped else 1], (0, 3, 1, 2) if swapped else (0, 2, 1, 3))
    if operands is None or values is None or values.factor != 1.0:
        return False
    queries, keys = operands
    depth = (float_shape(scores.product.inputs[0]) or (0,))[-1]
    groups, width = len(keys.channels) // depth, (float_shape(node.outputs[0]) or (0,))[-2 if swapped else -1]
    channels = len(queries.channels), len(values.channels)
    if (
        channels != (whole[1] * depth, groups * width)
        or groups not in (1, whole[1])
        or max(depth, width) > _MOST_CHANNELS
    ):
        return False
    batch, heads, rows, columns = whole
    sizes = (rows, columns, columns)
    if any(s.tokens != batch * size for s, size in zip((queries, keys, values), sizes, strict=True)):
        return False  # an operand is broadcast to the images of another
    addends, factors = _addends(scores, whole), _factors(scores, whole)
    selections = in_ranges(node, (queries, keys, values))
    if addends is None or factors is None or selections is None:
        return False
    tokens = [tokens_of(node, s, batch, size) for s, size in zip(selections, sizes, strict=True)]
    biases = [float_initializer(node, "bias", a) if isinstance(a, np.ndarray) else a for a in addends]
    attributes = _attributes(heads, groups, scores.factor * queries.factor * keys.factor, queries.epsilon)
    inputs = _inputs(node, tokens, biases, factors)
    result = insert(node, "Attention", inputs, (batch, rows, heads * width), attributes)
    split = insert(node, "Reshape", (result,), (batch, rows, heads, width))
    order = (0, 2, 3, 1) if swapped else (0, 2, 1, 3)
    if len(float_shape(node.outputs[0]) or ()) == 4:
        return become(node, "Transpose", (split,), {"perm": order})
    moved = tuple((batch, rows, heads, width)[axis] for axis in order)
    return become(node, "Reshape", (insert(node, "Transpose", (split,), moved, {"perm": order}),))


def fuse_heads(node: ir.Node) -> bool:
    """The same of heads that are no channels of tokens: each becomes an image.

    For graphs whose tokens are pixels already (`nnstretch.passes.tokens`): what makes the heads keeps its form.
    """
    found = _weighted_sum(node)
    if found is None:
        return False
    scores, (batch, heads, rows, _) = found.scores, found.shape
    images = batch * heads
    operands = (*scores.product.inputs[:2], node.inputs[1])
    shapes = [float_shape(operand) or () for operand in operands]
    outer = (float_shape(scores.product.outputs[0]) or ())[:-2]
    if any(shape[:-2] != outer for shape in shapes) or any(constant(operand) is not None for operand in operands):
        return False
    (queries, of_queries), (keys, of_keys) = map(_without_factor, operands[:2])
    depth, width = shapes[0][-1], shapes[2][-1]
    if max(depth, width) > _MOST_CHANNELS:
        return False
    queries, keys, epsilon = _without_norms(queries, keys)
    # MatMul reads a transposed matrix as fast as another; Attention needs a copy of it.
    if found.swapped or _is_transposed(queries) or _is_transposed(operands[2]):
        return False
    if not _is_transposed(keys) and _COPIED * depth > rows:
        return False
    addends, factors = _addends(scores, found.shape), _factors(scores, found.shape)
    if addends is None or factors is None:
        return False
    biases = [_bias_of_images(node, addend, batch, heads) for addend in addends]
    if None in biases:
        return False
    tensors = (_images(node, queries, images), _rows(node, keys, images), _images(node, operands[2], images))
    factors = factors if factors.size == 1 else np.broadcast_to(factors, (batch, heads, 1, 1)).reshape(images, 1, 1, 1)
    attributes = _attributes(1, 1, scores.factor * of_queries * of_keys, epsilon)
    inputs = _inputs(node, tensors, biases, factors)
    return become(node, "Reshape", (insert(node, "Attention", inputs, (images, rows, width), attributes),))


def _attributes(heads: int, groups: int, scale: float, epsilon: float) -> dict[str, Attribute]:
    """Attributes of a layer; `epsilon` only where queries and keys are divided by their norms."""
    attributes: dict[str, Attribute] = {"heads": heads, "groups": groups, "scale": scale}
    return attributes | {"epsilon": epsilon} if epsilon else attributes


def _inputs(
    node: ir.Node, tensors: Sequence[ir.Value | None], biases: Sequence[ir.Value | None], factors: np.ndarray
) -> list[ir.Value | None]:
    """Inputs of a layer, with `factors` only where not all are 1."""
    inputs = [*tensors, *biases]
    if (factors == 1.0).all():
        return inputs
    return [*inputs, *(None,) * (_MOST_ADDENDS - len(biases)), float_initializer(node, "factor", factors)]


def _queries_and_keys(product: ir.Node) -> tuple[Selection, Selection] | None:
    """Where the operands of the product of queries and keys come from; their norms are part of both or of none."""
    for normalised in (True, False):
        queries = selection_of(product.inputs[0], (0, 2, 1, 3), normalised=normalised)
        keys = selection_of(product.inputs[1], (0, 3, 1, 2), normalised=normalised)
        if queries is not None and keys is not None and queries.epsilon == keys.epsilon:
            return queries, keys
    return None


def _without_norms(queries: ir.Value | None, keys: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None, float]:
    """Queries …,L,D and transposed rows of keys whose norms divide both, with the least divisor; else the same and 0."""
    transposed = producer_of(keys)
    rows = transposed.inputs[0] if transposed is not None and _is_transposed(keys) else None
    found = unit_vectors(producer_of(queries)), unit_vectors(producer_of(rows))
    last = (len(float_shape(queries) or ()) - 1,)
    if (
        transposed is None
        or found[0] is None
        or found[1] is None
        or found[0].axes != last
        or found[1].axes != last
        or found[0].epsilon != found[1].epsilon
    ):
        return queries, keys, 0.0
    order = integers(transposed, "perm", ())
    plain = insert(transposed, "Transpose", (found[1].source,), float_shape(keys) or (), {"perm": order})
    return found[0].source, plain, found[0].epsilon


def _weighted_sum(node: ir.Node) -> WeightedSum | None:
    """What a MatMul adds up, if that is attention's."""
    swapped = _is_swapped(node)
    softmax = producer_of(node.inputs[1 if swapped else 0])
    if swapped and softmax is not None:
        softmax = producer_of(softmax.inputs[0])
    if not _is_row_softmax(softmax) or not sole_use(softmax.outputs[0]):
        return None
    scores, shape, result = _scores(softmax.inputs[0]), float_shape(softmax.outputs[0]), float_shape(node.outputs[0])
    if scores is None or shape is None or result is None or len(shape) < 3 or len(result) != len(shape):
        return None
    *outer, heads, rows, columns = shape
    return WeightedSum(scores, (math.prod(outer), heads, rows, columns), swapped)


def _is_transposed(value: ir.Value | None) -> bool:
    """Whether the matrices that are the last two axes of `value` are transposes of others."""
    producer = producer_of(value)
    return is_canonical(producer, "Transpose") and _swaps_last_two(integers(producer, "perm", ()))


def _without_factor(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """What `value` is a multiple of, and the factor."""
    factor = 1.0
    while (scaled := scaled_input(producer_of(value))) is not None:
        value, factor = scaled[0], factor * scaled[1]
    return value, factor


def _images(node: ir.Node, value: ir.Value | None, images: int) -> ir.Value | None:
    """A tensor with all axes before the last two as one."""
    shape = float_shape(value) or ()
    flat = (images, *shape[-2:])
    return insert(node, "Reshape", (value,), flat) if shape != flat else value


def _rows(node: ir.Node, keys: ir.Value | None, images: int) -> ir.Value | None:
    """The transposes of keys …,D,S, as one tensor of S,D for each image."""
    producer = producer_of(keys)
    if producer is not None and _is_transposed(keys):
        return _images(node, producer.inputs[0], images)
    flat = _images(node, keys, images)
    _, depth, columns = float_shape(flat) or (0, 0, 0)
    return insert(node, "Transpose", (flat,), (images, columns, depth), {"perm": (0, 2, 1)})


def _bias_of_images(node: ir.Node, addend: ir.Value | np.ndarray, batch: int, heads: int) -> ir.Value | None:
    """A bias that broadcasts to B,H,L,S as one that broadcasts to B·H,1,L,S; None if that takes a copy for each image."""
    shape = addend.shape if isinstance(addend, np.ndarray) else float_shape(addend) or ()
    flat = (shape[0] * shape[1], 1, *shape[2:])
    if flat[0] not in (1, batch * heads):
        return None
    if isinstance(addend, np.ndarray):
        return float_initializer(node, "bias", addend.reshape(flat))
    return insert(node, "Reshape", (addend,), flat) if shape != flat else addend


def _is_swapped(node: ir.Node) -> bool:
    """Whether the product is that of transposed values and transposed weights: (B,H,E,S by B,H,S,L)."""
    producer = producer_of(argument(node, 1))
    if not is_canonical(producer, "Transpose") or not sole_use(producer.outputs[0]):
        return False
    order = integers(producer, "perm", ())
    return _swaps_last_two(order) and _is_row_softmax(producer_of(producer.inputs[0]))


def _swaps_last_two(order: Sequence[int]) -> bool:
    """Whether a permutation transposes matrices, and moves no other axis."""
    rank = len(order)
    return rank > 2 and tuple(order) == (*range(rank - 2), rank - 1, rank - 2)


def _is_row_softmax(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Whether it is a Softmax over the last axis."""
    if not is_onnx(node, "Softmax"):
        return False
    shape = float_shape(node.outputs[0])
    if not shape:
        return False
    opset = graph_of(node).opset_imports.get("", 0)
    return node.attributes.get_int("axis", -1 if opset >= 13 else 1) % len(shape) == len(shape) - 1


def _scaled_by_head(node: ir.Node | None) -> tuple[ir.Value, np.ndarray] | None:
    """The input and the factors of a multiplication by a constant for each matrix of the last two axes, or division by it."""
    if not is_onnx(node, "Mul", "Div") or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if node.op_type == "Mul" and constant(left) is not None:
        left, right = right, left
    factors, shape = constant(right), float_shape(left)
    if left is None or factors is None or constant(left) is not None or shape != float_shape(node.outputs[0]):
        return None
    if any(size > 1 for size in factors.shape[-2:]) or (node.op_type == "Div" and not factors.all()):
        return None
    return left, factors if node.op_type == "Mul" else np.float32(1.0) / factors


def _scores(value: ir.Value | None) -> Scores | None:
    """The product of queries and keys that `value` is, up to factors, sums and reshapes."""
    factor = 1.0
    of_heads: list[tuple[np.ndarray, tuple[int, ...]]] = []
    addends: list[tuple[ir.Value | np.ndarray, tuple[int, ...]]] = []
    while True:
        node, shape = producer_of(value), float_shape(value)
        if node is None or shape is None or not sole_use(value):
            return None
        if is_onnx(node, "MatMul"):
            return Scores(node, factor, tuple(of_heads), tuple(addends))
        scaled, by_head = scaled_input(node), _scaled_by_head(node)
        if scaled is not None:
            value, factor = scaled[0], factor * scaled[1]
        elif by_head is not None:
            value = by_head[0]
            of_heads.append((by_head[1], shape))
        elif is_canonical(node, "Reshape"):
            value = node.inputs[0]
        elif is_onnx(node, "Add") and not of_heads:
            found = [source for source in node.inputs if source is not None and _leads_to_product(source, shape)]
            if not found:
                return None
            value = found[0]
            other = node.inputs[1 if node.inputs[0] is value else 0]
            array = constant(other)
            if array is not None:
                addends.append((array * np.float32(factor), shape))
            elif other is not None and factor == 1.0:
                addends.append((other, shape))
            else:
                return None
        else:
            return None


def _leads_to_product(value: ir.Value, shape: tuple[int, ...]) -> bool:
    """Whether `value` has this shape and is computed by a MatMul, up to factors, sums and reshapes."""
    if float_shape(value) != shape:
        return False
    for _ in range(8):
        node = producer_of(value)
        if node is None or is_onnx(node, "MatMul"):
            return node is not None and constant(node.inputs[1]) is None and constant(node.inputs[0]) is None
        scaled = scaled_input(node) or _scaled_by_head(node)
        if scaled is not None:
            value = scaled[0]
        elif is_canonical(node, "Reshape") or is_onnx(node, "Add"):
            inner = [source for source in node.inputs if source is not None and constant(source) is None]
            if len(inner) != 1:
                return False
            value = inner[0]
        else:
            return False
    return False


def _factors(scores: Scores, shape: tuple[int, ...]) -> np.ndarray | None:
    """Factors beside `scores.factor` that broadcast to the axes B,H,1,1 of scores of `shape`; None if there are others."""
    factors = np.ones((1, 1, 1, 1), np.float32)
    for some, whole in scores.of_heads:
        if whole[-2:] != shape[-2:] or some.ndim > len(whole):
            return None
        factors = factors * np.broadcast_to(some, (*whole[:-2], 1, 1)).reshape(*shape[:2], 1, 1)
    for axis in (0, 1):
        first = factors.take([0], axis)
        factors = first if (factors == first).all() else factors
    return factors


def _addends(scores: Scores, shape: tuple[int, ...]) -> list[ir.Value | np.ndarray] | None:
    """Up to two tensors of four axes that broadcast to the scores `shape` B,H,L,S; None if there are more or others."""
    arrays: list[np.ndarray] = []
    tensors: list[ir.Value | np.ndarray] = []
    for addend, whole in scores.addends:
        if isinstance(addend, np.ndarray):
            if math.prod(shape) > MOST_ELEMENTS or addend.ndim > len(whole):
                return None
            spread = np.broadcast_to(addend, whole).reshape(shape)
            for axis in range(4):
                some = spread.take([0], axis)
                spread = some if (spread == some).all() else spread
            arrays.append(spread)
            continue
        own = float_shape(addend)
        if own is None or len(own) > 4 or whole != shape or constant(addend) is not None or own[-1] != shape[-1]:
            return None
        if len(own) < 4:
            addend = insert(scores.product, "Reshape", (addend,), (*(1,) * (4 - len(own)), *own))
        tensors.append(addend)
    by_shape: dict[tuple[int, ...], np.ndarray] = {}
    for array in arrays:
        if array.shape[-1] != shape[-1]:
            array = np.broadcast_to(array, (*array.shape[:-1], shape[-1]))
        by_shape[array.shape] = by_shape[array.shape] + array if array.shape in by_shape else array
    found = [*by_shape.values(), *tensors]
    while len(found) > _MOST_ADDENDS and isinstance(found[1], np.ndarray) and isinstance(found[0], np.ndarray):
        found[:2] = [found[0] + found[1]]
    return found if len(found) <= _MOST_ADDENDS else None


LOWERINGS: Lowerings = {"MatMul": (fuse_attention,)}
OF_HEADS: Lowerings = {"MatMul": (fuse_heads,)}
"""What is tried once tokens are pixels."""
