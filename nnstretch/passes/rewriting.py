"""What the passes share: reading constants, shapes and attributes, and rewriting nodes in place.

A canonical node is a node of domain `nnstretch` (the operators of `nnstretch.graph.layer`). Passes turn ONNX
nodes into canonical ones in place where they can, so that values keep their names and nodes their metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import DOMAIN, Attribute
from nnstretch.graph.metadata import unused_name

DEFAULT_DOMAINS = ("", "ai.onnx")
_QUANTIZATION = "nnstretch.quantization"  # of values' meta
_NAMES = "nnstretch.names"  # of a graph's meta
# Operators that can carry an activation as their last step.
CARRIERS = frozenset({"Conv", "Dense", "MatMul", "Affine", "Add", "Sub", "Mul", "LayerNorm", "GroupNorm"})


Rewrite = Callable[[ir.Node], bool]
"""Rewrites what is around a node, and says whether it did."""


class EachNode(ir.passes.InPlacePass):
    """The pass that calls a function for every node of the main graph once, in topological order.

    Bodies of control-flow operators are left alone: the fallback runs them whole.
    """

    def __init__(self, rewrite: Rewrite) -> None:
        super().__init__()
        self.rewrite = rewrite

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model` in place."""
        modified = False
        with remembered_names(model.graph):
            for node in tuple(model.graph):
                # A node may have been fused away while an earlier one was visited.
                if node.graph is model.graph and self.rewrite(node):
                    modified = True
        return ir.passes.PassResult(model, modified)


Lowerings = Mapping[str, Sequence[Rewrite]]
"""Operator of ONNX -> the functions that make it canonical, in the order in which they are tried."""


def each_operator(*tables: Lowerings) -> EachNode:
    """The pass that calls the functions of a node's ONNX operator, table by table, up to the first that rewrites something."""

    def rewrite(node: ir.Node) -> bool:
        return any(is_onnx(node, *table) and any(lower(node) for lower in table[node.op_type]) for table in tables)

    return EachNode(rewrite)


def is_onnx(node: ir.Node | None, *op_types: str) -> TypeGuard[ir.Node]:
    """Whether `node` is one of these operators of the default ONNX domain."""
    return node is not None and node.domain in DEFAULT_DOMAINS and node.op_type in op_types


def is_canonical(node: ir.Node | None, *op_types: str) -> TypeGuard[ir.Node]:
    """Whether `node` is canonical and one of these operators."""
    return node is not None and node.domain == DOMAIN and node.op_type in op_types


def producer_of(value: ir.Value | None) -> ir.Node | None:
    """The node that computes `value`; None for an absent value, and for inputs and constants of the graph."""
    return None if value is None else value.producer()


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The value of an initializer, or of one that is (de)quantised; None if `value` is absent or computed at run time."""
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    return _rounded_constant(value.producer())


@dataclass(frozen=True, eq=False)
class Rounding:
    """What a QuantizeLinear or DequantizeLinear rounds to, or reads.

    Attributes:
        scales: float32, positive and finite; one, or one for each place along `axis`.
        zero_points: as many.
        axis: of the tensor; 0 where there is one scale.
        dtype: of the integers.
    """

    scales: np.ndarray
    zero_points: np.ndarray
    axis: int
    dtype: ir.DataType

    @property
    def is_per_tensor(self) -> bool:
        """Whether all elements have the same scale and zero point."""
        return self.scales.size == 1

    def shaped(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Scales and zero points, to be broadcast over a tensor of `rank` axes."""
        shape = [1] * rank
        if not self.is_per_tensor:
            shape[self.axis] = -1
        return self.scales.reshape(shape), self.zero_points.reshape(shape)


def rounding(node: ir.Node | None) -> Rounding | None:
    """What a QuantizeLinear or DequantizeLinear says; None if it is something else, or not of a kind that is known."""
    if not is_onnx(node, "QuantizeLinear", "DequantizeLinear") or node.attributes.get_int("block_size", 0) != 0:
        return None
    integers = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    dtype, shape = None if integers is None else integers.dtype, shape_of(node.inputs[0])
    scales, zero_points = constant(argument(node, 1)), constant(argument(node, 2))
    if dtype is None or not dtype.is_integer() or shape is None or scales is None:
        return None
    if scales.dtype != np.float32 or scales.ndim > 1 or not (np.isfinite(scales) & (scales > 0)).all():
        return None
    if zero_points is None and argument(node, 2) is not None:
        return None
    axis = node.attributes.get_int("axis", 1) % max(1, len(shape))
    if scales.size != 1 and (not shape or scales.size != shape[axis]):
        return None
    zero_points = np.zeros(scales.size, np.int32) if zero_points is None else zero_points.reshape(-1).astype(np.int32)
    return Rounding(scales.reshape(-1), zero_points, 0 if scales.size == 1 else axis, dtype)


