"""Normalisations, as operators of ONNX or as the sums and roots that exporters write, become LayerNorm and GroupNorm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Attribute
from nnstretch.passes.rewriting import (
    Lowerings,
    absorb,
    activation_of,
    argument,
    become,
    constant,
    constant_integers,
    float_initializer,
    float_shape,
    has_one_result,
    insert,
    is_canonical,
    is_onnx,
    producer_of,
    scalar,
    sole_use,
)


def lower_layer_normalization(node: ir.Node) -> bool:
    """LayerNormalization and RMSNormalization over their last axes, with constant scale and shift."""
    shape = float_shape(node.inputs[0])
    if not shape or shape != float_shape(node.outputs[0]) or not has_one_result(node):
        return False
    axis = node.attributes.get_int("axis", -1) % len(shape)
    factors = [_broadcast(argument(node, index), shape[axis:]) for index in (1, 2)]
    if any(factor is None and argument(node, index) is not None for index, factor in enumerate(factors, 1)):
        return False
    attributes: dict[str, Attribute] = {
        "epsilon": node.attributes.get_float("epsilon", 1e-5),
        "rms": int(node.op_type == "RMSNormalization"),
    }
    inputs = [
        None if factor is None else float_initializer(node, role, factor.reshape(-1))
        for role, factor in zip(("scale", "shift"), factors, strict=True)
    ]
    if axis == len(shape) - 1:
        return become(node, "LayerNorm", (node.inputs[0], *inputs), {"axis": axis, **attributes})
    return _over_last_axes(node, node.inputs[0], inputs, axis, attributes)


def lower_group_normalization(node: ir.Node) -> bool:
    """GroupNormalization with a scale per channel, or per group before operator set 21."""
    shape, groups = float_shape(node.inputs[0]), node.attributes.get_int("num_groups", 0)
    if shape is None or len(shape) < 3 or groups < 1 or shape[1] % groups:
        return False
    return _become_group_norm(node, shape, groups)


def lower_instance_normalization(node: ir.Node) -> bool:
    """InstanceNormalization: every channel is a group; of the groups of an image where torch writes group normalisation so."""
    shape = float_shape(node.inputs[0])
    return shape is not None and len(shape) >= 3 and _become_group_norm(node, shape, shape[1])


def _become_group_norm(node: ir.Node, shape: tuple[int, ...], groups: int) -> bool:
    values = [constant(argument(node, index)) for index in (1, 2)]
    factors = [None if value is None else value.reshape(-1) for value in values]
    if any(value is None or value.size not in (groups, shape[1]) for value in factors):
        return False
    inputs = [
        float_initializer(node, role, np.repeat(value, shape[1] // value.size))
        for role, value in zip(("scale", "shift"), factors, strict=True)
        if value is not None
    ]
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    return become(node, "GroupNorm", (node.inputs[0], *inputs), {"groups": groups, "epsilon": epsilon})


def regroup(node: ir.Node) -> bool:
    """Reshape, InstanceNormalization of groups, Reshape to the shape before: GroupNorm without reshapes."""
    norm = producer_of(node.inputs[0])
    before = producer_of(norm.inputs[0]) if is_canonical(norm, "GroupNorm") else None
    if (
        norm is None
        or not (is_canonical(before, "Reshape") or is_onnx(before, "Reshape"))
        or not sole_use(node.inputs[0])
    ):
        return False
    source, shape = before.inputs[0], float_shape(node.outputs[0])
    grouped = float_shape(norm.inputs[0])
    if source is None or shape is None or grouped is None or float_shape(source) != shape or len(shape) < 3:
        return False
    groups = norm.attributes.get_int("groups", 0)
    if groups != grouped[1] or grouped[0] != shape[0] or shape[1] % groups or activation_of(norm) != NO_ACTIVATION:
        return False
    values = [constant(norm.inputs[index]) for index in (1, 2)]
    inputs = [
        float_initializer(node, role, np.repeat(value, shape[1] // groups))
        for role, value in zip(("scale", "shift"), values, strict=True)
        if value is not None
    ]
    epsilon = norm.attributes.get_float("epsilon", 0.0)
    return len(inputs) == 2 and become(node, "GroupNorm", (source, *inputs), {"groups": groups, "epsilon": epsilon})


def lower_quotient(node: ir.Node) -> bool:
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + epsilon), or the same without the mean, becomes LayerNorm.

    Means are over one axis, or over several that are the last. Runs before sums and products become canonical.
    """
    if not is_onnx(node, "Div", "Mul"):
        return False
    for numerator, deviation in _quotients(node):
        found = _epsilon_and_squares(deviation)
        mean = None if found is None else _mean_of_squares(found[1])
        shape = float_shape(numerator)
        if (
            found is None
            or mean is None
            or mean[0] is not numerator
            or not shape
            or shape != float_shape(node.outputs[0])
        ):
            continue
        source, axes = _before_mean(numerator, mean[1]), mean[1]
        attributes: dict[str, Attribute] = {"epsilon": found[0], "rms": int(source is None)}
        source = numerator if source is None else source
        if len(axes) == 1:
            return become(node, "LayerNorm", (source, None, None), {"axis": axes[0], **attributes})
        if axes == tuple(range(axes[0], len(shape))):
            return _over_last_axes(node, source, (None, None), axes[0], attributes)
    return False


def _over_last_axes(
    node: ir.Node,
    source: ir.Value | None,
    factors: Sequence[ir.Value | None],
    axis: int,
    attributes: Mapping[str, Attribute],
) -> bool:
    """Makes `node` the normalisation over all axes from `axis` on: that of the rows of a matrix."""
    shape = float_shape(node.outputs[0])
    assert shape is not None
    rows = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    matrix = insert(node, "Reshape", (source,), rows)
    result = insert(node, "LayerNorm", (matrix, *factors), rows, {"axis": 1, **attributes})
    return become(node, "Reshape", (result,))


