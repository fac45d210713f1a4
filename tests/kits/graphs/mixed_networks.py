"""A quantised network whose layers may each compute with integers or with floats, written as such in ONNX."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.reference import run_proto

IMAGE = (1, 3, 10, 10)
_RELU = frozenset({"a", "c", "d"})
"""Layers whose ReLU is but in the quantisation of their results, as quantisers write it."""
_AVERAGES = frozenset({"p", "e", "f", "h", "i"})
"""Layers whose results lie between their inputs, and are not clipped as floats."""
OUTPUT = "y"


class MixedNetwork:
    """A small network with convolutions, a sum, a concat, pools and a dense layer, and what rounds its tensors.

    Attributes:
        input: what ranges were calibrated with.
    """

    def __init__(self, seed: int = 0, layers: int | None = None) -> None:
        """A network with the first layers, or with all."""
        self._rng = np.random.default_rng(seed)
        self.input = self._rng.standard_normal(IMAGE).astype(np.float32)
        self._constants: dict[str, np.ndarray] = {}
        self._layers: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = []
        self._convolution("a", "x", 3, 16)
        self._layer("MaxPool", "p", ("a",), kernel_shape=[2, 2], strides=[2, 2])
        self._convolution("b", "p", 16, 16)
        self._layer("Add", "c", ("b", "p"))
        self._convolution("d", "c", 16, 16, groups=16)
        self._layer("Concat", "e", ("c", "d", "b"), axis=1)
        self._layer("AveragePool", "f", ("e",), kernel_shape=[3, 3], pads=[1] * 4)
        self._convolution("g", "f", 48, 8, kernel=1)
        self._layer("GlobalAveragePool", "h", ("g",))
        self._layer("Flatten", "i", ("h",))
        self._weight("m", (5, 8))
        self._layer("Gemm", "j", ("i", "m_weight"), transB=1)
        del self._layers[len(self._layers) if layers is None else layers :]

    @property
    def names(self) -> list[str]:
        """Layers by the names of their results, and `x`."""
        return ["x", *(name for _, name, _, _ in self._layers)]

    def model(self, floating: Collection[str] = (), unrounded: Collection[str] = ()) -> onnx.ModelProto:
        """The network as an ONNX file.

        Args:
            floating: tensors that are kept as floats; most are clipped where others are rounded.
            unrounded: layers that read floats as they are kept; others round what they read.
        """
        nodes = [*self._weights(), *self._kept("x")]
        for kind, name, inputs, attributes in self._layers:
            sources = [self._read(source, name, floating, unrounded) for source in inputs]
            nodes.append(helper.make_node(kind, sources, [name], name=name, **attributes))
            nodes += self._kept(name)
        last = self._layers[-1][1]
        nodes.append(helper.make_node("Identity", [self._read(last, OUTPUT, floating, unrounded)], [OUTPUT]))
        return self._whole(nodes, [OUTPUT], self._rounding())

    def step(self) -> float:
        """From one number of the result to the next."""
        return self._ranges[self._layers[-1][1]].scale

    # -- layers --------------------------------------------------------------------------------------------------

    def _layer(self, kind: str, name: str, inputs: tuple[str, ...], **attributes: Any) -> None:
        self._layers.append((kind, name, inputs, attributes))

    def _convolution(self, name: str, source: str, ins: int, outs: int, kernel: int = 3, groups: int = 1) -> None:
        self._weight(name, (outs, ins // groups, kernel, kernel))
        pads = [kernel // 2] * 4
        self._layer("Conv", name, (source, f"{name}_weight"), pads=pads, group=groups)

    def _weight(self, name: str, shape: tuple[int, ...]) -> None:
        """Integers, and the scale of each output channel."""
        self._constants[f"{name}_stored"] = self._rng.integers(-127, 128, shape).astype(np.int8)
        spread = self._rng.uniform(0.5, 1.5, shape[0]) / 74 / np.sqrt(np.prod(shape[1:]))
        self._constants[f"{name}_scales"] = spread.astype(np.float32)
        self._constants[f"{name}_zeros"] = np.zeros(shape[0], np.int8)

    def _weights(self) -> list[onnx.NodeProto]:
        names = [name.removesuffix("_stored") for name in self._constants if name.endswith("_stored")]
        return [
            helper.make_node("DequantizeLinear", [f"{n}_stored", f"{n}_scales", f"{n}_zeros"], [f"{n}_weight"], axis=0)
            for n in names
        ]

    # -- rounding ------------------------------------------------------------------------------------------------

    @cached_property
    def _ranges(self) -> dict[str, QuantizationParameters]:
        """How each tensor is rounded, by its range with the ReLUs."""
        nodes = self._weights()
        for kind, name, inputs, attributes in self._layers:
            made = f"{name}_sum" if name in _RELU else name
            nodes.append(helper.make_node(kind, list(inputs), [made], **attributes))
            if name in _RELU:
                nodes.append(helper.make_node("Relu", [made], [name]))
        found = run_proto(self._whole(nodes, self.names[1:], {}), {"x": self.input})
        return {name: _rounding(values) for name, values in zip(self.names, [self.input, *found], strict=True)} | {
            # moves elements, which keep their scale
            name: _rounding(found[self.names.index(source) - 1])
            for name, source in (("p", "a"), ("i", "h"))
            if name in self.names
        }

    def _rounding(self) -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = {}
        for name, kind in self._ranges.items():
            values[f"{name}_scale"] = np.array(kind.scale, np.float32)
            values[f"{name}_zero"] = np.array(kind.zero_point, np.int8)
            values[f"{name}_low"], values[f"{name}_high"] = kind.dequantize(np.array([-128, 127]))
        return values

    def _kept(self, name: str) -> list[onnx.NodeProto]:
        """A tensor rounded, and clipped."""
        parameters = [f"{name}_scale", f"{name}_zero"]
        return [
            helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_integers"], name=f"{name}_q"),
            helper.make_node("DequantizeLinear", [f"{name}_integers", *parameters], [f"{name}_rounded"]),
            helper.make_node("Clip", [name, f"{name}_low", f"{name}_high"], [f"{name}_clipped"]),
        ]

    def _read(self, source: str, reader: str, floating: Collection[str], unrounded: Collection[str]) -> str:
        if source not in self._ranges:
            return source
        if source not in floating or reader not in unrounded:
            return f"{source}_rounded"
        return source if source in _AVERAGES else f"{source}_clipped"

    def _whole(
        self, nodes: Iterable[onnx.NodeProto], outputs: list[str], more: dict[str, np.ndarray]
    ) -> onnx.ModelProto:
        constants = self._constants | more
        graph = helper.make_graph(
            list(nodes),
            "mixed",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _rounding(values: np.ndarray) -> QuantizationParameters:
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = float(np.float32((high - low) / 255))
    return QuantizationParameters(scale, int(np.clip(np.rint(-128 - low / scale), -128, 127)))
