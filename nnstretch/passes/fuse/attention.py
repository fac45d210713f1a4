"""Attention: MatMul, Softmax and MatMul become one layer that keeps no scores.

The scores of head h are scale · q kᵀ, plus constants or tensors that broadcast (position biases, masks). Exporters write the
heads by reshapes, transpositions, splits and slices of one tensor or of three. This pass does not match their forms: it
follows the queries, keys and values up to the tensor that holds their elements, and computes which element each is. If the
heads turn out to be ranges of channels of the same tokens, the layer reads these channels; if they are channels in another
order (heads that hold query, key and value beside each other), the columns of the product that makes them are reordered.
If heads are computed one by one, as by rotary position embeddings or normalisations of queries and keys, every head becomes an
image of its own. Whatever else it finds, such as a convolution between the heads, it leaves as it is.

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
    scalar,
    sole_use,
)

_MOST_ELEMENTS = 1 << 24
"""Elements up to which a tensor's origin and biases are computed."""


_COPIED = 2
"""Least ratio of scores to elements of keys from which on a transposed copy of the keys costs less than the scores' traffic."""


@dataclass(frozen=True)
class Selection:
    """Tokens B·L,C as channels of another tensor.

    Attributes:
        source: the tensor: its last axis are the channels, or its axis 1 if they come `first`.
        channels: the channel of `source` that each of the C channels is.
        first: whether the channels of `source` are on axis 1.
        factor: by which the elements are multiplied.
    """

    source: ir.Value
    channels: np.ndarray
    first: bool
    factor: float

    @property
    def is_range(self) -> bool:
        """Whether the channels are neighbours in order."""
        return bool((np.diff(self.channels) == 1).all())


@dataclass(frozen=True)
class Scores:
    """What Softmax reads.

    Attributes:
        product: the MatMul of queries and keys.
        factor: by which it is multiplied.
        addends: tensors that are added, and the shape to which they broadcast.
    """

    product: ir.Node
    factor: float
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
    queries = _selection(scores.product.inputs[0], (0, 2, 1, 3))
    keys = _selection(scores.product.inputs[1], (0, 3, 1, 2))
    values = _selection(node.inputs[0 if swapped else 1], (0, 3, 1, 2) if swapped else (0, 2, 1, 3))
    if queries is None or keys is None or values is None or values.factor != 1.0:
        return False
    depth = (float_shape(scores.product.inputs[0]) or (0,))[-1]
    groups = len(keys.channels) // depth
    if len(queries.channels) != whole[1] * depth or groups not in (1, whole[1]) or len(values.channels) % groups:
        return False
    addends = _addends(scores, whole)
    selections = _in_ranges(node, (queries, keys, values))
    if addends is None or selections is None:
        return False
    batch, heads, rows, columns = whole
    inputs = [_tokens(node, s, batch, size) for s, size in zip(selections, (rows, columns, columns), strict=True)]
    inputs += [float_initializer(node, "bias", a) if isinstance(a, np.ndarray) else a for a in addends]
    width = len(values.channels) // groups
    scale = scores.factor * queries.factor * keys.factor
    attributes: dict[str, Attribute] = {"heads": heads, "groups": groups, "scale": scale}
    tokens = insert(node, "Attention", inputs, (batch, rows, heads * width), attributes)
    split = insert(node, "Reshape", (tokens,), (batch, rows, heads, width))
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
    # MatMul reads a transposed matrix as fast as another; Attention needs a copy of it.
    if found.swapped or _is_transposed(queries) or _is_transposed(operands[2]):
        return False
    if not _is_transposed(keys) and _COPIED * depth > rows:
        return False
    addends = _addends(scores, found.shape)
    biases = [None] if addends is None else [_bias_of_images(node, addend, batch, heads) for addend in addends]
    if None in biases:
        return False
    inputs = (_images(node, queries, images), _rows(node, keys, images), _images(node, operands[2], images), *biases)
    attributes: dict[str, Attribute] = {"heads": 1, "groups": 1, "scale": scores.factor * of_queries * of_keys}
    return become(node, "Reshape", (insert(node, "Attention", inputs, (images, rows, width), attributes),))


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
    while (scaled := _scaled(producer_of(value))) is not None:
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


def _scaled(node: ir.Node | None) -> tuple[ir.Value, float] | None:
    """The input and the factor of a multiplication by one number, or division by it; None if `node` is neither."""
    if not is_onnx(node, "Mul", "Div") or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None:
        return None
    if node.op_type == "Mul" and scalar(left) is not None:
        left, right = right, left
    factor = scalar(right)
    if factor is None or scalar(left) is not None or float_shape(left) != float_shape(node.outputs[0]):
        return None
    if node.op_type == "Div":
        return None if factor == 0.0 else (left, 1.0 / factor)
    return left, factor


