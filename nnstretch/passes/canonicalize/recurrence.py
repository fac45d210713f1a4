"""LSTM and GRU become a product of all steps with the input weights, which dense routines compute, and a Recurrence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from nnstretch.graph.layer import Attribute
from nnstretch.passes.rewriting import (
    Lowerings,
    argument,
    become,
    bypass,
    constant,
    float_initializer,
    float_shape,
    graph_of,
    has_one_result,
    initializer,
    insert,
    integers,
    is_canonical,
    reshaped,
    unused_value_name,
)

_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
_GATES = {"LSTM": 4, "GRU": 3}
_STATES = {"LSTM": 2, "GRU": 1}
_FIRST_STATES, _PEEPHOLES = 5, 7
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
_STEPS_SEQUENCES_DIRECTIONS = (0, 2, 1, 3)
"""Permutation of ONNX's steps, directions, sequences, units to steps, sequences, directions, units, and back."""


@dataclass(frozen=True, eq=False)
class RecurrentLayer:
    """An LSTM or GRU whose hidden states alone are used.

    Attributes:
        steps, sequences: T and B of the input T,B,I.
        directions, hidden: D and H of the hidden states.
        weight: of the input, D·G·H,I.
        bias: of the sums of the gates, D·G·H; None if it is zero.
        recurrent: weights of the hidden states, D,G·H,H.
        product_bias: of the candidate's product in a GRU that resets it, D,H; None if it is zero.
        states: first hidden states, and an LSTM's first cell states, D,B,H; None if they are zero.
        attributes: of the Recurrence but its axis.
    """

    steps: int
    sequences: int
    directions: int
    hidden: int
    weight: np.ndarray
    bias: np.ndarray | None
    recurrent: np.ndarray
    product_bias: np.ndarray | None
    states: tuple[ir.Value | None, ...]
    attributes: dict[str, Attribute]

    def operands(self, node: ir.Node) -> tuple[ir.Value | None, ...]:
        """The inputs of a Recurrence behind the sums of the gates, in front of `node`, which is the layer."""
        own = argument(node, 2)
        is_own = own is not None and own.const_value is not None
        recurrent = own if is_own else float_initializer(node, "recurrent", self.recurrent)
        bias = None if self.product_bias is None else float_initializer(node, "product_bias", self.product_bias)
        return recurrent, bias, *self.states


def recurrent_layer(node: ir.Node) -> RecurrentLayer | None:
    """What an LSTM or GRU of ONNX computes, if it has constant weights, and activations and form are the default ones.

    Left to ONNX Runtime: sequences of several lengths, peepholes, clipped or coupled gates, sequences in front of steps, and
    layers whose last cell states are used.
    """
    shape, weight, recurrent = float_shape(node.inputs[0]), constant(argument(node, 1)), constant(argument(node, 2))
    if shape is None or weight is None or recurrent is None or not _has_default_form(node):
        return None
    used = [output.uses() or output.is_graph_output() for output in node.outputs]
    if any(used[2:]) or not _is_one_length(node, shape) or not _fit(node, weight, recurrent):
        return None
    directions, _, hidden = recurrent.shape
    biases = _biases(node, directions, hidden)
    wanted = (directions, shape[1], hidden)
    given = [argument(node, index) for index in range(_FIRST_STATES, _FIRST_STATES + _STATES[node.op_type])]
    if biases is None or any(value is not None and float_shape(value) != wanted for value in given):
        return None
    after = node.op_type == "GRU" and node.attributes.get_int("linear_before_reset", 0) != 0
    sums, product = biases.sum(axis=1), None
    if after:
        sums[:, -hidden:], product = biases[:, 0, -hidden:], biases[:, 1, -hidden:]
    return RecurrentLayer(
        steps=shape[0],
        sequences=shape[1],
        directions=directions,
        hidden=hidden,
        weight=weight.reshape(-1, weight.shape[2]),
        bias=sums.reshape(-1) if sums.any() else None,
        recurrent=recurrent,
        product_bias=product if product is not None and product.any() else None,
        states=tuple(None if _is_zero(value) else value for value in given),
        attributes={
            "cell": "gru_reset_after" if after else node.op_type.lower(),
            "direction": node.attributes.get_string("direction", "forward"),
        },
    )


def _has_default_form(node: ir.Node) -> bool:
    """Whether activations, layout and gates are the usual ones."""
    attributes = node.attributes
    directions = _DIRECTIONS.get(attributes.get_string("direction", "forward"), 0)
    named = attributes.get_strings("activations", ())
    if named and tuple(name.lower() for name in named) != _ACTIVATIONS[node.op_type] * directions:
        return False
    others = any(name in attributes for name in ("clip", "activation_alpha", "activation_beta"))
    return (
        directions > 0
        and not others
        and not attributes.get_int("layout", 0)
        and not attributes.get_int("input_forget", 0)
    )


def _is_one_length(node: ir.Node, shape: tuple[int, ...]) -> bool:
    """Whether all sequences have all steps, and there are no peepholes."""
    lengths = argument(node, 4)
    found = constant(lengths)
    same = lengths is None or (found is not None and bool((found == shape[0]).all()))
    return same and _is_zero(argument(node, _PEEPHOLES))


