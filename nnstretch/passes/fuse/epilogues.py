"""Activations and residual sums into the layers that feed them."""

from __future__ import annotations

import onnx_ir as ir

from nnstretch.graph.activation import NO_ACTIVATION, Activation
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.passes.canonicalize.activations import bounds_of, clip
from nnstretch.passes.rewriting import (
    CARRIERS,
    absorb,
    activation_of,
    argument,
    constant,
    float_shape,
    graph_of,
    is_canonical,
    producer_of,
    set_activation,
    sole_use,
)


def fuse_layer(node: ir.Node) -> bool:
    """In topological order, so that conv, sum, activation become one layer but conv, activation, sum two."""
    if is_canonical(node, "Activation"):
        return _fuse_activation(node)
    if is_canonical(node, "Add"):
        return _fuse_residual(node)
    return False


def _fuse_activation(node: ir.Node) -> bool:
    producer = producer_of(node.inputs[0])
    if not is_canonical(producer, "Activation", *CARRIERS) or not sole_use(node.inputs[0]):
        return False
    first, second = activation_of(producer), activation_of(node)
    combined = second if first == NO_ACTIVATION else _compose(first, second)
    if combined is None:
        return False
    set_activation(producer, combined)
    absorb(producer, node)
    return True


def _compose(first: Activation, second: Activation) -> Activation | None:
    """One activation for two in a row, where both only clip."""
    inner, outer = bounds_of(first), bounds_of(second)
    if inner is None or outer is None:
        return None
    low, high = (min(max(bound, outer[0]), outer[1]) for bound in inner)
    return clip(low, high)


def _fuse_residual(node: ir.Node) -> bool:
    """The sum goes into the later of its addends that is a Conv or Dense and feeds nothing else.

    That layer then runs where the sum ran. There can be no cycle, since nothing but the sum reads the layer. A sum at which
    branches for several processors meet stays a layer of its own: else one of them would have to wait for the others with
    its last layer.
    """
    left, right = node.inputs[0], node.inputs[1]
    if left is None or right is None or float_shape(left) != float_shape(right) or activation_of(node) != NO_ACTIVATION:
        return False
    if constant(left) is not None or constant(right) is not None:
        return False
    pairs = [(left.producer(), right), (right.producer(), left)]
    place = node.metadata_props.get(PLACEMENT_KEY)
    candidates = [
        (layer, other)
        for layer, other in pairs
        if layer is not None and _can_add(layer) and layer.metadata_props.get(PLACEMENT_KEY) == place
    ]
    if not candidates:
        return False
    if len(candidates) == 2:
        order = {layer: position for position, layer in enumerate(graph_of(node))}
        candidates.sort(key=lambda candidate: order[candidate[0]])
    layer, other = candidates[-1]
    layer.resize_inputs(4)
    layer.replace_input_with(3, other)
    absorb(layer, node)
    return True


def _can_add(layer: ir.Node) -> bool:
    return (
        is_canonical(layer, "Conv", "Dense")
        and sole_use(layer.outputs[0])
        and argument(layer, 3) is None
        and activation_of(layer) == NO_ACTIVATION
    )