def _scores(value: ir.Value | None) -> Scores | None:
    """The product of queries and keys that `value` is, up to a factor, sums and reshapes."""
    factor = 1.0
    addends: list[tuple[ir.Value | np.ndarray, tuple[int, ...]]] = []
    while True:
        node, shape = producer_of(value), float_shape(value)
        if node is None or shape is None or not sole_use(value):
            return None
        if is_onnx(node, "MatMul"):
            return Scores(node, factor, tuple(addends))
        scaled = _scaled(node)
        if scaled is not None:
            value, factor = scaled[0], factor * scaled[1]
        elif is_canonical(node, "Reshape"):
            value = node.inputs[0]
        elif is_onnx(node, "Add"):
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
        scaled = _scaled(node)
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


def _addends(scores: Scores, shape: tuple[int, ...]) -> list[ir.Value | np.ndarray] | None:
    """Up to two tensors of four axes that broadcast to the scores `shape` B,H,L,S; None if there are more or others."""
    arrays: list[np.ndarray] = []
    tensors: list[ir.Value | np.ndarray] = []
    for addend, whole in scores.addends:
        if isinstance(addend, np.ndarray):
            if math.prod(shape) > _MOST_ELEMENTS or addend.ndim > len(whole):
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
    while len(found) > 2 and isinstance(found[1], np.ndarray) and isinstance(found[0], np.ndarray):
        found[:2] = [found[0] + found[1]]
    return found if len(found) <= 2 else None


def _selection(value: ir.Value | None, order: Sequence[int]) -> Selection | None:
    """Where queries, keys or values come from.

    Args:
        value: a tensor of three axes or more; those before the last three are the images B.
        order: its axes, B counted as one, as B, L, H, D.
    """
    shape = float_shape(value)
    if value is None or shape is None or len(shape) < 3 or math.prod(shape) > _MOST_ELEMENTS:
        return None
    chain, factor, best = [value], 1.0, None
    moves: list[ir.Node] = []
    while True:
        found = _channels_of(chain[-1], moves, order)
        if found is not None:
            best = Selection(chain[-1], found[0], found[1], factor)
        node = producer_of(chain[-1])
        scaled = _scaled(node)
        if scaled is not None:
            chain.append(scaled[0])
            factor *= scaled[1]
            continue
        if (
            not _moves(node)
            or node.inputs[0] is None
            or math.prod(float_shape(node.inputs[0]) or (0,)) > _MOST_ELEMENTS
        ):
            return best
        moves.append(node)
        chain.append(node.inputs[0])


