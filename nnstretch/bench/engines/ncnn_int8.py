"""Quantised ONNX graphs as ncnn computes them: a float32 graph, and the integers of the layers that compute in int8.

ncnn quantises the input of an int8 layer symmetrically (from -127 to 127, with one scale) and its weights with a scale per
output channel. What such a layer makes is float32, or the integers of the next int8 layer. All other layers are float32.

So weights and their scales are those of the file. An activation of the file whose zero point is that of symmetric integers
keeps its scale; otherwise the largest number that it can hold becomes 127, and a step of ncnn's is at most twice as large.
Tensors that no int8 layer reads are not rounded.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from nnstretch.passes.constants import FoldConstants
from nnstretch.passes.quantization import stored_weights, transpose_weight
from nnstretch.passes.rewriting import (
    EachNode,
    Rounding,
    argument,
    bypass,
    constant,
    float_initializer,
    float_shape,
    insert,
    is_onnx,
    producer_of,
    rounding,
)

_LARGEST = 127
_IS_INT8 = "nnstretch.ncnn.int8"
"""Mark of nodes that are layers in int8."""
_WEIGHTED = ("Conv", "Gemm", "MatMul")
_NOT_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax")
_KEEPS_SIGNS = (
    *("Add", "AveragePool", "Concat", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "Mul", "Reshape"),
    *("Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
)
"""Operators whose results are not negative if none of their inputs in float32 is."""


@dataclass(frozen=True, eq=False)
class Int8Layer:
    """A layer that ncnn computes in int8.

    Attributes:
        number: of the layer among the convolutions and matrix products of the graph.
        stand_in: float32, the weights of the layer in the float32 graph: different numbers for every layer, by which it is
            found in ncnn's file. (filters, channels of a group, *kernel) or (results, inputs).
        weights: int8, from -127 to 127, of the same shape.
        weight_scales: float32, one per filter: numbers / integers.
        input_scale: the same of the input.
    """

    number: int
    stand_in: np.ndarray
    weights: np.ndarray
    weight_scales: np.ndarray
    input_scale: float


@dataclass(frozen=True)
class Int8Graph:
    """A quantised graph for ncnn.

    Attributes:
        graph: float32, without QuantizeLinear and DequantizeLinear.
        layers: its layers that compute in int8; in the graph they have the weights that stand for theirs.
    """

    graph: ir.Model
    layers: tuple[Int8Layer, ...]


def int8_graph(model: ir.Model, floating: Container[int] = ()) -> Int8Graph:
    """The graph and the int8 layers of a quantised model.

    Args:
        model: with QuantizeLinear and DequantizeLinear; it stays as it is.
        floating: numbers of layers that compute in float32.

    Raises:
        RuntimeError: ncnn cannot express it; the message is the reason.
    """
    made = model.clone()
    for operation in (
        common.OutputFixPass(),
        FoldConstants(),
        EachNode(transpose_weight),
        common.RemoveUnusedNodesPass(),
    ):
        operation(made)
    _check_ends(made)
    layers: list[Int8Layer] = []
    for number, node in enumerate([node for node in made.graph if is_onnx(node, *_WEIGHTED)]):
        found = None if number in floating else _int8_layer(node, number)
        if found is not None:
            _let_read(node, found)
            layers.append(found)
    _remove_rounding(made)
    return Int8Graph(made, tuple(layers))


def _check_ends(model: ir.Model) -> None:
    for what, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        for value in values:
            if value.dtype != ir.DataType.FLOAT:
                kind = "of no known type" if value.dtype is None else value.dtype.name.lower()
                raise RuntimeError(f"{what} {value.name} is {kind}, and ncnn takes and makes float32")


# -- layers --------------------------------------------------------------------------------------------------------------


def _int8_layer(node: ir.Node, number: int) -> Int8Layer | None:
    """A layer in int8, the `number`th; None if ncnn computes it in float32."""
    source = _rounding_before(node)
    weights = stored_weights(node.inputs[1], 0 if _has_results_first(node) else 1)
    if source is None or weights is None or not _is_expressible(node, weights[1]):
        return None
    stored, scales = weights
    if stored.min(initial=0) < -_LARGEST:
        return None
    stored = stored if _has_results_first(node) else stored.T
    # pnnx keeps weights as they are. Random ones are as good as any for it, and tell layers with equal weights apart.
    stand_in = np.random.default_rng(number).uniform(0.5, 1.0, stored.shape).astype(np.float32)
    return Int8Layer(number, stand_in, np.ascontiguousarray(stored), scales, symmetric_scale(source))


def _rounding_before(node: ir.Node) -> Rounding | None:
    """How the input of a node is rounded; None if it is not, or in a way that ncnn has not."""
    reader = producer_of(node.inputs[0])
    found = rounding(reader) if is_onnx(reader, "DequantizeLinear") else None
    if found is None or not found.is_per_tensor or found.dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
        return None
    return found


def symmetric_scale(found: Rounding) -> float:
    """The scale of integers from -127 to 127 that hold every number of 8-bit integers with a zero point."""
    limits = np.iinfo(found.dtype.numpy())
    zero = int(found.zero_points[0])
    if zero == int(limits.max) - _LARGEST:
        return float(found.scales[0])
    return float(found.scales[0]) * max(zero - int(limits.min), int(limits.max) - zero) / _LARGEST


def _has_results_first(node: ir.Node) -> bool:
    """Whether axis 0 of the weights is that of the results."""
    return node.op_type == "Conv" or node.attributes.get_int("transB", 0) == 1


def _is_expressible(node: ir.Node, scales: np.ndarray) -> bool:
    """Whether ncnn has an int8 layer for a node whose weights have these scales."""
    shape = float_shape(node.inputs[0])
    if shape is None:
        return False
    if node.op_type == "Conv":
        groups = node.attributes.get_int("group", 1)
        # ncnn has one scale per group, and images only.
        return len(shape) == 4 and (groups == 1 or bool((np.ptp(scales.reshape(groups, -1), axis=1) == 0).all()))
    if node.op_type == "MatMul":
        return len(shape) == 2
    scaled = node.attributes.get_float("alpha", 1.0) != 1 or node.attributes.get_float("beta", 1.0) != 1
    return not scaled and node.attributes.get_int("transA", 0) == 0


def _let_read(node: ir.Node, layer: Int8Layer) -> None:
    """Gives a node the weights that stand for those of its layer."""
    weights = layer.stand_in if _has_results_first(node) else layer.stand_in.T
    node.replace_input_with(1, float_initializer(node, "stand_in", weights))
    node.meta[_IS_INT8] = True


# -- rounding ------------------------------------------------------------------------------------------------------------


def _remove_rounding(model: ir.Model) -> None:
    """Removes all QuantizeLinear and DequantizeLinear; where these clip at 0, a Relu or Clip does.

    Such an activation may be in the file as nothing but its rounding.

    Raises:
        RuntimeError: a tensor of integers remains.
    """
    not_negative: set[ir.Value] = set()
    for node in tuple(model.graph):
        if node.graph is not model.graph:
            continue  # a DequantizeLinear, removed with its QuantizeLinear
        if is_onnx(node, "QuantizeLinear"):
            _remove_quantize(node, not_negative)
        elif is_onnx(node, "DequantizeLinear"):
            array = constant(node.outputs[0])
            if array is None:
                raise RuntimeError(f"ncnn has nothing like {_called(node)}, whose integers are computed")
            node.outputs[0].replace_all_uses_with(float_initializer(node, "constant", array))
        elif _is_not_negative(node, not_negative):
            not_negative.update(node.outputs)
    common.RemoveUnusedNodesPass()(model)


def _called(node: ir.Node) -> str:
    return f"{node.op_type} {node.name or node.outputs[0].name}"


def _remove_quantize(node: ir.Node, not_negative: set[ir.Value]) -> None:
    """Lets readers of rounded numbers read the numbers themselves, clipped if need be."""
    source, readers, found = node.inputs[0], tuple(node.outputs[0].consumers()), rounding(node)
    if constant(node.outputs[0]) is not None:
        return  # of weights: its readers are constants
    if source is None or found is None or not all(is_onnx(reader, "DequantizeLinear") for reader in readers):
        raise RuntimeError(f"ncnn has nothing like {_called(node)}, whose integers are read by other operators")
    shape = float_shape(source)
    if found.is_per_tensor and found.zero_points[0] == _lowest(found) and source not in not_negative:
        if shape is None:
            raise RuntimeError(f"ncnn has nothing like {_called(node)}, which clips a tensor of no known shape")
        source = _clipped(node, source, shape, found, [reader.outputs[0] for reader in readers])
        not_negative.add(source)
    for reader in readers:
        reader.replace_input_with(0, source)
        if not bypass(reader):
            reader.op_type = "Identity"
            reader.attributes.clear()
            reader.resize_inputs(1)


def _lowest(found: Rounding) -> int:
    return int(np.iinfo(found.dtype.numpy()).min)


def _clipped(
    node: ir.Node, source: ir.Value, shape: tuple[int, ...], found: Rounding, results: Iterable[ir.Value]
) -> ir.Value:
    """What is read instead of a rounded tensor. Int8 layers clip their inputs at the upper end themselves."""
    uses = [use for result in results for use in result.uses()]
    ends = any(result.is_graph_output() for result in results)
    if not ends and all(use.node.meta.get(_IS_INT8) and use.idx == 0 for use in uses):
        return insert(node, "Relu", (source,), shape, domain="")
    highest = (int(np.iinfo(found.dtype.numpy()).max) - _lowest(found)) * found.scales[0]
    bounds = [float_initializer(node, name, np.array(bound)) for name, bound in (("low", 0.0), ("high", highest))]
    return insert(node, "Clip", (source, *bounds), shape, domain="")


def _is_not_negative(node: ir.Node, not_negative: set[ir.Value]) -> bool:
    if is_onnx(node, "Clip"):
        low = constant(argument(node, 1))
        return low is not None and bool((low >= 0).all())
    inputs = [value for value in node.inputs if value is not None and value.dtype == ir.DataType.FLOAT]
    return is_onnx(node, *_NOT_NEGATIVE) or (is_onnx(node, *_KEEPS_SIGNS) and not_negative.issuperset(inputs))
