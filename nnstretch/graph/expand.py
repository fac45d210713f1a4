"""Layers as standard ONNX models: what kernels are checked against, and what the fallback runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from nnstretch.graph.dtypes import LOWEST, QuantizationParameters
from nnstretch.graph.layer import DOMAIN, Layer, TensorType
from nnstretch.graph.layers import CAPTURES, ENCODED, OMITTED, OPSET, GraphNode
from nnstretch.graph.onnx_writer import OPSET_VERSION, OnnxWriter, write_float


def expand(layer: Layer) -> onnx.ModelProto:
    """A standard ONNX model of this one layer.

    Run-time inputs are called x0, x1, … in the order of `layer.activations`, outputs y0, y1, …; constants are
    initializers. Input shapes and types are those of the layer.
    """
    writer = OnnxWriter("layer")
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
    writer = OnnxWriter("region")
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
    """Operator set versions that the model of these layers needs; operators that are still those of ONNX have their own."""
    versions, pending = {"": OPSET_VERSION}, list(layers)
    while pending:
        layer = pending.pop()
        pending += layer.parts
        if layer.op.startswith("onnx:"):
            version = layer.attributes[OPSET]
            assert isinstance(version, int)
            versions[_domain_and_type(layer)[0]] = version
    return versions


def _domain_and_type(layer: Layer) -> tuple[str, str]:
    domain, _, op_type = layer.op.removeprefix("onnx:").rpartition("/")
    return domain, op_type


def _write_layer(writer: OnnxWriter, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    if layer.op.startswith("onnx:"):
        _write_onnx(writer, layer, inputs, outputs)
    elif layer.parts:
        _write_chain(writer, layer, inputs, outputs)
    else:
        _write_canonical(writer, layer, inputs, outputs)


def _write_chain(writer: OnnxWriter, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    going_out = dict(zip(layer.results, outputs, strict=True))
    made: list[str] = []
    for link, sources in zip(layer.parts, layer.wiring, strict=True):
        names: list[str | None] = [None] * len(link.inputs)
        for index in link.constants:
            names[index] = writer.constant("constant", link.constants[index])
        for index, source in zip(link.activations, sources, strict=True):
            names[index] = inputs[source] if source >= 0 else made[-1 - source]
        numbers = range(len(made), len(made) + len(link.outputs))
        results = [going_out.get(number) or writer.fresh("between") for number in numbers]
        _write_layer(writer, link, names, results)
        made += results


def _write_onnx(writer: OnnxWriter, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    """The ONNX operator itself; its subgraphs are made to read what comes from outside by its names here."""
    _let_read(writer, inputs)
    domain, op_type = _domain_and_type(layer)
    captured = json.loads(str(layer.attributes.get(CAPTURES, "[]")))
    explicit = len(inputs) - len(captured)
    renamed = {inner: name or "" for inner, name in zip(captured, inputs[explicit:], strict=True)}
    results = list(outputs)
    for index in layer.ints(OMITTED) if OMITTED in layer.attributes else ():
        results.insert(index, "")
    node = helper.make_node(
        op_type, ["" if name is None else name for name in inputs[:explicit]], results, domain=domain
    )
    for name, value in layer.attributes.items():
        if name in (OPSET, CAPTURES, OMITTED):
            continue
        if isinstance(value, str) and value.startswith(ENCODED):
            node.attribute.add().ParseFromString(base64.b64decode(value.removeprefix(ENCODED)))
        else:
            node.attribute.append(helper.make_attribute(name, value))
    _rename_inputs(node, renamed)
    writer.nodes.append(node)


def _let_read(writer: OnnxWriter, names: Sequence[str | None]) -> None:
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


def _write_canonical(writer: OnnxWriter, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    if layer.is_int8:
        _write_int8(writer, layer, inputs, outputs)
    else:
        _let_read(writer, inputs)
        write_float(writer, layer, inputs, outputs)


def _write_int8(writer: OnnxWriter, layer: Layer, inputs: Sequence[str | None], outputs: Sequence[str]) -> None:
    """The operator on what the integers stand for, quantised, as quantised networks are written in ONNX.

    Inside the model tensors are uint8 with other zero points: ONNX Runtime has faster kernels for that on most CPUs.
    """
    quantization = layer.outputs[0].quantization
    numbers = [_numbers(writer, layer, index, name) for index, name in enumerate(inputs)]
    if quantization is None:
        write_float(writer, layer, numbers, outputs)
        return
    result = writer.fresh(layer.op)
    write_float(writer, layer, numbers, [result])
    unsigned = writer.add("QuantizeLinear", (result, *_unsigned(writer, quantization)))
    writer.unsigned[outputs[0]] = unsigned, quantization
    if outputs[0] in writer.signed:
        _write_signed(writer, outputs[0])


def _write_signed(writer: OnnxWriter, name: str) -> None:
    """Makes an int8 tensor of the uint8 one that is there."""
    unsigned, quantization = writer.unsigned[name]
    numbers = writer.add("DequantizeLinear", (unsigned, *_unsigned(writer, quantization)))
    writer.add("QuantizeLinear", (numbers, *_signed(writer, quantization)), name)


def _numbers(writer: OnnxWriter, layer: Layer, index: int, name: str | None) -> str | None:
    """Input `index` of a layer, called `name`, in float32; `name` if it is that already."""
    if name is None or layer.type_of(index).dtype == "float32":
        return name
    kind = layer.type_of(index)
    if kind.quantization is not None:
        if name not in writer.unsigned:
            given = writer.add("DequantizeLinear", (name, *_signed(writer, kind.quantization)))
            writer.unsigned[name] = (
                writer.add("QuantizeLinear", (given, *_unsigned(writer, kind.quantization))),
                kind.quantization,
            )
            writer.signed.add(name)
        return writer.add("DequantizeLinear", (writer.unsigned[name][0], *_unsigned(writer, kind.quantization)))
    scales = layer.constants[4]
    if kind.dtype == "int32":
        source = layer.type_of(0).quantization
        assert source is not None
        scales = scales * np.float32(source.scale)
    zero_points = writer.constant("zero", np.zeros(scales.shape, kind.dtype))
    return writer.add("DequantizeLinear", (name, writer.constant("scale", scales), zero_points), axis=0)


def _signed(writer: OnnxWriter, quantization: QuantizationParameters) -> tuple[str, str]:
    return _scale(writer, quantization), writer.constant("zero", np.array(quantization.zero_point, np.int8))


def _unsigned(writer: OnnxWriter, quantization: QuantizationParameters) -> tuple[str, str]:
    return _scale(writer, quantization), writer.constant("zero", np.array(quantization.zero_point - LOWEST, np.uint8))


def _scale(writer: OnnxWriter, quantization: QuantizationParameters) -> str:
    return writer.constant("scale", np.array(quantization.scale, np.float32))
