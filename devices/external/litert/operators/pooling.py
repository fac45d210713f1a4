"""Pooling in TFLite."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.devices.external.litert.operators.padding import pad_window, padded_window
from nnstretch.errors import ModelError
from nnstretch.graph.activation import NO_ACTIVATION, Activation
from nnstretch.graph.layers import GraphNode

_LOWEST = float(np.finfo(np.float32).min)


class Pools(OperatorFamily):
    """Maxima and means of windows and of whole images."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {"MaxPool": self._max_pool, "AveragePool": self._average_pool, "GlobalPool": self._global_pool}

    def _pool(
        self, name: str, source: int, result: int, window: KernelGeometry, padding: int, activation: Activation
    ) -> None:
        options = {
            "padding": padding,
            "filterHeight": window.kernel[0],
            "filterWidth": window.kernel[1],
            "strideH": window.strides[0],
            "strideW": window.strides[1],
        }
        self._activations.emit(name, [source], result, activation, options, "Pool2DOptions")

    def _max_pool(self, node: GraphNode) -> None:
        layer = node.layer
        if layer.ints("dilations") != (1, 1):
            raise ModelError(f"layer {layer.name} (MaxPool) is a dilated pool, which TFLite does not have")
        window = KernelGeometry.of(layer)
        neutral = 0.0 if self._ranges.is_zero_least(node) else _LOWEST
        source, padding = padded_window(self._file, self._tensors.read(node, 0, "last"), window, neutral, layer.name)
        self._pool("MAX_POOL_2D", source, self._tensors.result(node), window, padding, layer.activation)

    def _average_pool(self, node: GraphNode) -> None:
        """TFLite's mean excludes SAME's pads and includes explicit ones; a factor per pixel corrects it."""
        layer = node.layer
        window = KernelGeometry.of(layer)
        source, result = self._tensors.read(node, 0, "last"), self._tensors.result(node)
        counts_pads = bool(layer.attributes["count_include_pad"])
        modes = self._file.schema.Padding
        if window.is_valid or (window.is_same and not counts_pads):
            padding = modes.VALID if window.is_valid else modes.SAME
            self._mean(source, result, window, padding, layer.activation)
            return
        # SAME excludes pads from the mean, so they are explicit here.
        source, padding = pad_window(self._file, source, window, 0.0, layer.name), modes.VALID
        if counts_pads:
            self._mean(source, result, window, padding, layer.activation)
            return
        mean = self._file.tensor(self._file.shape(result), f"{layer.name}:mean")
        self._pool("AVERAGE_POOL_2D", source, mean, window, padding, NO_ACTIVATION)
        area = float(window.kernel[0] * window.kernel[1])
        factors = area / np.outer(window.counted(0), window.counted(1))
        factor = self._file.constant(factors.astype(np.float32)[None, :, :, None], f"{layer.name}:factors")
        self._activations.emit("MUL", [mean, factor], result, layer.activation, {}, "MulOptions")

    def _mean(self, source: int, result: int, window: KernelGeometry, padding: int, activation: Activation) -> None:
        with self._tensors.keeping_quantization(source, result) as made:
            self._pool("AVERAGE_POOL_2D", source, made, window, padding, activation)

    def _global_pool(self, node: GraphNode) -> None:
        layer = node.layer
        source, result = self._tensors.read(node, 0, "last"), self._tensors.result(node)
        if layer.attributes["mode"] == "max":
            window = KernelGeometry.of(layer)
            padding = self._file.schema.Padding.VALID
            with self._tensors.keeping_quantization(source, result) as made:
                self._pool("MAX_POOL_2D", source, made, window, padding, layer.activation)
            return
        operands = [source, self._integers((1, 2), f"{layer.name}:axes")]
        self._activations.emit("MEAN", operands, result, layer.activation, {"keepDims": True}, "ReducerOptions")