def _fit(node: ir.Node, weight: np.ndarray, recurrent: np.ndarray) -> bool:
    """Whether the weights are of float32 and of the sizes that the operator says."""
    directions = _DIRECTIONS[node.attributes.get_string("direction", "forward")]
    hidden = node.attributes.get_int("hidden_size", recurrent.shape[-1])
    shape = (directions, _GATES[node.op_type] * hidden, hidden)
    fits = recurrent.shape == shape and weight.ndim == 3 and weight.shape[:2] == shape[:2]
    return fits and weight.dtype == recurrent.dtype == np.float32


def _biases(node: ir.Node, directions: int, hidden: int) -> np.ndarray | None:
    """Biases of the input and of the hidden states, D,2,G·H; None if they are not constant."""
    size = _GATES[node.op_type] * hidden
    value = argument(node, 3)
    if value is None:
        return np.zeros((directions, 2, size), np.float32)
    found = constant(value)
    return None if found is None or found.size != directions * 2 * size else found.reshape(directions, 2, size)


def _is_zero(value: ir.Value | None) -> bool:
    found = constant(value)
    return value is None or (found is not None and not found.any())


def take_last_states(node: ir.Node) -> bool:
    """The last hidden states of a layer that becomes a Recurrence are those of one step of all: of the last, or of the first.

    They are slices of steps, sequences, channels, which is also how exporters read all hidden states.
    """
    last = node.outputs[1] if len(node.outputs) > 1 else None
    found = recurrent_layer(node) if last is not None and (last.uses() or last.is_graph_output()) else None
    if last is None or found is None:
        return False
    graph, states = graph_of(node), node.outputs[0]
    steps, sequences, directions, hidden = found.steps, found.sequences, found.directions, found.hidden
    states.name = states.name or unused_value_name(graph, f"{last.name}/states")
    states.shape, states.type = ir.Shape((steps, directions, sequences, hidden)), last.type
    perm = {"perm": _STEPS_SEQUENCES_DIRECTIONS}
    apart = insert(node, "Transpose", (states,), (steps, sequences, directions, hidden), perm, "")
    channels = reshaped(node, apart, (steps, sequences, directions * hidden))
    taken = []
    for direction in range(directions):
        backwards = direction == 1 or found.attributes["direction"] == "reverse"
        step = _sliced(node, channels, 0, 0 if backwards else steps - 1, 1)
        taken.append(_sliced(node, step, 2, direction * hidden, hidden))
    value = insert(node, "Concat", taken, (directions, sequences, hidden), {"axis": 0}, "")
    last.replace_all_uses_with(value, replace_graph_outputs=True)
    value.name, last.name = last.name, None
    if has_one_result(node):
        node.resize_outputs(1)
    first = apart.producer()
    assert first is not None
    graph.remove(node)
    graph.insert_before(first, node)
    return True


def _sliced(before: ir.Node, value: ir.Value, axis: int, start: int, size: int) -> ir.Value:
    """`size` places of `axis` from `start` on, by a Slice of ONNX in front of `before`."""
    shape = list(float_shape(value) or ())
    if shape[axis] == size:
        return value
    shape[axis] = size
    bounds = [initializer(before, "bound", np.array([place], np.int64)) for place in (start, start + size, axis)]
    return insert(before, "Slice", (value, *bounds), shape, domain="")


def lower_recurrence(node: ir.Node) -> bool:
    """An LSTM or GRU whose input is no view of an image: on rows of channels."""
    found = recurrent_layer(node)
    if found is None or not has_one_result(node):
        return False
    steps, sequences, directions, hidden = found.steps, found.sequences, found.directions, found.hidden
    rows, sums = steps * sequences, len(found.weight)
    source = insert(node, "Reshape", node.inputs[:1], (rows, found.weight.shape[1]))
    weight = float_initializer(node, "weight", found.weight)
    bias = None if found.bias is None else float_initializer(node, "bias", found.bias)
    product = insert(node, "Dense", (source, weight, bias, None), (rows, sums))
    gates = insert(node, "Reshape", (product,), (steps, sequences, sums))
    channels = (steps, sequences, directions * hidden)
    states = insert(node, "Recurrence", (gates, *found.operands(node)), channels, {**found.attributes, "axis": 0})
    if directions == 1 or sequences == 1:
        return become(node, "Reshape", (states,))
    parts = insert(node, "Reshape", (states,), (steps, sequences, directions, hidden))
    for reader in tuple(node.outputs[0].consumers()):
        if is_canonical(reader, "Transpose") and integers(reader, "perm", ()) == _STEPS_SEQUENCES_DIRECTIONS:
            become(reader, "Reshape", (parts,))
            bypass(reader)
    if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        graph_of(node).remove(node, safe=True)
        return True
    return become(node, "Transpose", (parts,), {"perm": _STEPS_SEQUENCES_DIRECTIONS})


EXPANSIONS: Lowerings = dict.fromkeys(_GATES, (take_last_states,))
LOWERINGS: Lowerings = dict.fromkeys(_GATES, (lower_recurrence,))
