"""Operators on views: what each computes on the channels-first base (see `nnstretch.passes.tokens.views`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from nnstretch.graph.layer import DOMAIN
from nnstretch.passes.canonicalize.recurrence import recurrent_layer
from nnstretch.passes.rewriting import (
    DEFAULT_DOMAINS,
    argument,
    constant,
    constant_integers,
    float_initializer,
    float_shape,
    has_one_result,
    initializer,
    integers,
    is_onnx,
    remembered_names,
    scalar,
)
from nnstretch.passes.tokens.movement import Factor, Movement, merged
from nnstretch.passes.tokens.views import (
    Rewriting,
    Tokens,
    View,
    base_shape,
    compose_movement,
    sequence_axes,
)

_LEAST_ROWS = 8
"""Rows from which on a product with a constant matrix is a convolution. With fewer, reading the weights takes all the time."""
_UNARY = (
    *("Relu", "Sigmoid", "Tanh", "Erf", "Gelu", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Mish", "HardSigmoid"),
    *("HardSwish", "LeakyRelu", "ThresholdedRelu", "Clip", "Exp", "Log", "Sqrt", "Reciprocal", "Neg", "Abs", "Swish"),
)
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu")


def _again(
    rewriting: Rewriting, node: ir.Node, inputs: list[ir.Value | None], shape: tuple[int, ...], **attributes: int
) -> ir.Value:
    """The operator of `node` with the same attributes but `attributes`, on other inputs."""
    own = {name: ir.Attr(name, attribute.type, attribute.value) for name, attribute in node.attributes.items()}
    return rewriting.make(node, node.op_type, inputs, shape, {**own, **attributes}, node.domain)


def unary(rewriting: Rewriting, node: ir.Node) -> bool:
    """An operator that computes every element alone, on a view whatever the order of its elements."""
    source = node.inputs[0]
    if source is None or not rewriting.is_view(source) or float_shape(node.outputs[0]) != float_shape(source):
        return False
    if any(value is not None and scalar(value) is None for value in node.inputs[1:]):
        return False
    view = rewriting.view(source)
    assert view is not None
    result = _again(rewriting, node, [view.base, *node.inputs[1:]], view.shape)
    return rewriting.set_view(node, View(result, view.movement))


def binary(rewriting: Rewriting, node: ir.Node) -> bool:
    """Element-wise operators of two values, at least one of which is a view."""
    left, right = argument(node, 0), argument(node, 1)
    if left is None or right is None or len(node.inputs) != 2 or float_shape(node.outputs[0]) is None:
        return False
    if constant(left) is not None or constant(right) is not None:
        return _with_constant(rewriting, node)
    if not rewriting.is_view(left) and not rewriting.is_view(right):
        return False
    if float_shape(left) == float_shape(right):
        first, second = rewriting.view(left), rewriting.view(right)
        if first and second and first.movement == second.movement and first.shape == second.shape:
            result = _again(rewriting, node, [first.base, second.base], first.shape)
            return rewriting.set_view(node, View(result, first.movement))
        return _of_tokens(rewriting, node, left, right)
    return _broadcast(rewriting, node, left, right)


def _of_tokens(rewriting: Rewriting, node: ir.Node, left: ir.Value, right: ir.Value) -> bool:
    """Both values have the same shape; one that is no view is transposed, unless that is the larger part of the work."""
    leader, other = (left, right) if rewriting.is_view(left) else (right, left)
    tokens = rewriting.tokens(leader, node)
    if tokens is None:
        return False
    more = rewriting.imported(other, tokens.channel, node)
    if more is None or more.shape[0] != tokens.shape[0]:
        return False
    second = rewriting.shaped(more.base, *tokens.shape[2:], node)
    inputs: list[ir.Value | None] = [tokens.base, second] if leader is left else [second, tokens.base]
    return rewriting.set_tokens(node, _again(rewriting, node, inputs, tokens.shape), tokens.channel)


def _broadcast(rewriting: Rewriting, node: ir.Node, left: ir.Value, right: ir.Value) -> bool:
    """One value per image and channel beside a value per pixel."""
    shape = float_shape(node.outputs[0])
    wide, narrow = (left, right) if float_shape(left) == shape else (right, left)
    small = float_shape(narrow)
    if not rewriting.is_view(wide) or shape is None or float_shape(wide) != shape or small is None:
        return False
    tokens, gate = rewriting.tokens(wide, node), rewriting.tokens(narrow, node)
    if tokens is None or gate is None or gate.channel + len(shape) - len(small) != tokens.channel:
        return False
    if gate.shape != (*tokens.shape[:2], 1, 1):
        return False
    if tokens.shape[0] > 1 and (len(small), small[0]) != (len(shape), shape[0]):
        return False  # its first axis is another one than that of the images
    inputs: list[ir.Value | None] = [tokens.base, gate.base] if wide is left else [gate.base, tokens.base]
    return rewriting.set_tokens(node, _again(rewriting, node, inputs, tokens.shape), tokens.channel)


def _with_constant(rewriting: Rewriting, node: ir.Node) -> bool:
    """An operator with one constant: one value, one per channel, or one per channel and pixel."""
    index = 0 if constant(node.inputs[0]) is not None else 1
    operand, source = constant(node.inputs[index]), node.inputs[1 - index]
    shape = float_shape(source)
    if operand is None or source is None or shape is None or shape != float_shape(node.outputs[0]):
        return False
    view = rewriting.view(source) if rewriting.is_view(source) else None
    if view is None or operand.dtype != np.float32 or operand.ndim > len(shape):
        return False
    padded = operand.reshape((1,) * (len(shape) - operand.ndim) + operand.shape)
    varies = [axis for axis, size in enumerate(padded.shape) if size > 1]

    def finish(base: ir.Value, value: np.ndarray) -> ir.Value:
        inputs: list[ir.Value | None] = [base, base]
        inputs[index] = float_initializer(node, "operand", value)
        return _again(rewriting, node, inputs, base_shape(base))

    if not varies or varies == [view.channel]:
        value = padded.reshape((1, -1, 1, 1)) if varies else padded.reshape(())
        return rewriting.set_view(node, View(finish(view.base, value), view.movement))
    tokens = rewriting.tokens(source, node)
    if tokens is None:
        return False
    return rewriting.set_tokens(node, finish(tokens.base, _first(padded, shape, tokens)), tokens.channel)


def _first(array: np.ndarray, shape: tuple[int, ...], tokens: Tokens) -> np.ndarray:
    """A constant that broadcasts to a value of `shape`, as N,C,H,W or 1,C,H,W like the value's base."""
    batch, _, height, width = tokens.shape
    if batch > 1 and tokens.channel > 0 and array.shape[0] == 1 and shape[0] == batch:
        shape, batch = (1, *shape[1:]), 1
    whole = np.broadcast_to(array, shape)
    return np.moveaxis(whole, tokens.channel, -1).reshape(batch, height, width, -1).transpose(0, 3, 1, 2)


