"""From the graph of an int8 file to one whose roundings are layers: weights in float32, `FakeQuantize` for activations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from nnstretch.graph.layer import DOMAIN

FAKE_QUANTIZE = "FakeQuantize"
"""Operator with the attribute `tensor`: the activation whose scale and zero point it has."""
_SCALE, _QUANTIZED = "_scale", "_quantized"
_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class RoundedWeight:
    """How the weights of a layer are rounded.

    Attributes:
        axis: of the channels that have scales of their own; None: one scale.
    """

    axis: int | None


@dataclass(frozen=True)
class RoundedBias:
    """How the biases of a layer are rounded: by the scales of its input and of its weights.

    Attributes:
        tensor: the activation that is the layer's input.
    """

    tensor: str


@dataclass
class RoundedGraph:
    """A float32 graph with roundings.

    Attributes:
        model: the graph.
        activations: tensors that are rounded and have a scale and a zero point of their own.
        weights: constant of `model` -> how it is rounded.
        biases: constant of `model` -> how it is rounded.
        names: constant of `model` -> what it is called in the network in float32; biases have other names.
    """

    model: ir.Model
    activations: list[str] = field(default_factory=list)
    weights: dict[str, RoundedWeight] = field(default_factory=dict)
    biases: dict[str, RoundedBias] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


def rounded_graph(int8: ir.Model, network: ir.Model) -> RoundedGraph:
    """The graph of an int8 file with the weights of the network that it was made from.

    Args:
        int8: the file's graph; it is changed.
        network: in float32, folded.
    """
    made = RoundedGraph(int8)
    floats = {str(name): value for name, value in network.graph.initializers.items()}
    for node in list(int8.graph):
        if node.op_type == "DequantizeLinear" and node.inputs[0] is not None and node.inputs[0].is_initializer():
            _unround_constant(made, node, floats)
        elif node.op_type == "QuantizeLinear":
            _replace_pair(made, node)
    for node in int8.graph:
        if node.op_type in _WEIGHTED:
            _note_bias(made, node)
    return made


def _note_bias(made: RoundedGraph, node: ir.Node) -> None:
    """Notes how the bias of a layer is rounded, if it was int32 in the file."""
    weight, bias = (str(value.name) if value is not None else "" for value in (*node.inputs[1:3], None)[:2])
    producer = node.inputs[0].producer() if node.inputs[0] is not None else None
    if bias in made.names and weight in made.weights and producer is not None and producer.op_type == FAKE_QUANTIZE:
        made.biases[bias] = RoundedBias(producer.attributes.get_string("tensor", ""))


def clipped_to(network: ir.Model, tensor: str) -> tuple[float, float]:
    """The bounds of a Relu or Clip that computes a tensor; infinite without.

    In the int8 file, the saturation of the integers stands for these operators.
    """
    node = next((node for node in network.graph if node.outputs[0].name == tensor), None)
    if node is not None and node.op_type == "Relu":
        return 0.0, math.inf
    if node is None or node.op_type != "Clip":
        return -math.inf, math.inf
    ends = [*node.inputs[1:3], None, None][:2]
    low, high = (None if end is None or end.const_value is None else float(end.const_value.numpy()) for end in ends)
    return -math.inf if low is None else low, math.inf if high is None else high


def _unround_constant(made: RoundedGraph, node: ir.Node, floats: Mapping[str, ir.Value]) -> None:
    """Replaces what dequantises a constant: by weights in float32 where a layer multiplies with them, else by its result."""
    stored, scales = node.inputs[0], node.inputs[1]
    assert stored is not None and stored.const_value is not None
    assert scales is not None and scales.const_value is not None
    name, result = str(stored.name).removesuffix(_QUANTIZED), node.outputs[0]
    readers = {(use.node.op_type, use.idx) for use in result.uses()}
    is_weight = stored.dtype == ir.DataType.INT8 and all(op in _WEIGHTED and index == 1 for op, index in readers)
    is_bias = stored.dtype == ir.DataType.INT32 and all(op in _WEIGHTED and index == 2 for op, index in readers)
    if name in floats and (is_weight or is_bias):
        source = floats[name].const_value
        assert source is not None
        # A converter leaves out a bias of zeros that has an exporter's name, and later weights may have none.
        title = name if is_weight else f"bias of {name}."
        value = _constant(made.model.graph, title, source.numpy())
        made.names[title] = name
        if is_weight:
            per_channel = scales.const_value.numpy().size > 1
            made.weights[title] = RoundedWeight(node.attributes.get_int("axis", 1) if per_channel else None)
    else:
        value = _constant(made.model.graph, f"{name}/dequantized", dequantized(node))
    _replace(made.model.graph, node, value)


def dequantized(node: ir.Node) -> np.ndarray:
    """What a DequantizeLinear of constants computes."""
    stored, scales, zeros = (
        None if value is None or value.const_value is None else value.const_value.numpy() for value in node.inputs[:3]
    )
    assert stored is not None
    assert scales is not None
    shape = [1] * stored.ndim
    if scales.size > 1:
        shape[node.attributes.get_int("axis", 1)] = -1
    integers = stored.astype(np.int64) - (0 if zeros is None else zeros.astype(np.int64).reshape(shape))
    return np.asarray(integers.astype(np.float32) * scales.reshape(shape), np.float32)


def _replace_pair(made: RoundedGraph, node: ir.Node) -> None:
    """Replaces a QuantizeLinear and the DequantizeLinear that read it by one layer."""
    source, scale = node.inputs[0], node.inputs[1]
    assert source is not None
    assert scale is not None
    tensor = str(scale.name).removesuffix(_SCALE)
    if tensor not in made.activations:
        made.activations.append(tensor)
    readers = [reader for reader in node.outputs[0].consumers() if reader.op_type == "DequantizeLinear"]
    result = ir.Value(name=f"{node.outputs[0].name}/rounded", type=readers[0].outputs[0].type, shape=source.shape)
    layer = ir.Node(
        DOMAIN,
        FAKE_QUANTIZE,
        (source,),
        [ir.AttrString("tensor", tensor)],
        outputs=[result],
        name=f"{node.name}/rounded",
    )
    made.model.graph.insert_after(node, layer)
    for reader in readers:
        _replace(made.model.graph, reader, result)
    made.model.graph.remove(node, safe=True)


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """A constant of the graph, made once."""
    if name in graph.initializers:
        return graph.initializers[name]
    value = ir.Value(name=name, const_value=ir.tensor(np.array(array, np.float32, order="C"), name=name))
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def _replace(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Lets all readers of a node's output, the graph's end included, read another value."""
    result = node.outputs[0]
    for use in tuple(result.uses()):
        use.node.replace_input_with(use.idx, value)
    for index, output in enumerate(graph.outputs):
        if output is result:
            graph.outputs[index] = value
    graph.remove(node, safe=True)
