"""ONNX graphs under construction, and canonical layers on float32 written in the operators of standard ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Layer, TensorType

# What canonical layers alone are written in; their operators mean the same in every version from 13 on.
OPSET_VERSION = 20
IR_VERSION = 10


@dataclass
class OnnxWriter:
    """A graph under construction.

    Attributes:
        title: name of the graph.
        signed: names of int8 tensors that are to be there as such when they are made.
        unsigned: name of an int8 tensor -> that of the same numbers as uint8, and the quantization.
        nodes: in topological order.
        initializers: constants by name.
        reserved: names that `fresh` must not give.
    """

    title: str
    signed: set[str] = field(default_factory=set)
    unsigned: dict[str, tuple[str, QuantizationParameters]] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    reserved: set[str] = field(default_factory=set)
    _count: int = 0

    def fresh(self, role: str) -> str:
        """A tensor name that nothing has."""
        while True:
            self._count += 1
            name = f"_{role}{self._count}"
            if name not in self.reserved and name not in self.initializers:
                return name

    def constant(self, role: str, array: np.ndarray, exact: bool = False) -> str:
        """An initializer, called `role` if `exact`."""
        name = role if exact else self.fresh(role)
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def add(self, op_type: str, inputs: Sequence[str | None], output: str | None = None, **attributes: Any) -> str:
        """A node with one output, whose name is returned."""
        result = self.fresh(op_type) if output is None else output
        names = ["" if name is None else name for name in inputs]
        while names and not names[-1]:
            names.pop()
        self.nodes.append(helper.make_node(op_type, names, [result], name=self.fresh("node"), **attributes))
        return result

    def model(
        self,
        inputs: Sequence[tuple[str, TensorType]],
        outputs: Sequence[tuple[str, TensorType]],
        opsets: Mapping[str, int],
    ) -> onnx.ModelProto:
        """The model of the graph, with the versions of its operator sets by domain."""
        graph = helper.make_graph(
            self.nodes,
            self.title,
            [_value_info(name, kind) for name, kind in inputs],
            [_value_info(name, kind) for name, kind in outputs],
            list(self.initializers.values()),
        )
        imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="nnstretch")


def _value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _element_type(kind.dtype), kind.shape)


def _element_type(name: str) -> int:
    """ONNX's number for an element type that is named as in numpy and ml_dtypes."""
    if name == "string":
        return int(ir.DataType.STRING)
    return next(
        int(kind)
        for kind in ir.DataType
        if kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and kind.numpy().name == name
    )


_Inputs = Sequence[str | None]


def write_float(writer: OnnxWriter, layer: Layer, inputs: _Inputs, outputs: Sequence[str]) -> None:
    """Writes a layer with its activation.

    Args:
        writer: is added to.
        layer: a canonical one.
        inputs: names of its float32 tensors; None where it has none.
        outputs: the name of what it makes.
    """
    write = _WRITERS[layer.op]
    if layer.activation.kind is ActivationKind.NONE:
        write(writer, layer, inputs, outputs[0])
    else:
        result = writer.fresh(layer.op)
        write(writer, layer, inputs, result)
        _write_activation(writer, layer.activation, result, outputs[0])


