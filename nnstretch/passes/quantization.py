"""Quantised networks: QuantizeLinear and DequantizeLinear around layers become layers that compute with int8.

Such networks compute in float32 on paper, with a QuantizeLinear and a DequantizeLinear wherever a tensor is to be rounded.
The two, where all elements of a tensor have one scale, become Quantize and Dequantize. At the end a layer that reads nothing
but what is dequantised, and whose result is quantised and nothing else, reads and makes the integers. Convolutions and dense
layers whose result stays unrounded read integers and make float32. What does not fit (a scale per channel, integers of other
widths, another layer whose result somebody reads unrounded) stays as it is: it computes in float32 between Dequantize and
Quantize, or on the fallback.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import NO_ACTIVATION, Activation
from nnstretch.graph.dtypes import HIGHEST, LOWEST, QuantizationParameters
from nnstretch.passes.canonicalize.activations import bounds_of
from nnstretch.passes.rewriting import (
    CARRIERS,
    DEFAULT_DOMAINS,
    Lowerings,
    Rounding,
    absorb,
    activation_of,
    argument,
    become,
    bypass,
    constant,
    float_initializer,
    float_shape,
    graph_of,
    initializer,
    insert,
    integers,
    is_canonical,
    is_onnx,
    producer_of,
    quantization_of,
    rounding,
    set_activation,
    set_inputs,
    set_quantization,
    sole_use,
)

_SIGN = 128
"""Difference between the zero points of uint8 and int8."""
_WEIGHTED = ("Conv", "Dense")
_COMPUTED = (*_WEIGHTED, "Add", "Sub", "Mul", "Concat", "AveragePool", "GlobalPool", "Resize", "Activation", "Softmax")
"""Operators whose inputs and results may have different quantization parameters."""
_MOVING = ("Reshape", "Transpose", "Slice", "MaxPool")
"""Operators whose results are elements of their input."""
_LARGEST_BIAS = 2**31 - 1
_SAME_SCALE = 1e-6
"""Relative tolerance for scales that were multiplied and rounded in different orders."""


def lower_quantize(node: ir.Node) -> bool:
    """QuantizeLinear with one scale becomes Quantize, and the DequantizeLinear that read it become Dequantize, on int8.

    Integers of uint8 that nothing but DequantizeLinear reads count from -128 instead, which changes no number.
    """
    source, result = node.inputs[0], node.outputs[0]
    quantization = _quantization(rounding(node))
    if quantization is None or float_shape(source) is None or constant(source) is not None:
        return False
    readers = [reader for reader, index in result.uses() if index == 0 and _reads(reader, result, quantization)]
    if result.dtype != ir.DataType.INT8 and (result.is_graph_output() or len(readers) != len(result.uses())):
        _round(node, 0, quantization)
        return _write_bytes(node, quantization)
    set_quantization(result, quantization)
    for reader in readers:
        become(reader, "Dequantize", (result,))
    become(node, "Quantize", (source,))
    _merge_with_equal(node)
    return True


def _merge_with_equal(node: ir.Node) -> None:
    """Merges duplicate Quantize nodes."""
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    for other in source.consumers():
        same = (
            other is not node
            and is_canonical(other, "Quantize")
            and quantization_of(other.outputs[0]) == quantization_of(result)
        )
        if same and not result.is_graph_output():
            result.replace_all_uses_with(other.outputs[0])
            graph_of(node).remove(node, safe=True)
            return


def lower_dequantize(node: ir.Node) -> bool:
    """DequantizeLinear of what no Quantize makes, an input of the graph or of the fallback, becomes Dequantize."""
    source, result, quantization = node.inputs[0], node.outputs[0], _quantization(rounding(node))
    if source is None or constant(source) is not None or quantization is None or float_shape(result) is None:
        return False
    if source.dtype == ir.DataType.UINT8:
        for reader, index in tuple(result.uses()):
            _round(reader, index, quantization)
        return _read_bytes(node, quantization)
    if quantization_of(source) not in (None, quantization):
        return False
    set_quantization(source, quantization)
    return become(node, "Dequantize", (source,))


def _round(reader: ir.Node, index: int, quantization: QuantizationParameters) -> bool:
    """Lets `reader` read an input by way of int8, which changes nothing where it is rounded to the same numbers anyway.

    So the layers between inputs and outputs that callers know as uint8 are int8 all the same.
    """
    source = reader.inputs[index]
    shape = float_shape(source)
    assert shape is not None
    quantized = insert(reader, "Quantize", (source,), shape)
    set_quantization(quantized, quantization)
    reader.replace_input_with(index, insert(reader, "Dequantize", (quantized,), shape))
    return True


def _read_bytes(node: ir.Node, quantization: QuantizationParameters) -> bool:
    """DequantizeLinear of uint8 becomes a Cast to float32 and the arithmetic that it stands for.

    Args:
        node: the operator.
        quantization: its parameters for int8.
    """
    shape, zero = float_shape(node.outputs[0]), quantization.zero_point + _SIGN
    assert shape is not None
    floats = insert(node, "Cast", (node.inputs[0],), shape)
    set_inputs(node, (_line(node, floats, shape, quantization.scale, -zero * quantization.scale),))
    return bypass(node)


def _write_bytes(node: ir.Node, quantization: QuantizationParameters) -> bool:
    """QuantizeLinear to uint8 of what was rounded to the same numbers before becomes arithmetic and a Cast.

    Args:
        node: the operator.
        quantization: its parameters for int8.
    """
    source, zero = node.inputs[0], quantization.zero_point + _SIGN
    shape = float_shape(source)
    assert source is not None
    assert shape is not None
    # The Cast drops the fraction: the half is above all errors of rounding, and below the next integer.
    return become(node, "Cast", (_line(node, source, shape, 1 / quantization.scale, zero + 0.5),), {})


def _line(before: ir.Node, source: ir.Value, shape: tuple[int, ...], scale: float, shift: float) -> ir.Value:
    """`scale * source + shift` in front of a node; `source` has this shape."""
    if len(shape) >= 2:
        numbers = (("scale", np.full(shape[1], scale)), ("shift", np.full(shape[1], shift)))
        return insert(before, "Affine", (source, *(float_initializer(before, *one) for one in numbers)), shape)
    product = insert(before, "Mul", (source, float_initializer(before, "scale", np.array(scale))), shape)
    return insert(before, "Add", (product, float_initializer(before, "shift", np.array(shift))), shape)


def _reads(node: ir.Node, source: ir.Value, quantization: QuantizationParameters) -> bool:
    """Whether `node` is a DequantizeLinear that dequantizes `source` by these parameters."""
    floats = is_onnx(node, "DequantizeLinear") and float_shape(node.outputs[0]) is not None
    return floats and node.inputs[0] is source and _quantization(rounding(node)) == quantization


def _quantization(found: Rounding | None) -> QuantizationParameters | None:
    """The same parameters for int8; None where there are none, or where the scale is 0, by which nothing can be divided."""
    if found is None or not found.is_per_tensor or found.dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
        return None
    if not found.scales[0]:
        return None
    shift = _SIGN if found.dtype == ir.DataType.UINT8 else 0
    return QuantizationParameters(float(found.scales[0]), int(found.zero_points[0]) - shift)


def transpose_weight(node: ir.Node) -> bool:
    """Folds the Transpose of a dequantised constant matrix, as exporters write dense layers."""
    source = node.inputs[0] if is_onnx(node, "Transpose") else None
    if source is None or node.outputs[0].is_graph_output():
        return False
    turned = transposed_weight(node, source)
    if turned is None or integers(node, "perm", (1, 0)) != (1, 0):
        return False
    node.outputs[0].replace_all_uses_with(turned)
    graph_of(node).remove(node, safe=True)
    return True


def transposed_weight(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The transposed matrix of a DequantizeLinear of constants as one more of these in front of `node`, or None."""
    origin = value.producer()
    found, stored = rounding(origin), None if origin is None else constant(origin.inputs[0])
    if origin is None or found is None or stored is None or stored.ndim != 2:
        return None
    matrix = initializer(node, "weight", stored.T)
    result = ir.Value(name=f"{matrix.name}/dequantized", shape=ir.Shape(stored.T.shape), type=value.type)
    made = ir.Node(
        "",
        "DequantizeLinear",
        (matrix, *origin.inputs[1:]),
        [ir.AttrInt64("axis", 1 - found.axis)],
        outputs=[result],
        name=f"{node.name}/weight",
    )
    graph_of(node).insert_before(node, made)
    return result


