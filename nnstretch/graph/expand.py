"""Layers as standard ONNX models: what kernels are checked against, and what the fallback runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.grid import LOWEST, Grid
from nnstretch.graph.layer import DOMAIN, Layer, TensorType
from nnstretch.graph.layers import CAPTURES, ENCODED, OPSET, GraphNode

# What canonical layers alone are written in; their operators mean the same in every version from 13 on.
OPSET_VERSION = 20
IR_VERSION = 10


def expand(layer: Layer) -> onnx.ModelProto:
    """A standard ONNX model of this one layer.

    Run-time inputs are called x0, x1, … in the order of `layer.activations`, outputs y0, y1, …; constants are
    initializers. Input shapes and types are those of the layer.
    """
    writer = _Writer("layer")
    runtime = {index: f"x{position}" for position, index in enumerate(layer.activations)}
    inputs: list[str | None] = []
    for index, kind in enumerate(layer.inputs):
        if kind is None:
            inputs.append(None)
        elif index in layer.constants:
            inputs.append(writer.constant(f"c{index}", layer.constants[index]))
        else:
            inputs.append(runtime[index])
    outputs = [f"y{index}" for index in range(len(layer.outputs))]
    writer.signed = set(outputs)
    _write_layer(writer, layer, inputs, outputs)
    return writer.model(
        [(runtime[index], layer.type_of(index)) for index in layer.activations],
        list(zip(outputs, layer.outputs, strict=True)),
        _opsets([layer]),
    )


def expand_region(nodes: Sequence[GraphNode], inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """A standard ONNX model of several layers with the names that tensors have in the graph.

    Args:
        nodes: the layers, in topological order.
        inputs: names of the tensors that come from outside, beside constants.
        outputs: names of the tensors that go out.
    """
    writer = _Writer("region")
    types: dict[str, TensorType] = {}
    taken = {name for node in nodes for name in (*node.inputs, *node.outputs) if name is not None}
    writer.reserved = taken
    writer.signed = set(outputs)
    for node in nodes:
        for index, name in enumerate(node.inputs):
            if name is None:
                continue
            types[name] = node.layer.type_of(index)
            if index in node.layer.constants:
                writer.constant(name, node.layer.constants[index], exact=True)
        types.update(zip(node.outputs, node.layer.outputs, strict=True))
        if node.node.domain == DOMAIN:
            _write_canonical(writer, node.layer, node.inputs, node.outputs)
        else:
            _let_read(writer, node.inputs)
            writer.nodes.append(ir.to_proto(node.node))
    return writer.model(
        [(name, types[name]) for name in inputs],
        [(name, types[name]) for name in outputs],
        _opsets(node.layer for node in nodes),
    )


def _opsets(layers: Iterable[Layer]) -> dict[str, int]:
    """Operator set versions that the model of these layers needs."""
    versions: dict[str, int] = {}
    for layer in layers:
        versions |= _foreign_opsets(layer)
    versions.setdefault("", OPSET_VERSION)
    return versions


def _foreign_opsets(layer: Layer) -> dict[str, int]:
    """Operator set versions of the layers that are still ONNX operators."""
    versions: dict[str, int] = {}
    for link in layer.chain:
        versions |= _foreign_opsets(link)
    if layer.op.startswith("onnx:"):
        version = layer.attributes[OPSET]
        assert isinstance(version, int)
        versions[_domain_and_type(layer)[0]] = version
    return versions


def _domain_and_type(layer: Layer) -> tuple[str, str]:
    domain, _, op_type = layer.op.removeprefix("onnx:").rpartition("/")
    return domain, op_type


@dataclass
class _Writer:
    """A graph under construction.

    Attributes:
        signed: names of int8 tensors that are to be there as such when they are made.
        unsigned: name of an int8 tensor -> that of the same numbers as uint8, and the grid.
    """

    title: str
    signed: set[str] = field(default_factory=set)
    unsigned: dict[str, tuple[str, Grid]] = field(default_factory=dict)
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
            self.initializers[name] = _tensor_proto(array, name)
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
        graph = helper.make_graph(
            self.nodes,
            self.title,
            [_value_info(name, kind) for name, kind in inputs],
            [_value_info(name, kind) for name, kind in outputs],
            list(self.initializers.values()),
        )
        imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="nnstretch")


def _tensor_proto(array: np.ndarray, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


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


def _write_layer(writer: _Writer, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    if layer.op.startswith("onnx:"):
        _write_onnx(writer, layer, inputs, outputs)
    elif layer.chain:
        _write_chain(writer, layer, inputs, outputs)
    else:
        _write_canonical(writer, layer, inputs, outputs)


def _write_chain(writer: _Writer, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    going_out = dict(zip(layer.results, outputs, strict=True))
    made: list[str] = []
    for link, sources in zip(layer.chain, layer.wiring, strict=True):
        names: list[str | None] = [None] * len(link.inputs)
        for index in link.constants:
            names[index] = writer.constant("constant", link.constants[index])
        for index, source in zip(link.activations, sources, strict=True):
            names[index] = inputs[source] if source >= 0 else made[-1 - source]
        numbers = range(len(made), len(made) + len(link.outputs))
        results = [going_out.get(number) or writer.fresh("between") for number in numbers]
        _write_layer(writer, link, names, results)
        made += results


def _write_onnx(writer: _Writer, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    """The ONNX operator itself; its subgraphs are made to read what comes from outside by its names here."""
    _let_read(writer, inputs)
    domain, op_type = _domain_and_type(layer)
    captured = json.loads(str(layer.attributes.get(CAPTURES, "[]")))
    explicit = len(inputs) - len(captured)
    renamed = {inner: name or "" for inner, name in zip(captured, inputs[explicit:], strict=True)}
    node = helper.make_node(
        op_type, ["" if name is None else name for name in inputs[:explicit]], list(outputs), domain=domain
    )
    for name, value in layer.attributes.items():
        if name in (OPSET, CAPTURES):
            continue
        if isinstance(value, str) and value.startswith(ENCODED):
            node.attribute.add().ParseFromString(base64.b64decode(value.removeprefix(ENCODED)))
        else:
            node.attribute.append(helper.make_attribute(name, value))
    _rename_inputs(node, renamed)
    writer.nodes.append(node)


def _let_read(writer: _Writer, names: Sequence[str | None]) -> None:
    """Makes what an ONNX operator reads of int8 tensors that are there as uint8 alone."""
    for name in names:
        if name in writer.unsigned and name not in writer.signed:
            assert name is not None
            _write_signed(writer, name)
            writer.signed.add(name)


def _rename_inputs(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename what the subgraphs of `node` read."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                for index, name in enumerate(inner.input):
                    inner.input[index] = names.get(name, name)
                _rename_inputs(inner, names)
            for output in graph.output:
                output.name = names.get(output.name, output.name)


def _write_canonical(writer: _Writer, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    if layer.is_int8:
        _write_int8(writer, layer, inputs, outputs)
    else:
        _write_float(writer, layer, inputs, outputs)


def _write_int8(writer: _Writer, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    """The operator on what the integers stand for, quantised, as quantised networks are written in ONNX.

    Inside the model tensors are uint8 with other zero points: ONNX Runtime has faster kernels for that on most CPUs.
    """
    grid = layer.outputs[0].grid
    numbers = [_numbers(writer, layer, index, name) for index, name in enumerate(inputs)]
    if grid is None:
        _write_float(writer, layer, numbers, outputs)
        return
    result = writer.fresh(layer.op)
    _write_float(writer, layer, numbers, [result])
    unsigned = writer.add("QuantizeLinear", (result, *_unsigned(writer, grid)))
    writer.unsigned[outputs[0]] = unsigned, grid
    if outputs[0] in writer.signed:
        _write_signed(writer, outputs[0])


def _write_signed(writer: _Writer, name: str) -> None:
    """Makes an int8 tensor of the uint8 one that is there."""
    unsigned, grid = writer.unsigned[name]
    numbers = writer.add("DequantizeLinear", (unsigned, *_unsigned(writer, grid)))
    writer.add("QuantizeLinear", (numbers, *_signed(writer, grid)), name)


def _numbers(writer: _Writer, layer: Layer, index: int, name: str | None) -> str | None:
    """Input `index` of a layer, called `name`, in float32; `name` if it is that already."""
    if name is None or layer.type_of(index).dtype == "float32":
        return name
    kind = layer.type_of(index)
    if kind.grid is not None:
        if name not in writer.unsigned:
            given = writer.add("DequantizeLinear", (name, *_signed(writer, kind.grid)))
            writer.unsigned[name] = writer.add("QuantizeLinear", (given, *_unsigned(writer, kind.grid))), kind.grid
            writer.signed.add(name)
        return writer.add("DequantizeLinear", (writer.unsigned[name][0], *_unsigned(writer, kind.grid)))
    scales = layer.constants[4]
    if kind.dtype == "int32":
        source = layer.type_of(0).grid
        assert source is not None
        scales = scales * np.float32(source.scale)
    zero_points = writer.constant("zero", np.zeros(scales.shape, kind.dtype))
    return writer.add("DequantizeLinear", (name, writer.constant("scale", scales), zero_points), axis=0)


def _signed(writer: _Writer, grid: Grid) -> tuple[str, str]:
    return _scale(writer, grid), writer.constant("zero", np.array(grid.zero_point, np.int8))


def _unsigned(writer: _Writer, grid: Grid) -> tuple[str, str]:
    return _scale(writer, grid), writer.constant("zero", np.array(grid.zero_point - LOWEST, np.uint8))


def _scale(writer: _Writer, grid: Grid) -> str:
    return writer.constant("scale", np.array(grid.scale, np.float32))


def _write_float(writer: _Writer, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    write = _WRITERS[layer.op]
    if layer.activation.kind is ActivationKind.NONE:
        write(writer, layer, inputs, outputs[0])
    else:
        result = writer.fresh(layer.op)
        write(writer, layer, inputs, result)
        _write_activation(writer, layer.activation, result, outputs[0])


def _write_activation(writer: _Writer, activation: Activation, source: str, output: str) -> None:
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
    else:
        operators = {
            ActivationKind.NONE: "Identity",
            ActivationKind.RELU: "Relu",
            ActivationKind.SIGMOID: "Sigmoid",
            ActivationKind.TANH: "Tanh",
            ActivationKind.EXP: "Exp",
        }
        writer.add(operators[kind], (source,), output)


_Inputs = Sequence[str | None]


def _add_residual(writer: _Writer, result: str, inputs: _Inputs, output: str) -> None:
    writer.add("Add", (result, inputs[3]), output)


def _conv(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    result = writer.add(
        "Conv",
        inputs[:3],
        writer.fresh("conv") if layer.has(3) else output,
        kernel_shape=layer.type_of(1).shape[2:],
        strides=layer.ints("strides"),
        pads=layer.ints("pads"),
        dilations=layer.ints("dilations"),
        group=layer.attributes["groups"],
    )
    if layer.has(3):
        _add_residual(writer, result, inputs, output)


def _dense(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    result = writer.add("Gemm", inputs[:3], writer.fresh("dense") if layer.has(3) else output, transB=1)
    if layer.has(3):
        _add_residual(writer, result, inputs, output)


def _max_pool(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add(
        "MaxPool",
        inputs,
        output,
        kernel_shape=layer.ints("kernel"),
        strides=layer.ints("strides"),
        pads=layer.ints("pads"),
        dilations=layer.ints("dilations"),
    )


def _average_pool(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add(
        "AveragePool",
        inputs,
        output,
        kernel_shape=layer.ints("kernel"),
        strides=layer.ints("strides"),
        pads=layer.ints("pads"),
        count_include_pad=layer.attributes["count_include_pad"],
    )


def _global_pool(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    maximum = layer.attributes["mode"] == "max"
    writer.add("GlobalMaxPool" if maximum else "GlobalAveragePool", inputs, output)


def _activation(writer: _Writer, _layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Identity", inputs, output)


def _binary(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add(layer.op, inputs, output)


def _affine(writer: _Writer, _layer: Layer, inputs: _Inputs, output: str) -> None:
    shape = writer.constant("shape", np.array([-1, 1, 1], np.int64))
    scale, shift = (writer.add("Reshape", (value, shape)) for value in inputs[1:3])
    writer.add("Add", (writer.add("Mul", (inputs[0], scale)), shift), output)


def _concat(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Concat", inputs, output, axis=layer.attributes["axis"])


def _softmax(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Softmax", inputs, output, axis=layer.attributes["axis"])


def _resize(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    """By sizes where the scales are those of the shapes, lest rounding loses a pixel; else by scales."""
    source, result = layer.type_of(0).shape, layer.outputs[0].shape
    stated = layer.attributes["scales"]
    assert isinstance(stated, tuple)
    by_shape = [result[axis] / source[axis] for axis in (2, 3)]
    if np.allclose(stated, by_shape, rtol=1e-6, atol=0.0):
        operands = [None, writer.constant("sizes", np.array(result, np.int64))]
    else:
        operands = [writer.constant("scales", np.array([1.0, 1.0, *stated], np.float32))]
    writer.add(
        "Resize",
        (inputs[0], None, *operands),
        output,
        mode=layer.attributes["mode"],
        coordinate_transformation_mode=layer.attributes["coordinates"],
        nearest_mode=layer.attributes["nearest"],
    )


def _reshape(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    target = layer.outputs[0].shape
    # 0 means "as before" in Reshape, unless it is told that it does not.
    attributes = {"allowzero": 1} if 0 in target else {}
    writer.add("Reshape", (inputs[0], writer.constant("shape", np.array(target, np.int64))), output, **attributes)


def _transpose(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Transpose", inputs, output, perm=layer.ints("perm"))


def _slice(writer: _Writer, layer: Layer, inputs: _Inputs, output: str) -> None:
    starts, steps, shape = layer.ints("starts"), layer.ints("steps"), layer.outputs[0].shape
    ends = [start + (size - 1) * step + 1 for start, size, step in zip(starts, shape, steps, strict=True)]
    axes = range(len(shape))
    bounds = [writer.constant("bounds", np.array(values, np.int64)) for values in (starts, ends, axes, steps)]
    writer.add("Slice", (inputs[0], *bounds), output)


_WRITERS: Mapping[str, Callable[[_Writer, Layer, _Inputs, str], None]] = {
    "Conv": _conv,
    "Dense": _dense,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalPool": _global_pool,
    "Activation": _activation,
    "Add": _binary,
    "Sub": _binary,
    "Mul": _binary,
    "Affine": _affine,
    "Concat": _concat,
    "Softmax": _softmax,
    "Resize": _resize,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Quantize": _activation,
    "Dequantize": _activation,
}
