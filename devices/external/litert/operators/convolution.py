"""Convolutions and dense layers in TFLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.devices.external.litert.operators.padding import padded_window
from nnstretch.devices.external.litert.tensors import natural_form
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import GraphNode


class Convolutions(OperatorFamily):
    """Layers with weights."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {"Conv": self._conv, "Dense": self._dense}

    def _conv(self, node: GraphNode) -> None:
        layer = node.layer
        weight = layer.constants[1]
        window = KernelGeometry.of(layer)
        channels, groups = window.channels, window.groups
        source, padding = padded_window(self._file, self._tensors.read(node, 0, "last"), window, 0.0, layer.name)
        options = {
            "padding": padding,
            "strideH": window.strides[0],
            "strideW": window.strides[1],
            "dilationHFactor": window.dilations[0],
            "dilationWFactor": window.dilations[1],
        }
        if groups == channels and groups > 1:
            operands = [source, *self._weights(layer, (1, 2, 3, 0))]
            name, table = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"
            options["depthMultiplier"] = weight.shape[0] // channels
        else:
            operands = [source, *self._weights(layer, (0, 2, 3, 1))]
            name, table = "CONV_2D", "Conv2DOptions"
        self._with_residual(node, name, operands, options, table, version=6 if 1 < groups < channels else 1)

    def _dense(self, node: GraphNode) -> None:
        operands = [self._tensors.read(node, 0, "plain"), *self._weights(node.layer, (0, 1))]
        self._with_residual(node, "FULLY_CONNECTED", operands, {}, "FullyConnectedOptions", version=1)

    def _weights(self, layer: Layer, order: Sequence[int]) -> tuple[int, int]:
        """Weight and bias as constants; `order` maps axes of the file's weight to axes of the graph's."""
        weight, scales = layer.constants[1], layer.constants.get(4)
        turned = weight.transpose(order)
        if scales is None:
            bias = layer.constants[2] if layer.has(2) else np.zeros(weight.shape[0], np.float32)
            return self._file.weight(turned, f"{layer.name}:weight"), self._file.constant(
                bias.reshape(-1), f"{layer.name}:bias"
            )
        quantization = layer.type_of(0).quantization
        assert quantization is not None
        scales = scales if (scales != scales[0]).any() else scales[:1]
        steps = layer.constants[2] if layer.has(2) else np.zeros(weight.shape[0], np.int32)
        return (
            self._file.constant(turned, f"{layer.name}:weight", scales, order.index(0)),
            self._file.constant(steps, f"{layer.name}:bias", scales * np.float32(quantization.scale)),
        )

    def _with_residual(
        self,
        node: GraphNode,
        name: str,
        operands: Sequence[int],
        options: Mapping[str, object],
        table: str,
        *,
        version: int,
    ) -> None:
        """Writes a layer with weights, its residual and its activation."""
        form = natural_form(node.layer.outputs[0].shape)
        result = self._tensors.result(node)
        shape = self._file.shape(result)
        if not node.layer.has(3):
            self._activations.emit(name, operands, result, node.layer.activation, options, table, version)
            return
        computed = self._file.tensor(shape, f"{node.layer.name}:before")
        self._activations.emit(name, operands, computed, NO_ACTIVATION, options, table, version)
        added = [computed, self._tensors.read(node, 3, form)]
        self._activations.emit("ADD", added, result, node.layer.activation, {}, "AddOptions")