def stored_weights(value: ir.Value | None, axis: int = 0) -> tuple[np.ndarray, np.ndarray] | None:
    """Int8 weights and the scale of each output channel along `axis`; None if they are not int8 with such scales."""
    origin = producer_of(value)
    found, stored = rounding(origin), None if origin is None else constant(origin.inputs[0])
    if found is None or stored is None or not (found.axis == axis or found.is_per_tensor):
        return None
    if stored.dtype == np.uint8 and (found.zero_points == _SIGN).all():
        stored = (stored.astype(np.int16) - _SIGN).astype(np.int8)
    elif stored.dtype != np.int8 or found.zero_points.any():
        return None
    return stored, np.broadcast_to(found.scales, (stored.shape[axis],)).copy()


def _bias(value: ir.Value | None, scales: np.ndarray) -> np.ndarray | None:
    """A bias in multiples of `scales`, unchanged if it is stored that way; None if it exceeds int32."""
    numbers = constant(value)
    if value is None or numbers is None:
        return None
    found = rounding(value.producer())
    if found is not None and found.dtype == ir.DataType.INT32 and not found.zero_points.any():
        stored = constant(value.producer().inputs[0])  # type: ignore[union-attr]
        if stored is not None and np.allclose(found.scales, scales, _SAME_SCALE, 0.0):
            return stored
    steps = np.rint(numbers.astype(np.float64).reshape(-1) / scales)
    return steps.astype(np.int32) if (np.abs(steps) <= _LARGEST_BIAS).all() else None


