"""A graph as routines and the scheduler see it: layers in topological order, joined by named tensors."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from nnstretch.errors import ModelError
from nnstretch.graph.activation import Activation
from nnstretch.graph.layer import DOMAIN, Attribute, Layer, TensorType
from nnstretch.graph.metadata import module_path, unused_name
from nnstretch.passes.rewriting import DEFAULT_DOMAINS, activation_of, quantization_of

# Attributes of layers that only the fallback runs, beside the operator's own.
OPSET = "opset_version"
CAPTURES = "captures"
OMITTED = "omitted_outputs"
# How an attribute that is no number, string or list of numbers starts; base64 of its AttributeProto follows.
ENCODED = "onnx.AttributeProto:"


@dataclass(frozen=True, eq=False)
class GraphNode:
    """A layer and its place in the graph.

    Attributes:
        layer: what is computed.
        inputs: names of the tensors read, as many as `layer.inputs`; None where an optional one is absent.
        outputs: names of the tensors it computes, as many as `layer.outputs`.
        path: the torch module it came from, such as "layer1.0.conv1"; "" where that is not known.
        metadata: what the ONNX file says of the node.
        node: the node itself, not to be changed.
    """

    layer: Layer
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    path: str
    metadata: Mapping[str, str]
    node: ir.Node


def layers(model: ir.Model) -> list[GraphNode]:
    """The nodes of an optimised `model` as layers, in topological order; names of layers are unique.

    Values that subgraphs of a node (If, Loop, Scan) read from outside count as inputs, after the node's own.

    Raises:
        ModelError: a tensor's shape depends on values, or its type is no tensor.
    """
    names: dict[str, ir.Node] = {}
    for node in model.graph:
        names[unused_name(_title(node), names, "#")] = node
    return [_graph_node(node, name, model) for name, node in names.items()]


def graph_inputs(model: ir.Model) -> list[tuple[str, TensorType]]:
    """Names and types of the inputs in order."""
    return [(_name(value), tensor_type(value)) for value in model.graph.inputs]


def graph_outputs(model: ir.Model) -> list[tuple[str, TensorType]]:
    """Names and types of the outputs in order."""
    return [(_name(value), tensor_type(value)) for value in model.graph.outputs]


def tensor_type(value: ir.Value) -> TensorType:
    """Static type of `value`.

    Raises:
        ModelError: its shape or element type is not known before the run.
    """
    if value.const_value is not None and value.is_initializer():
        return TensorType(tuple(value.const_value.shape.numpy()), _dtype(value.const_value.dtype))
    producer = value.producer()
    origin = f" of {producer.op_type} {producer.name!r}" if producer is not None else ""
    if not isinstance(value.type, ir.TensorType):
        raise ModelError(
            f"{value.name!r}{origin} is {value.type or 'of unknown type'}; layers pass on dense tensors only"
        )
    if value.shape is None or not value.shape.is_static():
        shape = "unknown" if value.shape is None else value.shape
        raise ModelError(
            f"tensor {value.name!r}{origin} has the shape {shape}, known only in the run; "
            "export the model with shapes that depend on nothing but the inputs' shapes"
        )
    return TensorType(value.shape.numpy(), _dtype(value.type.dtype), quantization_of(value))


def _dtype(dtype: ir.DataType) -> str:
    return "string" if dtype == ir.DataType.STRING else str(dtype.numpy().name)


def _name(value: ir.Value) -> str:
    assert value.name is not None
    return value.name


def _title(node: ir.Node) -> str:
    path = module_path(node)
    return path or node.name or f"{node.op_type}_{node.outputs[0].name}"


def _graph_node(node: ir.Node, name: str, model: ir.Model) -> GraphNode:
    captured = captures(node)
    values = [*_without_trailing_none(node.inputs), *captured]
    # Optional outputs that the node leaves out have no name.
    named = [index for index, value in enumerate(node.outputs) if value.name]
    results = [node.outputs[index] for index in named]
    attributes = _attributes(node)
    if node.domain != DOMAIN:
        attributes[OPSET] = model.graph.opset_imports.get(node.domain, 1)
        if named != list(range(len(named))):
            attributes[OMITTED] = tuple(index for index in range(named[-1]) if index not in named)
        if captured:
            attributes[CAPTURES] = json.dumps([value.name for value in captured])
    layer = Layer(
        name=name,
        op=_operator(node),
        inputs=tuple(None if value is None else tensor_type(value) for value in values),
        outputs=tuple(tensor_type(value) for value in results),
        attributes=MappingProxyType(attributes),
        activation=activation_of(node) if node.domain == DOMAIN else Activation(),
        constants=MappingProxyType(_constants(values)),
    )
    return GraphNode(
        layer=layer,
        inputs=tuple(None if value is None else _name(value) for value in values),
        outputs=tuple(_name(value) for value in results),
        path=module_path(node),
        metadata=MappingProxyType(dict(node.metadata_props)),
        node=node,
    )


def captures(node: ir.Node) -> list[ir.Value]:
    """Values from outside that the subgraphs of `node` read, each once."""
    found: dict[ir.Value, None] = {}
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            _collect_captures(attribute.as_graph(), found)
        elif attribute.type == ir.AttributeType.GRAPHS:
            for graph in attribute.as_graphs():
                _collect_captures(graph, found)
    return [value for value in found if value not in node.inputs]


def _collect_captures(graph: ir.Graph, found: dict[ir.Value, None]) -> None:
    inner: set[ir.Value] = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        inner.update(node.outputs)
        for value in node.inputs:
            if value is not None and value not in inner:
                found[value] = None
        for value in captures(node):
            if value not in inner:
                found[value] = None
    for value in graph.outputs:
        if value not in inner:
            found[value] = None


def _without_trailing_none(values: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    kept = list(values)
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def _constants(values: list[ir.Value | None]) -> dict[int, np.ndarray]:
    found = {}
    for index, value in enumerate(values):
        if value is not None and value.is_initializer() and value.const_value is not None:
            found[index] = np.require(value.const_value.numpy(), requirements="C")
    return found


def _operator(node: ir.Node) -> str:
    """The operator of the table, "onnx:Name", or "onnx:com.microsoft/Name" for another domain than ONNX's."""
    if node.domain == DOMAIN:
        return node.op_type
    return f"onnx:{node.op_type}" if node.domain in DEFAULT_DOMAINS else f"onnx:{node.domain}/{node.op_type}"


def _attributes(node: ir.Node) -> dict[str, Attribute]:
    return {
        name: _attribute(attribute)
        for name, attribute in sorted(node.attributes.items())
        if not (node.domain == DOMAIN and name.startswith("activation"))
    }


def _attribute(attribute: ir.Attr) -> Attribute:
    kind = ir.AttributeType
    if attribute.type == kind.INT:
        return attribute.as_int()
    if attribute.type == kind.FLOAT:
        return attribute.as_float()
    if attribute.type == kind.STRING and not attribute.as_string().startswith(ENCODED):
        return attribute.as_string()
    if attribute.type == kind.INTS and attribute.as_ints():
        return tuple(attribute.as_ints())
    if attribute.type == kind.FLOATS and attribute.as_floats():
        return tuple(attribute.as_floats())
    return ENCODED + base64.b64encode(ir.to_proto(attribute).SerializeToString(deterministic=True)).decode()