def _quotients(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Dividend and the value whose root divides it: x / sqrt(v), x * (1 / sqrt(v)), x * reciprocal(sqrt(v))."""
    left, right = node.inputs[0], node.inputs[1]
    pairs = ((left, right),) if node.op_type == "Div" else ((left, right), (right, left))
    for dividend, other in pairs:
        producer = producer_of(other)
        if node.op_type == "Mul" and is_onnx(producer, "Div") and scalar(producer.inputs[0]) == 1.0:
            producer = producer_of(producer.inputs[1])
        elif node.op_type == "Mul" and is_onnx(producer, "Reciprocal"):
            producer = producer_of(producer.inputs[0])
        elif node.op_type == "Mul":
            continue
        if dividend is not None and is_onnx(producer, "Sqrt") and producer.inputs[0] is not None:
            yield dividend, producer.inputs[0]


def _epsilon_and_squares(value: ir.Value) -> tuple[float, ir.Value] | None:
    """Epsilon and the other summand of a sum with a positive constant."""
    producer = value.producer()
    if not is_onnx(producer, "Add"):
        return None
    for squares, addend in (producer.inputs[:2], producer.inputs[1::-1]):
        epsilon = scalar(addend)
        if epsilon is not None and epsilon > 0.0 and squares is not None:
            return epsilon, squares
    return None


def _mean_of_squares(value: ir.Value) -> tuple[ir.Value, tuple[int, ...]] | None:
    """The value whose squares' mean this is, and its axes."""
    axes, mean = _mean_axes(value), value.producer()
    squares = None if axes is None or mean is None else producer_of(mean.inputs[0])
    if axes is None or squares is None:
        return None
    source = squares.inputs[0]
    square = is_onnx(squares, "Pow") and scalar(argument(squares, 1)) == 2.0
    product = is_onnx(squares, "Mul") and squares.inputs[1] is source
    return (source, axes) if source is not None and (square or product) else None


def _mean_axes(value: ir.Value | None) -> tuple[int, ...] | None:
    """The axes of a ReduceMean that keeps them, in order."""
    node = producer_of(value)
    shape = float_shape(node.inputs[0]) if is_onnx(node, "ReduceMean") else None
    if node is None or not shape or node.attributes.get_int("keepdims", 1) != 1:
        return None
    axes = constant_integers(node, "axes", 1)
    return tuple(sorted(axis % len(shape) for axis in axes)) if axes else None


def _before_mean(value: ir.Value, axes: tuple[int, ...]) -> ir.Value | None:
    """The x of x - mean(x) over `axes`."""
    producer = value.producer()
    if not is_onnx(producer, "Sub") or _mean_axes(producer.inputs[1]) != axes:
        return None
    mean, source = producer_of(producer.inputs[1]), producer.inputs[0]
    return source if mean is not None and mean.inputs[0] is source else None


def fold_factor(node: ir.Node) -> bool:
    """A product with, or a sum of, constants along the normalised axis goes into the scale or shift of the normalisation."""
    for source, other in (node.inputs[:2], node.inputs[1::-1]):
        norm, value = producer_of(source), constant(other)
        if value is None or not is_canonical(norm, "LayerNorm", "GroupNorm") or not sole_use(source):
            continue
        shape = float_shape(source)
        if shape is None or shape != float_shape(node.outputs[0]) or activation_of(norm) != NO_ACTIVATION:
            continue
        axis = norm.attributes.get_int("axis", 1)
        factor = _along(value, shape, axis)
        if factor is not None and factor.dtype == np.float32:
            _scale_or_shift(node, norm, factor.astype(np.float64), shape[axis])
            absorb(norm, node)
            return True
    return False


def _scale_or_shift(node: ir.Node, norm: ir.Node, factor: np.ndarray, length: int) -> None:
    """Multiplies scale and shift of `norm`, or adds to its shift, as `node` says."""
    scale, shift = (constant(argument(norm, index)) for index in (1, 2))
    scales = np.ones(length) if scale is None else scale.astype(np.float64)
    shifts = np.zeros(length) if shift is None else shift.astype(np.float64)
    if node.op_type == "Mul":
        scales, shifts = scales * factor, shifts * factor
    else:
        shifts = shifts + factor
    norm.resize_inputs(3)
    for index, (role, values) in enumerate((("scale", scales), ("shift", shifts)), 1):
        norm.replace_input_with(index, float_initializer(node, role, values))


def _along(value: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray | None:
    """A constant that broadcasts to `shape` as one value per place of `axis`; None if it varies along another."""
    if value.ndim > len(shape):
        return None
    padded = (1,) * (len(shape) - value.ndim) + value.shape
    if any(length != 1 for place, length in enumerate(padded) if place != axis):
        return None
    return np.broadcast_to(value.reshape(-1), shape[axis : axis + 1]) if padded[axis] in (1, shape[axis]) else None


def _broadcast(value: ir.Value | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """A constant that broadcasts to `shape`, in that shape."""
    array = constant(value)
    if array is None or array.ndim > len(shape):
        return None
    padded = (1,) * (len(shape) - array.ndim) + array.shape
    fits = all(length in (1, extent) for length, extent in zip(padded, shape, strict=True))
    return np.broadcast_to(array.reshape(padded), shape) if fits else None


LOWERINGS: Lowerings = {
    "LayerNormalization": (lower_layer_normalization,),
    "RMSNormalization": (lower_layer_normalization,),
    "GroupNormalization": (lower_group_normalization,),
    "InstanceNormalization": (lower_instance_normalization,),
    "Reshape": (regroup,),
    "Mul": (fold_factor,),
    "Add": (fold_factor,),
}
