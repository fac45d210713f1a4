"""Affine layers: where they come from, and the layers they disappear into.

Between the passes an Affine may have any rank from 2 with the channels on axis 1; `shape_affine` gives it the
four axes of the operator table. All folding is done in float64 and rounded once.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from nnstretch.passes.rewriting import (
    Lowerings,
    absorb,
    argument,
    become,
    bypass,
    constant,
    float_initializer,
    float_shape,
    insert,
    integers,
    is_canonical,
    producer_of,
    sole_use,
)


def lower_batch_normalization(node: ir.Node) -> bool:
    """BatchNormalization with running statistics becomes Affine."""
    if node.attributes.get_int("training_mode", 0):
        return False
    shape = float_shape(node.inputs[0])
    arrays = [constant(value) for value in node.inputs[1:5]]
    parameters = [array.astype(np.float64) for array in arrays if array is not None]
    if shape is None or len(shape) < 2 or len(parameters) != 4:
        return False
    gamma, beta, mean, variance = parameters
    scale = gamma / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    return become(
        node,
        "Affine",
        (
            node.inputs[0],
            float_initializer(node, "scale", scale),
            float_initializer(node, "shift", beta - mean * scale),
        ),
    )


def fold_affine(node: ir.Node) -> bool:
    """An Affine goes into the Conv, Dense or Affine that feeds it alone, or into the only Conv that reads it.

    The latter must not pad. Runs before activations are fused, so none of these layers has one yet.
    """
    if not is_canonical(node, "Affine"):
        return False
    return _remove_identity(node) or _fold_back(node) or _fold_forward(node)


def _line_of(node: ir.Node) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift of an Affine, as float64."""
    scale, shift = constant(node.inputs[1]), constant(node.inputs[2])
    assert scale is not None
    assert shift is not None
    return scale.astype(np.float64), shift.astype(np.float64)


def _remove_identity(node: ir.Node) -> bool:
    scale, shift = _line_of(node)
    return bool((scale == 1.0).all() and (shift == 0.0).all()) and bypass(node)


def _fold_back(node: ir.Node) -> bool:
    producer = producer_of(node.inputs[0])
    if not is_canonical(producer, "Conv", "Dense", "Affine") or not sole_use(node.inputs[0]):
        return False
    if argument(producer, 3) is not None:
        return False
    scale, shift = _line_of(node)
    weight, bias = constant(producer.inputs[1]), constant(producer.inputs[2])
    assert weight is not None
    scaled = weight.astype(np.float64) * scale.reshape(-1, *(1,) * (weight.ndim - 1))
    offset = shift if bias is None else bias * scale + shift
    roles = ("scale", "shift") if producer.op_type == "Affine" else ("weight", "bias")
    if (scale != 1.0).any():
        producer.replace_input_with(1, float_initializer(node, roles[0], scaled))
    producer.replace_input_with(2, float_initializer(node, roles[1], offset))
    absorb(producer, node)
    return True


def _fold_forward(node: ir.Node) -> bool:
    """W(a*x+b) = (W*a)x + Wb; pads would have to hold -b/a, so there may be none unless b is 0."""
    result = node.outputs[0]
    if not sole_use(result):
        return False
    ((reader, index),) = result.uses()
    if index != 0 or not is_canonical(reader, "Conv"):
        return False
    scale, shift = _line_of(node)
    if shift.any() and any(integers(reader, "pads", ())):
        return False
    stored = constant(reader.inputs[1])
    assert stored is not None
    weight = stored.astype(np.float64)
    outputs, per_group = weight.shape[:2]
    groups = reader.attributes.get_int("groups", 1)
    # Output o of group o // (O/g) reads the channels of that group.
    channels = (np.arange(outputs) // (outputs // groups))[:, None] * per_group + np.arange(per_group)[None, :]
    offset = (weight.sum(axis=(2, 3)) * shift[channels]).sum(axis=1)
    bias = constant(reader.inputs[2])
    reader.replace_input_with(1, float_initializer(reader, "weight", weight * scale[channels][:, :, None, None]))
    if offset.any():
        total = offset if bias is None else bias + offset
        reader.replace_input_with(2, float_initializer(reader, "bias", total))
    return bypass(node)


def shape_affine(node: ir.Node) -> bool:
    """An Affine over other than four axes gets them by reshapes before and after it."""
    if not is_canonical(node, "Affine"):
        return False
    shape = float_shape(node.inputs[0])
    assert shape is not None
    if len(shape) == 4:
        return False
    spatial = (1, 1) if len(shape) == 2 else (shape[2], math.prod(shape[3:]))
    shaped = (*shape[:2], *spatial)
    inner = insert(node, "Reshape", node.inputs[:1], shaped)
    value = insert(node, "Affine", (inner, *node.inputs[1:]), shaped, node.attributes)
    return become(node, "Reshape", (value,))


LOWERINGS: Lowerings = {"BatchNormalization": (lower_batch_normalization,)}