def _rounded_constant(node: ir.Node | None) -> np.ndarray | None:
    """What a QuantizeLinear or DequantizeLinear makes of a constant."""
    found = rounding(node)
    source = constant(node.inputs[0]) if node is not None and found is not None else None
    if node is None or found is None or source is None:
        return None
    scales, zero_points = found.shaped(source.ndim)
    if node.op_type == "DequantizeLinear":
        return np.asarray((source.astype(np.float32) - zero_points.astype(np.float32)) * scales, np.float32)
    if found.dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
        return None
    limits = np.iinfo(found.dtype.numpy())
    return np.asarray(np.clip(np.rint(source / scales) + zero_points, limits.min, limits.max), limits.dtype)


def quantization_of(value: ir.Value | None) -> QuantizationParameters | None:
    """The quantization parameters of an int8 value that stands for numbers."""
    return None if value is None else value.meta.get(_QUANTIZATION)


def set_quantization(value: ir.Value, quantization: QuantizationParameters) -> None:
    """Makes `value` int8 that stands for numbers."""
    value.type = ir.TensorType(ir.DataType.INT8)
    value.meta[_QUANTIZATION] = quantization


def scalar(value: ir.Value | None) -> float | None:
    """The only element of a constant, or None."""
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def shape_of(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of `value` if all of its dimensions are known."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return value.shape.numpy()


def float_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of `value` if it is known and the elements are float32; None for a tensor without elements.

    ONNX Runtime computes what reads or makes empty tensors.
    """
    shape = shape_of(value) if value is not None and value.dtype == ir.DataType.FLOAT else None
    return None if shape is None or 0 in shape else shape


def integers(node: ir.Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    """Integer list attribute `name` of an ONNX node."""
    attribute = node.attributes.get(name)
    return tuple(default) if attribute is None else tuple(attribute.as_ints())


def constant_integers(
    node: ir.Node, name: str, index: int, default: Sequence[int] | None = None
) -> tuple[int, ...] | None:
    """Integers that are attribute `name` in old operator sets and input `index` in newer ones.

    None if the node computes them in the run, or has neither and there is no default.
    """
    if name in node.attributes:
        return integers(node, name, ())
    if argument(node, index) is None:
        return None if default is None else tuple(default)
    array = constant(argument(node, index))
    return None if array is None else tuple(int(element) for element in array.reshape(-1))


def argument(node: ir.Node, index: int) -> ir.Value | None:
    """Input `index`, None where an optional one is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def sole_use(value: ir.Value | None) -> bool:
    """Whether exactly one input of one node reads `value`, and it is no output of the graph."""
    return value is not None and len(value.uses()) == 1 and not value.is_graph_output()


def has_one_result(node: ir.Node) -> bool:
    """Whether nothing reads more than the first output of a node, and no other is an output of the graph."""
    return not any(output.uses() or output.is_graph_output() for output in node.outputs[1:])


def activation_of(node: ir.Node) -> Activation:
    """The activation that a canonical node ends with."""
    if "activation" not in node.attributes:
        return NO_ACTIVATION
    kind = ActivationKind[node.attributes.get_string("activation", "none").upper()]
    return Activation(
        kind, node.attributes.get_float("activation_a", 0.0), node.attributes.get_float("activation_b", 0.0)
    )


def set_activation(node: ir.Node, activation: Activation) -> None:
    """Make a canonical node end with `activation`."""
    values: dict[str, Attribute] = {
        "activation": activation.kind.name.lower(),
        "activation_a": float(activation.a),
        "activation_b": float(activation.b),
    }
    set_attributes(node, values)


def set_attributes(node: ir.Node, attributes: Mapping[str, Attribute]) -> None:
    """Adds attributes to a canonical node, or replaces those of the same names."""
    for attribute in ir.convenience.convert_attributes(attributes):
        node.attributes[attribute.name] = attribute


def set_inputs(node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
    """Gives a node these inputs instead of its own."""
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def become(
    node: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Attribute] | None = None,
    activation: Activation = NO_ACTIVATION,
) -> bool:
    """Turn `node` into the canonical `op_type` with its first output; True, as rewriting functions say."""
    node.domain, node.op_type, node.overload = DOMAIN, op_type, ""
    node.version = None
    set_inputs(node, inputs)
    if len(node.outputs) > 1:
        node.resize_outputs(1)
    node.attributes.clear()
    set_attributes(node, attributes or {})
    if activation != NO_ACTIVATION:
        set_activation(node, activation)
    return True


def insert(
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    shape: Sequence[int],
    attributes: Mapping[str, Attribute | ir.Attr] | None = None,
    domain: str = DOMAIN,
) -> ir.Value:
    """A new float32 node in front of `before`, with its metadata; returns what it computes. It is canonical by default."""
    graph = graph_of(before)
    output = ir.Value(
        name=unused_value_name(graph, f"{before.outputs[0].name}/{op_type}"),
        shape=ir.Shape(shape),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    node = ir.node(
        op_type,
        inputs,
        attributes,
        domain=domain,
        outputs=[output],
        name=f"{before.name}/{op_type}",
        metadata_props=dict(before.metadata_props),
    )
    graph.insert_before(before, node)
    return output


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph that holds `node`."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    return graph


def unused_value_name(graph: ir.Graph, wanted: str) -> str:
    """`wanted`, or that with a number where a value of the graph has that name."""
    taken: set[str] = graph.meta.get(_NAMES) or _names(graph)
    name = unused_name(wanted, taken, ".")
    if _NAMES in graph.meta:
        taken.add(name)
        graph.meta[_NAMES] = taken
    return name


@contextmanager
def remembered_names(graph: ir.Graph) -> Iterator[None]:
    """Names of values are collected once for all `unused_value_name` of a pass, which makes no values by other names."""
    graph.meta[_NAMES] = set()
    try:
        yield
    finally:
        del graph.meta[_NAMES]


def _names(graph: ir.Graph) -> set[str]:
    values = (*graph.inputs, *(output for node in graph for output in node.outputs))
    return {*graph.initializers, *(value.name for value in values if value.name)}


def initializer(node: ir.Node, role: str, array: np.ndarray) -> ir.Value:
    """A new constant of the graph of `node`, called after what the node computes."""
    graph = graph_of(node)
    name = unused_value_name(graph, f"{node.outputs[0].name}/{role}")
    tensor = ir.Tensor(np.ascontiguousarray(array), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def reshaped(before: ir.Node, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """A float32 value in another shape: itself if it has it, else what a Reshape of ONNX in front of `before` makes."""
    if float_shape(value) == tuple(shape):
        return value
    target = initializer(before, "shape", np.array(shape, np.int64))
    return insert(before, "Reshape", (value, target), shape, domain="")


def float_initializer(node: ir.Node, role: str, array: np.ndarray) -> ir.Value:
    """A new float32 constant."""
    return initializer(node, role, np.asarray(array, dtype=np.float32))


def absorb(survivor: ir.Node, absorbed: ir.Node) -> None:
    """Let `survivor` compute what `absorbed`, its only reader, did, and remove the latter.

    The survivor moves to the place of the absorbed node, after everything that either of them reads.
    """
    graph = graph_of(absorbed)
    kept, gone = survivor.outputs[0], absorbed.outputs[0]
    graph.remove(survivor)
    graph.insert_before(absorbed, survivor)
    gone.replace_all_uses_with(kept, replace_graph_outputs=True)
    name = gone.name
    graph.remove(absorbed, safe=True)
    gone.name = None
    kept.name, kept.shape, kept.type = name, gone.shape, gone.type


def bypass(node: ir.Node) -> bool:
    """Remove a node whose first output equals its first input; False if that would lose an output's name."""
    source, result, name = node.inputs[0], node.outputs[0], node.outputs[0].name
    assert source is not None
    is_output = result.is_graph_output()
    if is_output and (source.is_graph_input() or source.is_initializer() or source.is_graph_output()):
        return False
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    graph_of(node).remove(node, safe=True)
    if is_output:
        result.name, source.name = None, name
    return True
