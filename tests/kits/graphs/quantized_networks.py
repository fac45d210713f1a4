"""Random quantised networks with a QuantizeLinear and a DequantizeLinear wherever a tensor is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, shape_inference

_SIZE, _CHANNELS = 12, 8
_JOINS, _POOLS = ("add", "mul", "sub", "concat"), ("max", "mean")
_KINDS = ("conv", "conv", "conv", "depthwise", *_JOINS, *_POOLS, "resize", "activation", "slice")


class QuantizedNetwork:
    """A random chain of layers over images with a few branches, and how it is quantised.

    That is to int8 or uint8, symmetric or not, weights with one scale or one per channel, biases int32, float32 or none.

    Attributes:
        floating: the network in float32.
        model: the same, quantised.
        input: one of the calibration inputs.
        exact: whether int8 layers keep the network's biases exactly.
    """

    def __init__(self, seed: int, layers: int = 8) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}
        self._images: dict[str, tuple[int, ...]] = {"x": (1, _CHANNELS, _SIZE, _SIZE)}
        self._bias = str(self._rng.choice(["int32", "float32", "none"]))
        self.exact = self._bias != "float32"
        for number in range(layers):
            self._add(f"t{number}")
        ends = [*self._images][-1:]
        if self._rng.random() < 0.7:
            ends.append(self._head(ends[0]))
        self.input = self._rng.standard_normal(self._images["x"]).astype(np.float32)
        self.floating = self._model(self._nodes, self._weights, ends)
        ranges = self._ranges()
        self.model = _Quantizer(self._rng, self._bias, ranges).quantized(self.floating)

    def graph(self) -> ir.Model:
        """The quantised network."""
        return ir.from_proto(shape_inference.infer_shapes(self.model, strict_mode=True))

    # -- layers --------------------------------------------------------------------------------------------------

    def _add(self, output: str) -> None:
        kind = str(self._rng.choice(_KINDS))
        source = str(self._rng.choice([*self._images][-3:]))
        shape: tuple[int, ...] = self._images[source]
        kind = "max" if kind == "slice" and shape[1] < _CHANNELS else kind
        if kind in ("conv", "depthwise"):
            shape = self._convolution(source, shape, output, depthwise=kind == "depthwise")
        elif kind in _JOINS:
            others = [n for n, s in self._images.items() if s == shape]
            pair = [source, str(self._rng.choice(others))]
            joins = kind == "concat"
            self._node(kind.capitalize(), pair, output, **({"axis": 1} if joins else {}))
            shape = (1, shape[1] * 2, *shape[2:]) if joins else shape
        elif kind in _POOLS:
            shape = self._pool(kind, source, shape, output)
        elif kind == "resize":
            self._weights[f"{output}_scales"] = np.array([1, 1, 2, 2], np.float32)
            how = {"mode": "nearest", "nearest_mode": "floor"} if self._rng.random() < 0.5 else {"mode": "linear"}
            self._node(
                "Resize", [source, "", f"{output}_scales"], output, coordinate_transformation_mode="asymmetric", **how
            )
            shape = (*shape[:2], shape[2] * 2, shape[3] * 2)
            if shape[2] > 2 * _SIZE:
                self._nodes.pop()
                return
        elif kind == "activation":
            name = str(self._rng.choice(["Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "Clip", "Softmax"]))
            bounds = []
            if name == "Clip":
                bounds = [f"{output}_low", f"{output}_high"]
                self._weights |= {bounds[0]: np.array(-0.5, np.float32), bounds[1]: np.array(0.75, np.float32)}
            self._node(name, [source, *bounds], output, **({"axis": 1} if name == "Softmax" else {}))
        else:
            bounds = [f"{output}_{what}" for what in ("starts", "ends", "axes")]
            for name, value in zip(bounds, (1, shape[1] - 1, 1), strict=True):
                self._weights[name] = np.array([value], np.int64)
            self._node("Slice", [source, *bounds], output)
            shape = (1, shape[1] - 2, *shape[2:])
        self._images[output] = shape

    def _convolution(
        self, source: str, shape: tuple[int, ...], output: str, *, depthwise: bool
    ) -> tuple[int, int, int, int]:
        kernel, stride = int(self._rng.choice([1, 3])), int(self._rng.choice([1, 1, 2]))
        filters = shape[1] if depthwise else _CHANNELS * int(self._rng.integers(1, 3))
        weight = self._rng.standard_normal((filters, 1 if depthwise else shape[1], kernel, kernel))
        weight *= np.exp(self._rng.standard_normal((filters, 1, 1, 1)))
        names = [source, f"{output}_weight"]
        self._weights[names[1]] = (weight / np.sqrt(weight[0].size)).astype(np.float32)
        if self._bias != "none":
            names.append(f"{output}_bias")
            self._weights[names[2]] = self._rng.standard_normal(filters).astype(np.float32)
        pads = [kernel // 2] * 4
        groups = shape[1] if depthwise else 1
        name = f"{output}_sum"
        clips = str(self._rng.choice(["", "Relu", "Clip"]))
        self._node(
            "Conv",
            names,
            name if clips else output,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=pads,
            group=groups,
        )
        if clips:
            self._weights |= {"zero": np.array(0, np.float32), "six": np.array(1.5, np.float32)}
            self._node(clips, [name, *(["zero", "six"] if clips == "Clip" else [])], output)
        size = (shape[2] - 1) // stride + 1
        return (1, filters, size, size)

    def _pool(self, kind: str, source: str, shape: tuple[int, ...], output: str) -> tuple[int, ...]:
        stride, counted = int(self._rng.choice([1, 2])), int(self._rng.integers(2))
        attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [stride] * 2}
        extra = {"count_include_pad": counted} if kind == "mean" else {}
        self._node("MaxPool" if kind == "max" else "AveragePool", [source], output, **attributes, **extra)
        size = (shape[2] - 1) // stride + 1
        return (*shape[:2], size, size)

    def _head(self, source: str) -> str:
        """Means of the image, and a dense layer."""
        channels = self._images[source][1]
        self._node("GlobalAveragePool", [source], "pooled")
        self._node("Flatten", ["pooled"], "flat")
        self._weights["matrix"] = self._rng.standard_normal((5, channels)).astype(np.float32)
        self._weights["offset"] = self._rng.standard_normal(5).astype(np.float32)
        names = ["flat", "matrix", *([] if self._bias == "none" else ["offset"])]
        self._node("Gemm", names, "logits", transB=1)
        return "logits"

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))

    # -- the whole -----------------------------------------------------------------------------------------------

    def _model(
        self, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], outputs: list[str]
    ) -> onnx.ModelProto:
        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes,
            "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self._images["x"])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in weights.items() if name in used],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Least and largest value of every tensor."""
        names = [name for node in self._nodes for name in node.output]
        session = onnxruntime.InferenceSession(self._model(self._nodes, self._weights, names).SerializeToString())
        found = dict(zip(names, session.run(None, {"x": self.input}), strict=True), x=self.input)
        return {name: (float(value.min()), float(value.max())) for name, value in found.items()}


