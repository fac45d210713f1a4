"""Layers of traced operations that move tokens, attend or normalise, for predictions of their latency.

Modules on tokens as maps scale with their channels. Other operations on tokens keep all of theirs, but are no less work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import onnx_ir as ir
from torch import fx, nn

from nnstretch.branching.tracing.modules import ChannelNorm, HeadSlice
from nnstretch.branching.tracing.operators import Role, module_of, role_of, shape_of, title_of
from nnstretch.branching.tracing.tokens import Attention, PerElement, Rearranged, Tokens, WithTokens
from nnstretch.graph.layer import Attribute
from nnstretch.passes.rewriting import shape_of as shape_of_value

NONE: Mapping[str, Any] = MappingProxyType({})
_VIEWS = frozenset({"reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze"})


class LayerWriter(Protocol):
    """Adds layers to a graph."""

    def layer(
        self,
        op: str,
        inputs: Sequence[ir.Value],
        shape: Sequence[int],
        attributes: Mapping[str, Attribute] = NONE,
        constants: Mapping[str, tuple[int, ...]] = NONE,
        /,
    ) -> ir.Value:
        """Adds a layer of the table in `nnstretch.graph.layer`; constants, by role, are its last inputs."""

    def view(self, value: ir.Value, shape: Sequence[int], /) -> ir.Value:
        """The tensor in another shape, with the same channels on axis 1."""


def token_layers(writer: LayerWriter, node: fx.Node, inputs: Sequence[ir.Value]) -> ir.Value | None:
    """Adds the layers that compute a traced node.

    Args:
        writer: of the graph.
        node: reads `inputs`.
        inputs: the computed tensors that it reads, in the order of its arguments.

    Returns:
        The result in the node's shape, or one that a view makes of it; None for operations of other kinds.
    """
    shapes = [shape_of_value(value) for value in inputs]
    if not inputs or any(shape is None for shape in shapes) or shape_of(node) is None:
        return None
    if node.op == "call_module":
        module = module_of(node)
        return next((write(writer, node, module, inputs) for kind, write in _MODULES if isinstance(module, kind)), None)
    write_call = _CALLS.get(title_of(node))
    return None if write_call is None else write_call(writer, node, inputs)


def _shape(node: fx.Node) -> tuple[int, ...]:
    shape = shape_of(node)
    assert shape is not None
    return tuple(shape)


def _extents(value: ir.Value) -> tuple[int, ...]:
    shape = shape_of_value(value)
    assert shape is not None
    return shape


def _scale_and_shift(module: Any, channels: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the constants of a normalisation that has them."""
    found = {"scale": module.weight, "shift": module.bias}
    return {role: (channels,) for role, tensor in found.items() if tensor is not None}


# -- modules on maps ---------------------------------------------------------------------------------------------------


