"""What follows a layer that only moves pixels and channels goes before it, into the convolutions there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.passes.rewriting import (
    activation_of,
    argument,
    become,
    constant,
    float_initializer,
    float_shape,
    insert,
    is_canonical,
    producer_of,
    set_activation,
    set_attributes,
    sole_use,
)


def hoist(node: ir.Node) -> bool:
    """An Activation or Affine after DepthToSpace is computed before it, and before a Concat there, by convolutions."""
    if not is_canonical(node, "Activation", "Affine") or not sole_use(node.inputs[0]):
        return False
    producer = producer_of(node.inputs[0])
    if is_canonical(producer, "DepthToSpace") and _is_fed_by_convolutions(producer):
        return _exchange(producer, node)
    return False


def _is_fed_by_convolutions(node: ir.Node) -> bool:
    """Whether `node` alone reads convolutions, perhaps after an Affine and through a Concat of channels."""
    if is_canonical(node, "Concat") and node.attributes.get_int("axis", 0) != 1:
        return False
    return activation_of(node) == NO_ACTIVATION and all(map(_is_convolution, node.inputs))


def _is_convolution(value: ir.Value | None) -> bool:
    """Whether `value`, which has one reader, comes from a convolution without an activation or residual."""
    producer = producer_of(value)
    if not is_canonical(producer, "Conv", "Affine", "Concat") or not sole_use(value):
        return False
    if is_canonical(producer, "Concat"):
        return _is_fed_by_convolutions(producer)
    if is_canonical(producer, "Affine"):
        return activation_of(producer) == NO_ACTIVATION and _is_convolution(producer.inputs[0])
    return activation_of(producer) == NO_ACTIVATION and argument(producer, 3) is None


def _exchange(tiles: ir.Node, node: ir.Node) -> bool:
    """`tiles` computes what `node` did, on its own input, and `node` what `tiles` did."""
    source = tiles.inputs[0]
    shape = float_shape(source)
    assert source is not None
    assert shape is not None
    size, mode = tiles.attributes.get_int("size", 1), tiles.attributes.get_string("mode", "DCR")
    moved = tiles.outputs[0]
    if is_canonical(node, "Activation"):
        become(tiles, "Activation", (source,), activation=activation_of(node))
    else:
        spread = np.tile if mode == "DCR" else np.repeat
        lines = [constant(value) for value in node.inputs[1:3]]
        roles = zip(("scale", "shift"), lines, strict=True)
        values = [float_initializer(node, role, spread(line, size * size)) for role, line in roles if line is not None]
        become(tiles, "Affine", (source, *values))
    moved.shape = ir.Shape(shape)
    become(node, "DepthToSpace", (moved,), {"size": size, "mode": mode})
    before = producer_of(source)
    if is_canonical(before, "Concat"):
        _distribute(before, tiles)
    return True


def _distribute(concat: ir.Node, node: ir.Node) -> None:
    """Every input of `concat` is computed as far as `node` computed the whole."""
    parts, begin = [], 0
    for value in concat.inputs:
        shape = float_shape(value)
        assert shape is not None
        if is_canonical(node, "Activation"):
            part = insert(concat, "Activation", (value,), shape)
            maker = part.producer()
            assert maker is not None
            set_activation(maker, activation_of(node))
        else:
            lines = [constant(line) for line in node.inputs[1:3]]
            own = [
                float_initializer(concat, "line", line[begin : begin + shape[1]]) for line in lines if line is not None
            ]
            part = insert(concat, "Affine", (value, *own), shape)
            begin += shape[1]
        parts.append(part)
    axis = concat.attributes.get_int("axis", 1)
    become(node, "Concat", parts, {"axis": axis})
    assert concat.graph is not None
    concat.graph.remove(concat, safe=True)


def order_tiles(node: ir.Node) -> bool:
    """The Conv before a DepthToSpace of mode CRD makes its channels in the order of DCR, which moves whole blocks."""
    if not is_canonical(node, "DepthToSpace") or node.attributes.get_string("mode", "DCR") != "CRD":
        return False
    producer = producer_of(node.inputs[0])
    if not is_canonical(producer, "Conv") or not sole_use(node.inputs[0]) or producer.attributes.get_int("groups") != 1:
        return False
    if any(value is not None for value in producer.inputs[3:]):
        return False
    weight, bias = constant(producer.inputs[1]), constant(argument(producer, 2))
    assert weight is not None
    tiles = node.attributes.get_int("size") ** 2
    order = np.arange(len(weight)).reshape(-1, tiles).T.reshape(-1)
    producer.replace_input_with(1, float_initializer(producer, "weight", weight[order]))
    if bias is not None:
        producer.replace_input_with(2, float_initializer(producer, "bias", bias[order]))
    set_attributes(node, {"mode": "DCR"})
    return True
