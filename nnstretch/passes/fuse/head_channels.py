"""Where the queries, keys and values of attention come from: channels of tokens, up to moves, a factor and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from nnstretch.passes.fuse.unit_vectors import UnitVectors, unit_vectors
from nnstretch.passes.rewriting import (
    constant,
    float_initializer,
    float_shape,
    insert,
    integers,
    is_canonical,
    is_onnx,
    producer_of,
    scalar,
)

MOST_ELEMENTS = 1 << 24
"""Elements up to which a tensor's origin and biases are computed."""


@dataclass(frozen=True)
class Selection:
    """Tokens B·L,C as channels of another tensor.

    Attributes:
        source: the tensor: its last axis are the channels, or its axis 1 if they come `first`.
        channels: the channel of `source` that each of the C channels is.
        first: whether the channels of `source` are on axis 1.
        factor: by which the elements are multiplied.
        epsilon: 0, or the least number by which the norm of each head of a token divides it, before `factor`.
    """

    source: ir.Value
    channels: np.ndarray
    first: bool
    factor: float
    epsilon: float = 0.0

    @property
    def tokens(self) -> int:
        """The number B·L."""
        shape = float_shape(self.source) or ()
        return math.prod(shape) // shape[1 if self.first else -1]

    @property
    def is_range(self) -> bool:
        """Whether the channels are neighbours in order."""
        return bool((np.diff(self.channels) == 1).all())


def selection_of(value: ir.Value | None, order: Sequence[int], *, normalised: bool = False) -> Selection | None:
    """Where queries, keys or values come from.

    Args:
        value: a tensor of three axes or more; those before the last three are the images B.
        order: its axes, B counted as one, as B, L, H, D.
        normalised: whether heads of tokens may be divided by their norms.
    """
    shape = float_shape(value)
    if value is None or shape is None or len(shape) < 3 or math.prod(shape) > MOST_ELEMENTS:
        return None
    factor, epsilon, best = 1.0, 0.0, None
    moves: list[ir.Node] = []
    while True:
        found = _channels_of(value, moves, order)
        if found is not None:
            best = Selection(value, found[0], found[1], factor, epsilon)
        node = producer_of(value)
        # What is multiplied before its norm divides it is not scaled by that.
        scaled = None if epsilon else scaled_input(node)
        vectors = unit_vectors(node) if normalised and not epsilon else None
        if scaled is not None:
            value, factor = scaled[0], factor * scaled[1]
        elif vectors is not None and _are_heads(vectors, moves, order):
            value, epsilon, best = vectors.source, vectors.epsilon, None
        elif _moves(node) and node.inputs[0] is not None:
            if math.prod(float_shape(node.inputs[0]) or ()) > MOST_ELEMENTS:
                return best
            moves.append(node)
            value = node.inputs[0]
        else:
            return best


def scaled_input(node: ir.Node | None) -> tuple[ir.Value, float] | None:
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


def _are_heads(vectors: UnitVectors, moves: Sequence[ir.Node], order: Sequence[int]) -> bool:
    """Whether each vector is, after `moves` (last first), the channels D of a head of a token of B, L, H, D."""
    shape = float_shape(vectors.source) or ()
    norms = [1 if axis in vectors.axes else size for axis, size in enumerate(shape)]
    index = _as_heads(np.broadcast_to(np.arange(math.prod(norms)).reshape(norms), shape), moves, order)
    return index.shape[3] * math.prod(norms) == math.prod(shape) and bool((index == index[..., :1]).all())


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


def _as_heads(array: np.ndarray, moves: Sequence[ir.Node], order: Sequence[int]) -> np.ndarray:
    """What `moves` (last first) make of `array`, as B, L, H, D."""
    for node in reversed(moves):
        array = _moved(array, node)
    return array.reshape(-1, *array.shape[-3:]).transpose(order)


def _channels_of(source: ir.Value, moves: Sequence[ir.Node], order: Sequence[int]) -> tuple[np.ndarray, bool] | None:
    """The channels of `source` that the tokens after `moves` (last first) have, and whether they come first."""
    shape = float_shape(source)
    if shape is None or len(shape) < 2:
        return None
    index = _as_heads(np.arange(math.prod(shape)).reshape(shape), moves, order)
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


def in_ranges(node: ir.Node, selections: Sequence[Selection]) -> list[Selection] | None:
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
        replace(selection, source=made, channels=np.arange(end - len(selection.channels), end))
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


def tokens_of(node: ir.Node, selection: Selection, batch: int, size: int) -> ir.Value:
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
