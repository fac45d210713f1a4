"""Models in float16 or bfloat16, computed in float32.

Such files are made for GPUs. Most CPUs multiply float32 only, and engines that keep to a file's types convert around every
operator.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from nnstretch.graph.metadata import unused_name

_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")  # of operators that name the type of their result


def compute_in_float32(model: ir.Model) -> ir.Model:
    """Makes a model in float16 or bfloat16 compute in float32; its inputs and outputs keep their types.

    Results differ from the file's own by what its types round. A model with sequences of such tensors, or with functions, stays
    as it is.

    Args:
        model: not fused; is changed.

    Returns:
        The model.
    """
    if model.functions or not _has_halves(model):
        return model
    inputs, outputs = (
        [(place, value, value.dtype) for place, value in enumerate(values) if value.dtype in _HALVES]
        for values in (model.graph.inputs, model.graph.outputs)
    )
    for graph in model.graphs():
        for value in _given(graph):
            _widen_value(value)
        for node in graph:
            _widen_node(node)
    names = {value.name or "" for value in (*_given(model.graph), *_computed(model.graph))}
    for _, value, dtype in inputs:
        _cast_input(model.graph, value, dtype, names)
    for place, value, dtype in outputs:
        _cast_output(model.graph, place, value, dtype, names)
    return model


def _given(graph: ir.Graph) -> tuple[ir.Value, ...]:
    return *graph.inputs, *graph.initializers.values()


def _computed(graph: ir.Graph) -> tuple[ir.Value, ...]:
    return tuple(value for node in graph for value in node.outputs)


def _has_halves(model: ir.Model) -> bool:
    """Whether tensors, but no sequences, hold numbers of such a type."""
    graphs = tuple(model.graphs())
    named = any(_is_half(a) or _names_half(a) for graph in graphs for node in graph for a in node.attributes.values())
    values = (value for graph in graphs for value in (*_given(graph), *_computed(graph)))
    kinds = [value.type for value in values if value.dtype in _HALVES]
    return (named or bool(kinds)) and all(isinstance(kind, ir.TensorType) for kind in kinds)


def _widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _widen_value(value: ir.Value) -> None:
    if value.dtype in _HALVES:
        value.dtype = ir.DataType.FLOAT
    if value.const_value is not None and value.const_value.dtype in _HALVES:
        value.const_value = _widened(value.const_value)


def _widen_node(node: ir.Node) -> None:
    for value in node.outputs:
        _widen_value(value)
    for attribute in tuple(node.attributes.values()):
        if _is_half(attribute):
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _widened(attribute.as_tensor()))
        elif _names_half(attribute):
            node.attributes[attribute.name] = ir.AttrInt64(attribute.name, int(ir.DataType.FLOAT))


def _is_half(attribute: ir.Attr) -> bool:
    """Whether an attribute is a tensor of such a type."""
    return attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in _HALVES


def _names_half(attribute: ir.Attr) -> bool:
    """Whether an attribute says that a result has such a type."""
    is_type = attribute.name in _TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT
    return is_type and attribute.as_int() in _HALVES


def _cast(value: ir.Value, dtype: ir.DataType, name: str) -> tuple[ir.Node, ir.Value]:
    """A new node that converts a value, and its output, called `name`."""
    node = ir.node("Cast", [value], {"to": int(dtype)}, name=name)
    (made,) = node.outputs
    made.name, made.dtype, made.shape = name, dtype, value.shape
    return node, made


def _cast_input(graph: ir.Graph, value: ir.Value, dtype: ir.DataType, names: set[str]) -> None:
    """Restores the type of an input, and converts it for its users."""
    uses = tuple(value.uses())
    value.dtype = dtype
    node, made = _cast(value, ir.DataType.FLOAT, _taken(f"{value.name}_float32", names))
    for user, place in uses:
        user.replace_input_with(place, made)
    first = next(iter(graph), None)
    graph.append(node) if first is None else graph.insert_before(first, node)


def _cast_output(graph: ir.Graph, place: int, value: ir.Value, dtype: ir.DataType, names: set[str]) -> None:
    """Converts what becomes an output to its type; the output has the name."""
    if value.dtype == dtype:  # an input is the output
        return
    name = value.name or f"output{place}"
    value.name = _taken(f"{name}_float32", names)
    node, made = _cast(value, dtype, name)
    graph.append(node)
    graph.outputs[place] = made


def _taken(wanted: str, names: set[str]) -> str:
    """A name like `wanted` that no value of the graph has; it has one from now on."""
    name = unused_name(wanted, names, "_")
    names.add(name)
    return name