def dense(rewriting: Rewriting, node: ir.Node) -> bool:
    """MatMul with a constant matrix K,M over the last axis is a 1×1 convolution."""
    source, matrix, shape = node.inputs[0], constant(argument(node, 1)), float_shape(node.inputs[0])
    if source is None or matrix is None or matrix.ndim != 2 or matrix.dtype != np.float32 or shape is None:
        return False
    last = len(shape) - 1
    if math.prod(shape[:-1]) < _LEAST_ROWS or (last < 2 and not rewriting.is_view(source)):
        return False
    tokens = rewriting.imported(source, last, node)
    if tokens is None:
        return False
    batch, _, height, width = tokens.shape
    weight = float_initializer(node, "weight", matrix.T[:, :, None, None])
    result = rewriting.make(node, "Conv", (tokens.base, weight), (batch, matrix.shape[1], height, width), domain="")
    return rewriting.set_tokens(node, result, last)


def layer_norm(rewriting: Rewriting, node: ir.Node) -> bool:
    """LayerNorm over the channels; of rows of any tensor if the axis is the last of three or more."""
    source, shape = node.inputs[0], float_shape(node.inputs[0])
    if source is None or shape is None:
        return False
    axis = node.attributes.get_int("axis", 0)
    many = axis == len(shape) - 1 >= 2 and math.prod(shape[:-1]) >= _LEAST_ROWS
    tokens = rewriting.imported(source, axis, node) if many else None
    if tokens is None and rewriting.is_view(source):
        tokens = rewriting.tokens(source, node)
    if tokens is None or tokens.channel != axis:
        return False
    result = _again(rewriting, node, [tokens.base, *node.inputs[1:]], tokens.shape, axis=1)
    return rewriting.set_tokens(node, result, axis)


def _rows(tokens: Tokens, shape: tuple[int, ...], axis: int) -> tuple[int, int, int] | None:
    """Pixel axis `axis` of a value as an axis of N,C,H,W: height, width and that axis; None if more than four are needed."""
    others = [size if index != tokens.channel else 1 for index, size in enumerate(shape)]
    batch = tokens.shape[0]
    if batch > 1 and (axis == 0 or others[0] != batch):
        return None
    before, after = math.prod(others[:axis]) // batch, math.prod(others[axis + 1 :])
    if before == 1:
        return shape[axis], after, 2
    return (before, shape[axis], 3) if after == 1 else None