def quantize_early(node: ir.Node) -> bool:
    """Moves a Quantize in front of operators that only move elements: these can move integers."""
    if not is_canonical(node, "Quantize"):
        return False
    movers: list[ir.Node] = []
    source = node.inputs[0]
    while sole_use(source) and is_canonical(mover := producer_of(source), *_MOVING):
        movers.append(mover)
        source = mover.inputs[0]
    shape, quantization = float_shape(source), quantization_of(node.outputs[0])
    if not movers or shape is None or quantization is None:
        return False
    quantized = insert(movers[-1], "Quantize", (source,), shape)
    set_quantization(quantized, quantization)
    movers[-1].replace_input_with(0, quantized)
    for mover in movers:
        set_quantization(mover.outputs[0], quantization)
    return bypass(node)


def compute_in_int8(node: ir.Node) -> bool:
    """Layers between Dequantize and Quantize read and compute the integers themselves. Needs topological order.

    Operators that move elements always move the integers. A Quantize of dequantised integers is removed if the parameters are
    equal, and requantises otherwise.
    """
    if is_canonical(node, "Quantize"):
        return _quantize_integers(node)
    if is_canonical(node, *_MOVING) and activation_of(node) == NO_ACTIVATION:
        return _move_integers(node)
    return is_canonical(node, *_COMPUTED) and _compute(node)


def _integers(value: ir.Value | None) -> ir.Value | None:
    """The integers that `value` is dequantised from; None if it is not dequantised."""
    producer = producer_of(value)
    return producer.inputs[0] if is_canonical(producer, "Dequantize") else None


def _quantize_integers(node: ir.Node) -> bool:
    source = _integers(node.inputs[0])
    if source is None:
        return False
    node.replace_input_with(0, source)
    if quantization_of(source) == quantization_of(node.outputs[0]):
        bypass(node)
    return True