def _moves(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Whether a node only selects and moves elements of its first input."""
    return is_canonical(node, "Reshape", "Transpose", "Slice") and float_shape(node.inputs[0]) is not None


def _moved(array: np.ndarray, node: ir.Node) -> np.ndarray:
    """What a node of `_moves` makes of `array`."""
    shape = float_shape(node.outputs[0])
    assert shape is not None
    if node.op_type == "Reshape":
        return array.reshape(shape)
    if node.op_type == "Transpose":
        return array.transpose(integers(node, "perm", ()))
    starts, steps = integers(node, "starts", ()), integers(node, "steps", ())
    ranges = zip(starts, steps, shape, strict=True)
    return array[tuple(slice(start, start + (size - 1) * step + 1, step) for start, step, size in ranges)]


def _channels_of(source: ir.Value, moves: Sequence[ir.Node], order: Sequence[int]) -> tuple[np.ndarray, bool] | None:
    """The channels of `source` that the tokens after `moves` (last first) have, and whether they come first."""
    shape = float_shape(source)
    if shape is None or len(shape) < 2:
        return None
    index = np.arange(math.prod(shape)).reshape(shape)
    for node in reversed(moves):
        index = _moved(index, node)
    index = index.reshape(-1, *index.shape[-3:]).transpose(order)
    tokens, channels = math.prod(index.shape[:2]), math.prod(index.shape[2:])
    index = index.reshape(tokens, channels)
    of_token = math.prod(shape) // tokens
    for first in (False, True):
        if (shape[0] * math.prod(shape[2:]) if first else math.prod(shape[:-1])) != tokens:
            continue
        pixels = tokens // shape[0] if first else 1
        start = np.arange(tokens) // pixels * (of_token * pixels) + np.arange(tokens) % pixels
        offsets = index[0] - start[0]
        if (index == start[:, None] + offsets).all():
            return offsets // pixels, first
    return None


def _in_ranges(node: ir.Node, selections: Sequence[Selection]) -> list[Selection] | None:
    """The same selections as ranges of channels, of a product with reordered columns if necessary; None if that cannot be."""
    if all(selection.is_range for selection in selections):
        return list(selections)
    source = selections[0].source
    order = np.concatenate([selection.channels for selection in selections])
    first = selections[0].first
    if any(selection.source is not source or selection.first != first for selection in selections):
        return None
    made = _reordered(node, source, order, 1 if first else -1)
    if made is None:
        return None
    ends = np.cumsum([len(selection.channels) for selection in selections])
    return [
        Selection(made, np.arange(end - len(selection.channels), end), first, selection.factor)
        for selection, end in zip(selections, ends, strict=True)
    ]


def _reordered(before: ir.Node, value: ir.Value | None, order: np.ndarray, axis: int) -> ir.Value | None:
    """`value` with its channels in another order, computed by layers with reordered constants in front of `before`.

    Only a MatMul or Conv with constant weights makes channels in any order; biases, normalisations by constants and reshapes
    that leave the channels alone may follow.

    Args:
        before: the layers go in front of this node.
        value: the tensor.
        order: the channel that each channel of the result is; a permutation.
        axis: of the channels, 1 or -1.
    """
    node, shape = producer_of(value), float_shape(value)
    if node is None or shape is None or not np.array_equal(np.sort(order), np.arange(shape[axis])):
        return None
    channel = axis % len(shape)
    if is_canonical(node, "Reshape"):
        kept = float_shape(node.inputs[0])
        if kept is None or kept[axis] != shape[axis] or (axis == 1 and kept[0] != shape[0]):
            return None
        source = _reordered(before, node.inputs[0], order, axis)
        return None if source is None else insert(before, "Reshape", (source,), shape)
    if is_onnx(node, "Add"):
        return _reordered_sum(before, node, order, axis)
    arrays = [constant(operand) for operand in node.inputs[1:]]
    if any(array is None and operand is not None for array, operand in zip(arrays, node.inputs[1:], strict=True)):
        return None
    source, along = node.inputs[0], 0
    if is_onnx(node, "BatchNormalization") and channel == 1 and len(node.outputs) == 1:
        source = _reordered(before, node.inputs[0], order, axis)
    elif is_onnx(node, "MatMul") and axis == -1 and arrays[0] is not None and arrays[0].ndim == 2:
        along = 1
    elif not is_onnx(node, "Conv") or axis != 1 or node.attributes.get_int("group", 1) != 1:
        return None
    if source is None:
        return None
    attributes = {name: ir.Attr(name, own.type, own.value) for name, own in node.attributes.items()}
    taken = [
        None if array is None else float_initializer(before, "weight", array.take(order, along)) for array in arrays
    ]
    return insert(before, node.op_type, (source, *taken), shape, attributes, domain="")


def _reordered_sum(before: ir.Node, node: ir.Node, order: np.ndarray, axis: int) -> ir.Value | None:
    """`_reordered` of an Add of a constant."""
    shape = float_shape(node.outputs[0])
    index = 0 if constant(node.inputs[0]) is not None else 1
    addend = constant(node.inputs[index])
    if shape is None or addend is None or float_shape(node.inputs[1 - index]) != shape:
        return None
    source = _reordered(before, node.inputs[1 - index], order, axis)
    place = axis % len(shape) - len(shape) + addend.ndim
    if place >= 0 and addend.shape[place] > 1:
        addend = addend.take(order, place)
    return (
        None
        if source is None
        else insert(before, "Add", (source, float_initializer(before, "bias", addend)), shape, domain="")
    )


def _tokens(node: ir.Node, selection: Selection, batch: int, size: int) -> ir.Value:
    """The tokens B,L,C of a selection that is a range."""
    source, shape = selection.source, float_shape(selection.source)
    assert shape is not None
    channels = shape[1] if selection.first else shape[-1]
    if selection.first:
        flat = (shape[0], channels, math.prod(shape[2:]))
        source = insert(node, "Reshape", (source,), flat) if shape != flat else source
        last = (flat[0], flat[2], channels)
        source = insert(node, "Transpose", (source,), last, {"perm": (0, 2, 1)})
        shape = last
    whole = (batch, size, channels)
    source = insert(node, "Reshape", (source,), whole) if shape != whole else source
    taken = len(selection.channels)
    if taken == channels:
        return source
    bounds = {"starts": (0, 0, int(selection.channels[0])), "steps": (1, 1, 1)}
    return insert(node, "Slice", (source,), (batch, size, taken), bounds)


LOWERINGS: Lowerings = {"MatMul": (fuse_attention,)}
OF_HEADS: Lowerings = {"MatMul": (fuse_heads,)}
"""What is tried once tokens are pixels."""