def _write_activation(writer: OnnxWriter, activation: Activation, source: str, output: str) -> None:
    kind, a, b = activation.kind, activation.a, activation.b
    if kind is ActivationKind.CLIP:
        bounds = [writer.constant("bound", np.array(bound, np.float32)) for bound in (a, b)]
        writer.add("Clip", (source, *bounds), output)
    elif kind is ActivationKind.SILU:
        writer.add("Mul", (source, writer.add("Sigmoid", (source,))), output)
    elif kind is ActivationKind.HARD_SIGMOID:
        writer.add("HardSigmoid", (source,), output, alpha=float(a), beta=float(b))
    elif kind is ActivationKind.HARD_SWISH:
        writer.add("Mul", (source, writer.add("HardSigmoid", (source,), alpha=1 / 6, beta=0.5)), output)
    elif kind is ActivationKind.LEAKY_RELU:
        writer.add("LeakyRelu", (source,), output, alpha=float(a))
    elif kind in (ActivationKind.GELU, ActivationKind.GELU_TANH):
        writer.add("Gelu", (source,), output, approximate="none" if kind is ActivationKind.GELU else "tanh")
    elif kind is ActivationKind.SWISH:
        factor = writer.constant("factor", np.array(a, np.float32))
        writer.add("Mul", (source, writer.add("Sigmoid", (writer.add("Mul", (source, factor)),))), output)
    elif kind is ActivationKind.MISH:
        writer.add("Mul", (source, writer.add("Tanh", (writer.add("Softplus", (source,)),))), output)
    elif kind is ActivationKind.ELU:
        _write_elu(writer, activation, source, output)
    elif kind is ActivationKind.SELU:
        writer.add("Selu", (source,), output, alpha=float(a), gamma=float(b))
    else:
        writer.add(kind.name.capitalize(), (source,), output)  # Relu, Sigmoid, Tanh, Exp, Softplus, Erf


def _write_elu(writer: OnnxWriter, activation: Activation, source: str, output: str) -> None:
    """Elu; Celu where the exponent has a factor, which must be 1 / a."""
    a, b = activation.a, activation.b
    if b == 1.0:
        writer.add("Elu", (source,), output, alpha=float(a))
        return
    assert math.isclose(a * b, 1.0, rel_tol=1e-6)
    writer.add("Celu", (source,), output, alpha=float(a))