def _move_integers(node: ir.Node) -> bool:
    source, shape = _integers(node.inputs[0]), float_shape(node.outputs[0])
    quantization = quantization_of(source)
    if source is None or quantization is None or shape is None:
        return False
    moved = insert(node, node.op_type, (source,), shape, node.attributes)
    set_quantization(moved, quantization)
    return become(node, "Dequantize", (moved,))


def _compute(node: ir.Node) -> bool:
    result = node.outputs[0]
    reader = next(iter(result.consumers())) if sole_use(result) else None
    activation = activation_of(node)
    if node.op_type in CARRIERS and not _clips(activation):
        return False
    if not is_canonical(reader, "Quantize"):
        return False
    quantization = quantization_of(reader.outputs[0])
    if quantization is None:
        return False
    inputs = _weighted_inputs(node) if node.op_type in _WEIGHTED else [_integers(value) for value in node.inputs]
    if inputs is None or inputs[0] is None or any(v is None for v in inputs if node.op_type not in _WEIGHTED):
        return False
    set_inputs(node, inputs)
    if node.op_type in CARRIERS and not _is_seen(activation, quantization):
        set_activation(node, NO_ACTIVATION)
    absorb(node, reader)
    set_quantization(result, quantization)
    return True


def compute_floats(node: ir.Node) -> bool:
    """A Conv or Dense whose result is not rounded reads integers and makes float32.

    Not if it adds a residual, if its sums may exceed int32, or if its activation does more than clip.
    """
    if not is_canonical(node, *_WEIGHTED) or argument(node, 3) is not None or not _clips(activation_of(node)):
        return False
    inputs = _weighted_inputs(node)
    if inputs is None or not _sums_fit(inputs[1], inputs[2]):
        return False
    set_inputs(node, inputs)
    return True


def _sums_fit(weights: ir.Value | None, bias: ir.Value | None) -> bool:
    """Whether no sum of a bias and of products of int8 and weights exceeds int32."""
    stored, steps = constant(weights), constant(bias)
    if stored is None:
        return False
    most = 0 if steps is None else int(np.abs(steps.astype(np.int64)).max(initial=0))
    return bool(stored[0].size * -LOWEST * (HIGHEST - LOWEST) + most < 1 << 31)


def _weighted_inputs(node: ir.Node) -> list[ir.Value | None] | None:
    """The inputs of a Conv or Dense on int8; None if it cannot be one."""
    source, residual = _integers(node.inputs[0]), _integers(argument(node, 3))
    quantization, weight = quantization_of(source), stored_weights(node.inputs[1])
    if quantization is None or weight is None or (argument(node, 3) is not None and residual is None):
        return None
    stored, scales = weight
    bias: ir.Value | None = None
    if argument(node, 2) is not None:
        steps = _bias(node.inputs[2], scales.astype(np.float64) * quantization.scale)
        if steps is None:
            return None
        bias = initializer(node, "bias", steps)
    weights = initializer(node, "weight", stored)
    return [source, weights, bias, residual, initializer(node, "scales", scales)]


def _clips(activation: Activation) -> bool:
    return activation == NO_ACTIVATION or bounds_of(activation) is not None


def _is_seen(activation: Activation, quantization: QuantizationParameters) -> bool:
    """Whether an activation that clips changes a quantized result, whose integers mostly clip at the same numbers."""
    bounds = bounds_of(activation)
    return bounds is not None and tuple(quantization.quantize(np.array(bounds))) != (LOWEST, HIGHEST)


def dequantize_constants(node: ir.Node) -> bool:
    """Folds dequantised constants to float32."""
    if node.domain in DEFAULT_DOMAINS:
        return False
    changed = False
    for index, value in enumerate(node.inputs):
        array = None if value is None or value.is_initializer() else constant(value)
        if array is not None:
            node.replace_input_with(index, float_initializer(node, "constant", array))
            changed = True
    return changed


LOWERINGS: Lowerings = {"QuantizeLinear": (lower_quantize,), "DequantizeLinear": (lower_dequantize,)}
