"""Canonical layers on float32, written in the operators of standard ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.layer import Layer
from nnstretch.graph.onnx_writer import OnnxWriter

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
    else:
        operators = {
            ActivationKind.NONE: "Identity",
            ActivationKind.RELU: "Relu",
            ActivationKind.SIGMOID: "Sigmoid",
            ActivationKind.TANH: "Tanh",
            ActivationKind.EXP: "Exp",
        }
        writer.add(operators[kind], (source,), output)


def _add_residual(writer: OnnxWriter, result: str, inputs: _Inputs, output: str) -> None:
    writer.add("Add", (result, inputs[3]), output)


def _conv(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
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


def _dense(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    result = writer.add("Gemm", inputs[:3], writer.fresh("dense") if layer.has(3) else output, transB=1)
    if layer.has(3):
        _add_residual(writer, result, inputs, output)


def _max_pool(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add(
        "MaxPool",
        inputs,
        output,
        kernel_shape=layer.ints("kernel"),
        strides=layer.ints("strides"),
        pads=layer.ints("pads"),
        dilations=layer.ints("dilations"),
    )


def _average_pool(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add(
        "AveragePool",
        inputs,
        output,
        kernel_shape=layer.ints("kernel"),
        strides=layer.ints("strides"),
        pads=layer.ints("pads"),
        count_include_pad=layer.attributes["count_include_pad"],
    )


def _global_pool(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    maximum = layer.attributes["mode"] == "max"
    writer.add("GlobalMaxPool" if maximum else "GlobalAveragePool", inputs, output)


def _activation(writer: OnnxWriter, _layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Identity", inputs, output)


def _binary(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add(layer.op, inputs, output)


def _affine(writer: OnnxWriter, _layer: Layer, inputs: _Inputs, output: str) -> None:
    shape = writer.constant("shape", np.array([-1, 1, 1], np.int64))
    scale, shift = (writer.add("Reshape", (value, shape)) for value in inputs[1:3])
    writer.add("Add", (writer.add("Mul", (inputs[0], scale)), shift), output)


def _concat(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Concat", inputs, output, axis=layer.attributes["axis"])


def _softmax(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Softmax", inputs, output, axis=layer.attributes["axis"])


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
    writer.add(
        "Resize",
        (inputs[0], None, *operands),
        output,
        mode=layer.attributes["mode"],
        coordinate_transformation_mode=layer.attributes["coordinates"],
        nearest_mode=layer.attributes["nearest"],
    )


def _reshape(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    target = layer.outputs[0].shape
    # In Reshape, 0 keeps the input's dimension unless `allowzero` is set.
    attributes = {"allowzero": 1} if 0 in target else {}
    writer.add("Reshape", (inputs[0], writer.constant("shape", np.array(target, np.int64))), output, **attributes)


def _transpose(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    writer.add("Transpose", inputs, output, perm=layer.ints("perm"))


def _slice(writer: OnnxWriter, layer: Layer, inputs: _Inputs, output: str) -> None:
    starts, steps, shape = layer.ints("starts"), layer.ints("steps"), layer.outputs[0].shape
    ends = [start + (size - 1) * step + 1 for start, size, step in zip(starts, shape, steps, strict=True)]
    axes = range(len(shape))
    bounds = [writer.constant("bounds", np.array(values, np.int64)) for values in (starts, ends, axes, steps)]
    writer.add("Slice", (inputs[0], *bounds), output)


_WRITERS: Mapping[str, Callable[[OnnxWriter, Layer, _Inputs, str], None]] = {
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