def _write_plain(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    """An operator that is one of ONNX on the same inputs, with attributes of other names."""
    operator, names = _PLAIN[layer.op]
    writer.add(operator, inputs, output, **{theirs: layer.attributes[ours] for theirs, ours in names.items()})


def _write_before_residual(
    writer: OnnxWriter, layer: Layer, operator: str, inputs: _Inputs, output: str, **attributes: Any
) -> None:
    """A Conv or Gemm, and the sum with the residual if the layer has one."""
    result = writer.add(operator, inputs[:3], writer.fresh(operator) if layer.has(3) else output, **attributes)
    if layer.has(3):
        writer.add("Add", (result, inputs[3]), output)


def _conv(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    _write_before_residual(
        writer,
        layer,
        "Conv",
        inputs,
        output,
        kernel_shape=layer.type_of(1).shape[2:],
        strides=layer.ints("strides"),
        pads=layer.ints("pads"),
        dilations=layer.ints("dilations"),
        group=layer.attributes["groups"],
    )


def _dense(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    _write_before_residual(writer, layer, "Gemm", inputs, output, transB=1)


def _global_pool(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    maximum = layer.attributes["mode"] == "max"
    writer.add("GlobalMaxPool" if maximum else "GlobalAveragePool", inputs, output)


def _affine(writer: OnnxWriter, _layer: Layer, inputs: _Inputs, output: str) -> None:
    shape = writer.constant("shape", np.array([-1, 1, 1], np.int64))
    scale, shift = (writer.add("Reshape", (value, shape)) for value in inputs[1:3])
    writer.add("Add", (writer.add("Mul", (inputs[0], scale)), shift), output)


def _prelu(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    shape = writer.constant("shape", np.array([-1, *(1,) * (len(layer.type_of(0).shape) - 2)], np.int64))
    writer.add("PRelu", (inputs[0], writer.add("Reshape", (inputs[1], shape))), output)


def _layer_norm(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    """LayerNormalization over the last axis, to which another one is moved; RMS without it, which is in newer operator sets."""
    shape, axis = layer.type_of(0).shape, layer.integer("axis")
    order = [*(i for i in range(len(shape)) if i != axis), axis]
    moved = order != sorted(order)
    source = writer.add("Transpose", inputs[:1], perm=order) if moved else inputs[0]
    scale, shift = (_factors(writer, layer, inputs, index, shape[axis]) for index in (1, 2))
    epsilon = float(layer.attributes["epsilon"])  # type: ignore[arg-type]
    target = writer.fresh("norm") if moved else output
    if layer.integer("rms", 0):
        axes = writer.constant("axes", np.array([-1], np.int64))
        squares = writer.add("ReduceMean", (writer.add("Mul", (source, source)), axes), keepdims=1)
        addend = writer.constant("epsilon", np.array(epsilon, np.float32))
        deviation = writer.add("Sqrt", (writer.add("Add", (squares, addend)),))
        scaled = writer.add("Mul", (writer.add("Div", (source, deviation)), scale))
        writer.add("Add", (scaled, shift), target)
    else:
        writer.add("LayerNormalization", (source, scale, shift), target, axis=-1, epsilon=epsilon)
    if moved:
        writer.add("Transpose", (target,), output, perm=[order.index(i) for i in range(len(order))])


def _group_norm(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    """InstanceNormalization of the groups as channels, then scale and shift."""
    shape, groups = layer.type_of(0).shape, layer.integer("groups")
    grouped = writer.constant("shape", np.array([shape[0], groups, -1], np.int64))
    ones, zeros = (writer.constant("same", np.full(groups, value, np.float32)) for value in (1.0, 0.0))
    source = writer.add("Reshape", (inputs[0], grouped))
    epsilon = float(layer.attributes["epsilon"])  # type: ignore[arg-type]
    normed = writer.add("InstanceNormalization", (source, ones, zeros), epsilon=epsilon)
    back = writer.add("Reshape", (normed, writer.constant("shape", np.array(shape, np.int64))))
    each = writer.constant("shape", np.array([-1, *(1,) * (len(shape) - 2)], np.int64))
    scale, shift = (writer.add("Reshape", (_factors(writer, layer, inputs, index, shape[1]), each)) for index in (1, 2))
    writer.add("Add", (writer.add("Mul", (back, scale)), shift), output)


def _factors(writer: OnnxWriter, layer: Layer, inputs: _Inputs, index: int, length: int) -> str:
    """The scale (input 1) or shift (input 2) of a normalisation, ones or zeros where it has none."""
    name = inputs[index] if layer.has(index) else None
    return name or writer.constant("same", np.full(length, 1.0 if index == 1 else 0.0, np.float32))


def _resize(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    """By sizes where the scales are those of the shapes, lest rounding loses a pixel; else by scales."""
    source, result = layer.type_of(0).shape, layer.outputs[0].shape
    stated = layer.attributes["scales"]
    assert isinstance(stated, tuple)
    by_shape = [result[axis] / source[axis] for axis in (2, 3)]
    if np.allclose(stated, by_shape, rtol=1e-6, atol=0.0):
        operands = [None, writer.constant("sizes", np.array(result, np.int64))]
    else:
        operands = [writer.constant("scales", np.array([1.0, 1.0, *stated], np.float32))]
    mode, _, antialias = str(layer.attributes["mode"]).partition("_")
    names = {"cubic_coefficient": "cubic_coeff_a", "exclude_outside": "exclude_outside"}
    filtering = {name: layer.attributes[ours] for ours, name in names.items() if ours in layer.attributes}
    if antialias:
        filtering["antialias"] = 1
    writer.add(
        "Resize",
        (inputs[0], None, *operands),
        output,
        mode=mode,
        coordinate_transformation_mode=layer.attributes["coordinates"],
        nearest_mode=layer.attributes["nearest"],
        **filtering,
    )


def _reshape(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    target = layer.outputs[0].shape
    # In Reshape, 0 keeps the input's dimension unless `allowzero` is set.
    attributes = {"allowzero": 1} if 0 in target else {}
    writer.add("Reshape", (inputs[0], writer.constant("shape", np.array(target, np.int64))), output, **attributes)


def _attention(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    """Products and softmax of heads B,H,L,D."""
    heads, groups, scale = layer.integer("heads"), layer.integer("groups"), layer.attributes["scale"]
    epsilon = layer.attributes.get("epsilon", 0.0)

    def reshape(value: str, shape: Sequence[int], output: str | None = None) -> str:
        return writer.add("Reshape", (value, writer.constant("shape", np.array(shape, np.int64))), output)

    def split(index: int, count: int, order: tuple[int, int, int, int]) -> str:
        """Heads of input `index`, whose axes are B,L,H,D before they are put in `order`."""
        name, shape = inputs[index], layer.type_of(index).shape
        assert name is not None
        if len(shape) == 4:
            name, shape = writer.add("Transpose", (name,), perm=(0, 2, 3, 1)), (shape[0] * shape[2], shape[3], shape[1])
        return writer.add("Transpose", (reshape(name, (*shape[:2], count, shape[2] // count)),), perm=order)

    def normalised(value: str, axis: int) -> str:
        """Heads divided by their norms over `axis`."""
        norms = writer.add("ReduceL2", (value, writer.constant("axes", np.array([axis]))), keepdims=1)
        least = writer.constant("epsilon", np.array(epsilon, np.float32))
        return writer.add("Div", (value, writer.add("Clip", (norms, least))))

    queries, keys = split(0, heads, (0, 2, 1, 3)), split(1, groups, (0, 2, 3, 1))
    if epsilon:
        queries, keys = normalised(queries, 3), normalised(keys, 2)
    factor = writer.constant("scale", np.array(scale, np.float32))
    scores = writer.add("Mul", (writer.add("MatMul", (queries, keys)), factor))
    if layer.has(5):
        scores = writer.add("Mul", (scores, inputs[5]))
    for bias in inputs[3:5]:
        scores = scores if bias is None else writer.add("Add", (scores, bias))
    weights = writer.add("Softmax", (scores,), axis=-1)
    rows = writer.add(
        "Transpose", (writer.add("MatMul", (weights, split(2, groups, (0, 2, 1, 3)))),), perm=(0, 2, 1, 3)
    )
    result = layer.outputs[0].shape
    if len(result) == 3:
        reshape(rows, result, output)
    else:
        last = reshape(rows, (result[0], *result[2:], result[1]))
        writer.add("Transpose", (last,), output, perm=(0, 3, 1, 2))


def _recurrence(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    """LSTM or GRU of steps T,B,C, whose input weights hand every direction its gates."""
    shape, axis = layer.type_of(0).shape, layer.integer("axis")
    directions, gates, hidden = layer.type_of(1).shape
    steps = shape[axis]
    # The axes of x as steps, images and sequences, channels; a tensor of rank 3 has no images.
    order = (axis, 1 - axis, 2) if len(shape) == 3 else (axis, 0, 5 - axis, 1)

    def reshape(value: str, shape: Sequence[int]) -> str:
        return writer.add("Reshape", (value, writer.constant("shape", np.array(shape, np.int64))))

    x = reshape(writer.add("Transpose", inputs[:1], perm=order), (steps, -1, directions * gates))
    selected = np.eye(directions * gates, dtype=np.float32).reshape(directions, gates, -1)
    biases = np.zeros((directions, 2 * gates), np.float32)
    if layer.has(2):
        biases[:, -hidden:] = layer.constants[2]
    operands = (x, writer.constant("weight", selected), inputs[1], writer.constant("bias", biases), None, *inputs[3:])
    cell = str(layer.attributes["cell"])
    more: dict[str, Any] = {} if cell == "lstm" else {"linear_before_reset": int(cell == "gru_reset_after")}
    operator = cell.partition("_")[0].upper()
    direction = layer.attributes["direction"]
    states = writer.add(operator, operands, direction=direction, hidden_size=hidden, **more)
    rows = writer.add("Transpose", (states,), perm=(0, 2, 1, 3))
    last = reshape(rows, (*(shape[i] for i in order[:-1]), directions * hidden))
    writer.add("Transpose", (last,), output, perm=[order.index(i) for i in range(len(order))])


def _matmul(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    operands = []
    for index, attribute in enumerate(("transpose_x", "transpose_y")):
        rank, name = len(layer.type_of(index).shape), inputs[index]
        if layer.integer(attribute):
            name = writer.add("Transpose", (name,), perm=(*range(rank - 2), rank - 1, rank - 2))
        operands.append(name)
    writer.add("MatMul", operands, output)


def _rearrange(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    """Channels last, pixels as their factors, the factors in the other order, and back."""
    sizes, perm = layer.ints("sizes"), layer.ints("perm")
    channels, result = layer.type_of(0).shape[1], layer.outputs[0].shape

    def shaped(value: str | None, shape: Sequence[int]) -> str:
        return writer.add("Reshape", (value, writer.constant("shape", np.array(shape, np.int64))))

    factors = shaped(writer.add("Transpose", inputs, perm=(0, 2, 3, 1)), (*sizes, channels))
    moved = writer.add("Transpose", (factors,), perm=(*perm, len(perm)))
    last = shaped(moved, (result[0], *result[2:], channels))
    writer.add("Transpose", (last,), output, perm=(0, 3, 1, 2))


def _slice(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    starts, steps, shape = layer.ints("starts"), layer.ints("steps"), layer.outputs[0].shape
    ends = [start + (size - 1) * step + 1 for start, size, step in zip(starts, shape, steps, strict=True)]
    axes = range(len(shape))
    bounds = [writer.constant("bounds", np.array(values, np.int64)) for values in (starts, ends, axes, steps)]
    writer.add("Slice", (inputs[0], *bounds), output)


REDUCTIONS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "l1": "ReduceL1",
    "l2": "ReduceL2",
    "squares": "ReduceSumSquare",
    "product": "ReduceProd",
}
"""Mode of a Reduce -> operator of ONNX."""


def _reduce(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    axes, result = layer.ints("axes"), layer.outputs[0].shape
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(layer.type_of(0).shape))
    operator = REDUCTIONS[str(layer.attributes["mode"])]
    operands = inputs[0], writer.constant("axes", np.array(axes, np.int64))
    if kept == result:
        writer.add(operator, operands, output)
    else:
        shape = writer.constant("shape", np.array(result, np.int64))
        writer.add("Reshape", (writer.add(operator, operands), shape), output)


def _pad(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    pads = writer.constant("pads", np.array(layer.ints("pads"), np.int64))
    value = writer.constant("value", np.array(layer.attributes["value"], np.float32))
    writer.add("Pad", (inputs[0], pads, value), output, mode=layer.attributes["mode"])


def _expand(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Expand", (inputs[0], writer.constant("shape", np.array(layer.outputs[0].shape, np.int64))), output)


_POOL = {"kernel_shape": "kernel", "strides": "strides", "pads": "pads"}
_PLAIN: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "MaxPool": ("MaxPool", {**_POOL, "dilations": "dilations"}),
    "AveragePool": ("AveragePool", {**_POOL, "count_include_pad": "count_include_pad"}),
    "Activation": ("Identity", {}),
    **{name: (name, {}) for name in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    "Concat": ("Concat", {"axis": "axis"}),
    "Softmax": ("Softmax", {"axis": "axis"}),
    "Transpose": ("Transpose", {"perm": "perm"}),
    "DepthToSpace": ("DepthToSpace", {"blocksize": "size", "mode": "mode"}),
    "SpaceToDepth": ("SpaceToDepth", {"blocksize": "size"}),
    "Quantize": ("Identity", {}),
    "Dequantize": ("Identity", {}),
}
"""Operator of a layer -> operator of ONNX, and the attribute of the layer by the name of ONNX's attribute."""


def _cast(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Cast", (inputs[0],), output, to=_element_type(layer.outputs[0].dtype))


_WRITERS: Mapping[str, Callable[[OnnxWriter, Layer, _Inputs, str], None]] = {
    **dict.fromkeys(_PLAIN, _write_plain),
    "Conv": _conv,
    "Dense": _dense,
    "GlobalPool": _global_pool,
    "Affine": _affine,
    "PRelu": _prelu,
    "LayerNorm": _layer_norm,
    "GroupNorm": _group_norm,
    "Attention": _attention,
    "Resize": _resize,
    "MatMul": _matmul,
    "Recurrence": _recurrence,
    "Rearrange": _rearrange,
    "Reshape": _reshape,
    "Slice": _slice,
    "Expand": _expand,
    "Reduce": _reduce,
    "Pad": _pad,
    "Cast": _cast,
}