def _channel_norm(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    shape, attributes = _shape(node), {"axis": 1, "epsilon": float(module.eps), "rms": 0}
    return writer.layer("LayerNorm", inputs[:1], shape, attributes, _scale_and_shift(module, shape[1]))


def _group_norm(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    shape, attributes = _shape(node), {"groups": int(module.num_groups), "epsilon": float(module.eps)}
    return writer.layer("GroupNorm", inputs[:1], shape, attributes, _scale_and_shift(module, shape[1]))


def _slopes(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    shape = _shape(node)
    return writer.layer("PRelu", inputs[:1], shape, NONE, {"slope": (shape[1],)})


def _rearranged(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    """Rearrange, if the channels stay; else a transposition of whatever the sizes are."""
    batch, _, *sides = _extents(inputs[0])
    if not module.makes_map:
        return _moved(writer, inputs[0], _shape(node))
    kept = [number for number, size in enumerate(module.sizes) if size != 0]
    sizes = [module.sizes[number] for number in kept]
    sizes[0] = math.prod((batch, *sides)) // math.prod(sizes[1:])
    order = tuple(kept.index(number) for number in module.order if number in kept)
    return writer.layer("Rearrange", inputs[:1], _shape(node), {"sizes": tuple(sizes), "perm": order})


def _per_element(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    """A sum of two maps; the constant one takes as long to read as another one."""
    return writer.layer("Add", (inputs[0], inputs[0]), _shape(node))


def _with_tokens(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    batch, channels, *sides = _extents(inputs[0])
    row = writer.view(inputs[0], (batch, channels, math.prod(sides), 1))
    pads = (0, 0, module.before.shape[1], 0, 0, 0, module.after.shape[1], 0)
    return writer.layer("Pad", (row,), _shape(node), {"pads": pads, "mode": "constant", "value": 0.0})


def _tokens(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    batch, channels, *sides = _extents(inputs[0])
    row = writer.view(inputs[0], (batch, channels, math.prod(sides), 1))
    count = 1 if module.stop is None else _shape(node)[2]
    attributes: dict[str, Attribute] = {"starts": (0, 0, module.first, 0), "steps": (1, 1, 1, 1)}
    return writer.layer("Slice", (row,), (batch, channels, count, 1), attributes)


def _attention(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    """One layer of attention in which every image is a window."""
    rows = [
        writer.view(value, (extents[0], extents[1], 1, math.prod(extents[2:])))
        for value in inputs
        for extents in (_extents(value),)
    ]
    batch, channels, _, length = _extents(rows[0])
    heads = channels // module.query_width
    constants = {}
    if module.bias is not None:
        windows, own_heads, *sizes = module.bias.shape
        constants["bias"] = (batch if windows > 1 else 1, own_heads, *sizes)
    attributes: dict[str, Attribute] = {
        "heads": heads,
        "groups": 1 if module.shared else heads,
        "scale": float(module.scale),
    }
    shape = (batch, heads * module.value_width, 1, length)
    return writer.layer("Attention", rows, shape, attributes, constants)


def _head_slice(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    """As many channels in one range: how many heads there are depends on the width, so they cannot be an axis."""
    return writer.layer("Slice", inputs[:1], _shape(node), {"starts": (0, module.first, 0, 0), "steps": (1, 1, 1, 1)})


def _softmax_module(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    shape = _shape(node)
    axis = (0 if len(shape) in (0, 1, 3) else 1) if module.dim is None else int(module.dim) % len(shape)
    return writer.layer("Softmax", inputs[:1], shape, {"axis": axis})


def _dense(writer: LayerWriter, node: fx.Node, module: Any, inputs: Sequence[ir.Value]) -> ir.Value:
    """A dense layer of tokens whose channels are the last axis."""
    read, written = int(module.in_features), int(module.out_features)
    rows = math.prod(_extents(inputs[0])) // read
    constants: dict[str, tuple[int, ...]] = {"weight": (written, read)}
    if module.bias is not None:
        constants["bias"] = (written,)
    return writer.layer("Dense", (writer.view(inputs[0], (rows, read)),), (rows, written), NONE, constants)


_MODULES: tuple[tuple[type[nn.Module], Callable[..., ir.Value | None]], ...] = (
    (ChannelNorm, _channel_norm),
    (nn.GroupNorm, _group_norm),
    (nn.PReLU, _slopes),
    (Rearranged, _rearranged),
    (PerElement, _per_element),
    (WithTokens, _with_tokens),
    (Tokens, _tokens),
    (HeadSlice, _head_slice),
    (Attention, _attention),
    (nn.Softmax, _softmax_module),
    (nn.Linear, _dense),
)


def _mean(writer: LayerWriter, node: fx.Node, inputs: Sequence[ir.Value]) -> ir.Value | None:
    """The mean of all channels, one of which is left."""
    if role_of(node) is not Role.REDUCTION:
        return None
    return writer.layer("Reduce", inputs[:1], _shape(node), {"axes": (1,), "mode": "mean"})


# -- operations whose channels are all kept ----------------------------------------------------------------------------


def _product(writer: LayerWriter, node: fx.Node, inputs: Sequence[ir.Value]) -> ir.Value | None:
    """A product of two matrices that are computed in the run."""
    if len(inputs) != 2 or any(len(_extents(value)) < 2 for value in inputs):
        return None
    return writer.layer("MatMul", inputs, _shape(node), {"transpose_x": 0, "transpose_y": 0})


def _softmax(writer: LayerWriter, node: fx.Node, inputs: Sequence[ir.Value]) -> ir.Value:
    shape = _shape(node)
    axis: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else -1)
    return writer.layer("Softmax", inputs[:1], shape, {"axis": int(axis) % len(shape)})


def _transposed(writer: LayerWriter, node: fx.Node, inputs: Sequence[ir.Value]) -> ir.Value:
    return _moved(writer, inputs[0], _shape(node))


def _viewed(writer: LayerWriter, node: fx.Node, inputs: Sequence[ir.Value]) -> ir.Value:
    return writer.view(inputs[0], _shape(node))


def _moved(writer: LayerWriter, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """A transposition of a tensor's elements, which costs as much as others of its size."""
    rows = shape[-1]
    columns = math.prod(shape) // rows
    return writer.layer("Transpose", (writer.view(value, (rows, columns)),), (columns, rows), {"perm": (1, 0)})


_CALLS: Mapping[str, Callable[..., ir.Value | None]] = {
    **dict.fromkeys(("matmul", "bmm"), _product),
    **dict.fromkeys(("softmax", "_softmax"), _softmax),
    "mean": _mean,
    **dict.fromkeys(("permute", "transpose", "movedim", "swapaxes"), _transposed),
    **dict.fromkeys(_VIEWS, _viewed),
}