def cut(rewriting: Rewriting, node: ir.Node) -> bool:
    """Slice along the channels or along one axis of pixels."""
    source, shape, result = node.inputs[0], float_shape(node.inputs[0]), float_shape(node.outputs[0])
    if source is None or not rewriting.is_view(source) or shape is None or result is None:
        return False
    starts, steps = integers(node, "starts", ()), integers(node, "steps", ())
    cut_axes = [axis for axis, (a, b) in enumerate(zip(shape, result, strict=True)) if a != b]
    tokens = rewriting.tokens(source, node)
    if tokens is None or len(cut_axes) != 1:
        return False
    (axis,) = cut_axes
    value = _cut_tokens(rewriting, node, tokens, shape, axis, (starts[axis], result[axis], steps[axis]))
    return value is not None and rewriting.set_tokens(node, value, tokens.channel)


def _cut_tokens(
    rewriting: Rewriting,
    node: ir.Node,
    tokens: Tokens,
    shape: tuple[int, ...],
    axis: int,
    taken: tuple[int, int, int],
) -> ir.Value | None:
    """The slice of the base that takes (start, size, step) of axis `axis` of a value of `shape`."""
    base, place = tokens.base, 1
    if axis != tokens.channel:
        rows = _rows(tokens, shape, axis)
        if rows is None:
            return None
        height, width, place = rows
        base = rewriting.shaped(base, height, width, node)
    start, size, step = taken
    starts, steps, target = [0] * 4, [1] * 4, list(base_shape(base))
    starts[place], steps[place], target[place] = start, step, size
    return rewriting.make(node, "Slice", (base,), target, {"starts": tuple(starts), "steps": tuple(steps)})


def join(rewriting: Rewriting, node: ir.Node) -> bool:
    """Concat along the channels or along one axis of pixels, of views, other values and constants."""
    shape = float_shape(node.outputs[0])
    views = [value for value in node.inputs if rewriting.is_view(value)]
    leader = rewriting.tokens(views[0], node) if views and views[0] is not None else None
    if leader is None or shape is None:
        return False
    axis = node.attributes.get_int("axis", 0) % len(shape)
    parts: list[ir.Value | None] = []
    target: tuple[int, ...] = ()
    place = 1
    for value in node.inputs:
        own = float_shape(value)
        array = constant(value)
        tokens = leader if array is not None or value is None else rewriting.imported(value, leader.channel, node)
        if value is None or own is None or tokens is None or tokens.shape[0] != leader.shape[0]:
            return False
        height, width = leader.shape[2:]
        if axis != leader.channel:
            rows = _rows(leader, own, axis)
            if rows is None:
                return False
            height, width, place = rows
        channels = own[leader.channel]
        target = (leader.shape[0], channels, height, width)
        if array is None:
            parts.append(rewriting.shaped(tokens.base, height, width, node))
        else:
            last = np.moveaxis(array, leader.channel, -1).reshape(leader.shape[0], height, width, channels)
            parts.append(initializer(node, "operand", last.transpose(0, 3, 1, 2).astype(np.float32)))
    whole = list(target)
    whole[place] = (
        shape[axis] if place == 1 else math.prod(shape) // math.prod(s for i, s in enumerate(target) if i != place)
    )
    result = rewriting.make(node, "Concat", parts, whole, {"axis": place}, "")
    return rewriting.set_tokens(node, result, leader.channel)


def mean(rewriting: Rewriting, node: ir.Node) -> bool:
    """ReduceMean over all pixels is a global pool."""
    source, shape, result = node.inputs[0], float_shape(node.inputs[0]), float_shape(node.outputs[0])
    axes = constant_integers(node, "axes", 1)
    if source is None or not rewriting.is_view(source) or shape is None or result is None or axes is None:
        return False
    view = rewriting.view(source)
    channel = None if view is None else view.channel
    if view is None or channel is None:
        return False
    batch, channels, height, width = view.shape
    images = merged((Factor(batch, channels * height * width),))
    if batch > 1 and (channel == 0 or view.movement.axes[0] != images):
        return False
    reduced = {axis % len(shape) for axis in axes}
    kept = {axis for axis, size in enumerate(shape) if axis not in reduced and size > 1}
    if kept - {channel} != ({0} if batch > 1 else set()) or channel in reduced:
        return False
    pooled = rewriting.make(node, "GlobalAveragePool", (view.base,), (batch, channels, 1, 1), domain="")
    gone = sum(axis in reduced for axis in range(channel)) if len(result) < len(shape) else 0
    return rewriting.set_tokens(node, pooled, channel - gone)