class _Quantizer:
    """Rewrites a network with rounded tensors, except some between a convolution and its activation."""

    def __init__(self, rng: np.random.Generator, bias: str, ranges: dict[str, tuple[float, float]]) -> None:
        self._rng, self._bias, self._ranges = rng, bias, ranges
        self._dtype = np.dtype(rng.choice(["int8", "uint8"]))
        self._symmetric, self._per_channel = bool(rng.integers(2)), bool(rng.integers(2))
        self._nodes: list[onnx.NodeProto] = []
        self._values: dict[str, np.ndarray] = {}
        self._scales: dict[str, np.ndarray] = {}

    def quantized(self, model: onnx.ModelProto) -> onnx.ModelProto:
        weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self._round("x")
        fuses = self._rng.random() < 0.5
        for node in model.graph.node:
            inputs = [self._operand(node, index, name, weights) for index, name in enumerate(node.input)]
            made = helper.make_node(node.op_type, inputs, node.output, name=node.name)
            made.attribute.extend(node.attribute)
            self._nodes.append(made)
            if not (fuses and node.output[0].endswith("_sum")):
                self._round(node.output[0])
        renamed = {o.name: f"{o.name}_back" for o in model.graph.output}
        graph = helper.make_graph(
            self._nodes,
            "quantized",
            model.graph.input,
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in renamed.values()],
            [numpy_helper.from_array(value, name) for name, value in self._values.items()],
        )
        return helper.make_model(graph, opset_imports=model.opset_import, ir_version=10)

    def _operand(self, node: onnx.NodeProto, index: int, name: str, weights: dict[str, np.ndarray]) -> str:
        if name not in weights:
            return f"{name}_back" if name in self._scales else name
        if node.op_type not in ("Conv", "Gemm") or (index == 2 and self._bias == "float32"):
            self._values[name] = weights[name]
            return name
        return self._weight(name, weights[name]) if index == 1 else self._bias_of(node, name, weights[name])

    def _weight(self, name: str, value: np.ndarray) -> str:
        axes = tuple(range(1 if self._per_channel else 0, value.ndim))
        scale = np.asarray(np.abs(value).max(axes) / 127, np.float32)
        shape = (-1, *(1,) * (value.ndim - 1)) if self._per_channel else ()
        steps = np.rint(value / scale.reshape(shape))
        unsigned = self._dtype == np.uint8 and bool(self._rng.integers(2))
        kind, zero = (np.uint8, 128) if unsigned else (np.int8, 0)
        self._scales[name] = scale
        stored = (steps + zero).astype(kind)
        return self._dequantize(name, stored, scale, np.full(scale.shape, zero, kind), axis=0)

    def _bias_of(self, node: onnx.NodeProto, name: str, value: np.ndarray) -> str:
        scale = np.asarray(self._scales[node.input[0]] * self._scales[node.input[1]], np.float32)
        stored = np.rint(value / scale).astype(np.int32)
        return self._dequantize(name, stored, scale, np.zeros(scale.shape, np.int32), axis=0)

    def _dequantize(self, name: str, stored: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int) -> str:
        inputs = [f"{name}_stored", f"{name}_scale", f"{name}_zero"]
        self._values |= dict(zip(inputs, (stored, scale, zero), strict=True))
        self._nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_back"], axis=axis))
        return f"{name}_back"

    def _round(self, name: str) -> None:
        low, high = (min(self._ranges[name][0], 0.0), max(self._ranges[name][1], 0.0, 1e-3))
        limits = np.iinfo(self._dtype)
        if self._symmetric:
            scale, zero = max(-low, high) / 127, 0 if self._dtype == np.int8 else 128
        else:
            scale = (high - low) / 255
            zero = int(np.clip(np.rint(limits.min - low / scale), limits.min, limits.max))
        self._scales[name] = np.asarray(scale, np.float32)
        parameters = [f"{name}_scale", f"{name}_zero"]
        self._values |= {parameters[0]: np.array(scale, np.float32), parameters[1]: np.array(zero, self._dtype)}
        self._nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"]))
        self._nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_back"]))
