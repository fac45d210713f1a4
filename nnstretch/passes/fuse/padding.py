"""Pads as nodes of their own, which go into the window that reads them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import ActivationKind
from nnstretch.passes.canonicalize.convolution import extent
from nnstretch.passes.rewriting import (
    activation_of,
    argument,
    constant,
    float_shape,
    graph_of,
    integer,
    integers,
    ir_attributes,
    is_canonical,
    is_onnx,
    scalar,
    sole_use,
    text,
)

_NEVER_NEGATIVE = (ActivationKind.RELU, ActivationKind.SIGMOID, ActivationKind.HARD_SIGMOID)


def fold_pad(node: ir.Node) -> bool:
    """A constant Pad over H and W goes into the Conv or pool that alone reads it, if that pads likewise."""
    if not is_onnx(node, "Pad") or text(node, "mode", "constant") != "constant":
        return False
    pads = _image_pads(node)
    if pads is None or not sole_use(node.outputs[0]):
        return False
    value = 0.0 if argument(node, 2) is None else scalar(argument(node, 2))
    ((reader, index),) = node.outputs[0].uses()
    if value is None or index != 0 or not _accepts(reader, pads, value, node.inputs[0]):
        return False
    total = tuple(own + more for own, more in zip(integers(reader, "pads", ()), pads, strict=True))
    reader.replace_input_with(0, node.inputs[0])
    for attribute in ir_attributes({"pads": total}):
        reader.attributes[attribute.name] = attribute
    if is_canonical(reader, "AveragePool"):
        reader.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
    graph_of(node).remove(node, safe=True)
    return True


def _image_pads(node: ir.Node) -> tuple[int, int, int, int] | None:
    """Pads (top, left, bottom, right) of a Pad that pads nothing but H and W of a float32 image."""
    shape, pads = float_shape(node.inputs[0]), constant(argument(node, 1))
    if shape is None or len(shape) != 4 or pads is None:
        return None
    axes = constant(argument(node, 3))
    order = list(range(4)) if axes is None else [int(axis) % 4 for axis in axes]
    begins = dict(zip(order, pads[: len(order)].tolist(), strict=True))
    ends = dict(zip(order, pads[len(order) :].tolist(), strict=True))
    if any(side.get(axis, 0) for side in (begins, ends) for axis in (0, 1)):
        return None
    found = begins.get(2, 0), begins.get(3, 0), ends.get(2, 0), ends.get(3, 0)
    return found if min(found) >= 0 else None


def _accepts(reader: ir.Node, pads: tuple[int, ...], value: float, source: ir.Value | None) -> bool:
    """Whether `reader` pads with `value`, as far as its result can tell."""
    if is_canonical(reader, "Conv"):
        return value == 0.0
    own = integers(reader, "pads", ())
    if is_canonical(reader, "AveragePool"):
        return value == 0.0 and (not any(own) or integer(reader, "count_include_pad", 0) == 1)
    if not is_canonical(reader, "MaxPool"):
        return False
    kernel, dilations = integers(reader, "kernel", ()), integers(reader, "dilations", (1, 1))
    # A window that lies in the pads altogether has no maximum.
    covered = all(
        dilations[axis % 2] == 1 and own[axis] + pads[axis] < extent(kernel[axis % 2], 1) for axis in range(4)
    )
    lowest = float(np.finfo(np.float32).min)
    return covered and (value <= lowest or (value == 0.0 and not any(own) and _never_negative(source)))


def _never_negative(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if producer is None or not is_canonical(producer, "Activation"):
        return False
    activation = activation_of(producer)
    return activation.kind in _NEVER_NEGATIVE or (activation.kind is ActivationKind.CLIP and activation.a >= 0.0)