def batch_norm(rewriting: Rewriting, node: ir.Node) -> bool:
    """BatchNormalization whose axis 1 is the channels of a view, such as tokens that were flattened to rows."""
    source = node.inputs[0]
    view = None if source is None or not rewriting.is_view(source) else rewriting.view(source)
    more = not has_one_result(node)
    if view is None or view.channel != 1 or more or node.attributes.get_int("training_mode", 0) != 0:
        return False
    result = _again(rewriting, node, [view.base, *node.inputs[1:]], view.shape)
    return rewriting.set_view(node, View(result, view.movement))


def attention(rewriting: Rewriting, node: ir.Node) -> bool:
    """Attention of tokens B,L,C on N,C,W,L: every row of an image is a window."""
    values, parts = node.inputs[:3], []
    shape = float_shape(node.outputs[0])
    for value in values:
        own = float_shape(value)
        tokens = None if value is None else rewriting.imported(value, 2, node)
        if tokens is None or own is None or own[0] % tokens.shape[0]:
            return False
        parts.append(rewriting.shaped(tokens.base, own[0] // tokens.shape[0], own[1], node))
    batch, windows = base_shape(parts[0])[0], base_shape(parts[0])[2]
    if shape is None or any(base_shape(part)[0] != batch for part in parts):
        return False
    target = (batch, shape[2], windows, shape[1])
    return rewriting.set_tokens(node, _again(rewriting, node, [*parts, *node.inputs[3:]], target), 2)


def recurrence(rewriting: Rewriting, node: ir.Node) -> bool:
    """LSTM or GRU whose steps are the rows or the columns of images: a 1×1 convolution and a Recurrence along that axis."""
    source, found = node.inputs[0], recurrent_layer(node)
    view = None if source is None or found is None or not rewriting.is_view(source) else rewriting.view(source)
    if found is None or view is None or view.channel != 2:
        return False
    steps, pixels = found.steps, view.shape[2] * view.shape[3]
    axes = [axis for axis in (2, 3) if sequence_axes(view.shape, steps, axis) == view.movement.axes[:2]]
    if not axes:
        return False
    batch, axis = view.shape[0], axes[0]
    rows = (steps, pixels // steps) if axis == 2 else (pixels // steps, steps)
    weight = float_initializer(node, "weight", found.weight[:, :, None, None])
    bias = () if found.bias is None else (float_initializer(node, "bias", found.bias),)
    base = rewriting.shaped(view.base, *rows, node)
    gates = rewriting.make(node, "Conv", (base, weight, *bias), (batch, len(found.weight), *rows), domain="")
    channels = found.directions * found.hidden
    attributes = {**found.attributes, "axis": axis}
    inputs = (gates, *found.operands(node))
    result = rewriting.make(node, "Recurrence", inputs, (batch, channels, *rows), attributes)
    of_steps, of_sequences = sequence_axes(base_shape(result), steps, axis)
    directions = merged((Factor(found.directions, found.hidden * pixels),))
    units = merged((Factor(found.hidden, pixels),))
    return rewriting.set_view(node, View(result, Movement((of_steps, directions, of_sequences, units))))


_Handler = Callable[[Rewriting, ir.Node], bool]
CANONICAL: Mapping[str, _Handler] = {
    "Activation": unary,
    "Attention": attention,
    "LayerNorm": layer_norm,
    "Reshape": compose_movement,
    "Slice": cut,
    "Transpose": compose_movement,
    "Concat": join,
}
"""Canonical operator -> the function that computes it on bases; False if it cannot."""
RAW: Mapping[str, _Handler] = {
    **dict.fromkeys(_UNARY, unary),
    **dict.fromkeys(_BINARY, binary),
    "BatchNormalization": batch_norm,
    **dict.fromkeys(("LSTM", "GRU"), recurrence),
    "MatMul": dense,
    "ReduceMean": mean,
}
"""The same of ONNX operators."""


class TokensArePixels(ir.passes.InPlacePass):
    """Computes channels-last stretches on N,C,H,W tensors (see `nnstretch.passes.tokens.views`)."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model` in place, if that saves transpositions."""
        graph = model.graph
        if any(is_onnx(node, "QuantizeLinear", "DequantizeLinear") for node in graph):
            return ir.passes.PassResult(model, modified=False)
        rewriting = Rewriting(graph)
        with remembered_names(graph):
            for node in tuple(graph):
                table = CANONICAL if node.domain == DOMAIN else RAW
                handler = table.get(node.op_type) if node.domain in (DOMAIN, *DEFAULT_DOMAINS) else None
                if handler is not None:
                    handler(rewriting, node)
        if rewriting.moved_after() > rewriting.moved_before():
            rewriting.abandon()
            return ir.passes.PassResult(model, modified=False)
        return ir.passes.PassResult(model, rewriting.commit())
