"""Normalisations in TFLite, which has sums and roots for them, and PRELU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.external.litert.activation import Activations
from nnstretch.devices.external.litert.flatbuffer import FlatModel
from nnstretch.devices.external.litert.tensors import Form, FormedTensors
from nnstretch.errors import ModelError
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import GraphNode


class Normalizations:
    """Writes layers that have a factor per channel."""

    def __init__(self, file: FlatModel, tensors: FormedTensors, activations: Activations) -> None:
        self._file, self._tensors, self._activations = file, tensors, activations

    def layer_norm(self, node: GraphNode) -> None:
        """Writes a LayerNorm over one axis."""
        layer, rank = node.layer, len(node.layer.outputs[0].shape)
        axis = layer.integer("axis")
        form: Form = "last" if rank == 4 and axis == 1 else "plain"
        source, result = self._tensors.read(node, 0, form), self._tensors.result(node, form)
        place = rank - 1 if form == "last" else axis
        normed = self._normed(source, [place], layer)
        self._scale(normed, result, layer, [-1 if i == place else 1 for i in range(rank)])

    def group_norm(self, node: GraphNode) -> None:
        """Writes a GroupNorm of an image as one over pixels and the channels of a group.

        Raises:
            ModelError: the tensor is no image.
        """
        layer, shape = node.layer, node.layer.outputs[0].shape
        if len(shape) != 4:
            raise ModelError(
                f"layer {layer.name} normalises groups of a tensor with {len(shape)} axes; TFLite files have images"
            )
        images, channels, height, width = shape
        groups = layer.integer("groups")
        source, result = self._tensors.read(node, 0, "last"), self._tensors.result(node, "last")
        grouped = self._file.tensor((images, height * width, groups, channels // groups), f"{layer.name}:grouped")
        self._tensors.reshaped(source, grouped)
        back = self._file.like(result, f"{layer.name}:normed")
        self._tensors.reshaped(self._normed(grouped, [1, 3], layer), back)
        self._scale(back, result, layer, [1, 1, 1, -1])

    def prelu(self, node: GraphNode) -> None:
        """Writes a PRelu with its slope along the channels."""
        layer, rank = node.layer, len(node.layer.outputs[0].shape)
        form: Form = "last" if rank == 4 else "plain"
        place = rank - 1 if form == "last" else 1
        slope = layer.constants[1].reshape([-1 if i == place else 1 for i in range(1, rank)])
        operands = [self._tensors.read(node, 0, form), self._file.constant(slope, f"{layer.name}:slope")]
        self._activations.emit("PRELU", operands, self._tensors.result(node, form), layer.activation, {}, "")

    def _normed(self, source: int, axes: Sequence[int], layer: Layer) -> int:
        """The numbers less their mean over `axes`, over their deviation."""
        shape = self._file.shape(source)
        small = [1 if i in axes else extent for i, extent in enumerate(shape)]
        which = self._file.constant(np.array(axes, np.int32), f"{layer.name}:axes")

        def made(name: str, operands: list[int], extents: Sequence[int], table: str = "") -> int:
            result = self._file.tensor(extents, f"{layer.name}:{name.lower()}")
            options = {"keepDims": True} if name == "MEAN" else {}
            self._file.operator(name, operands, [result], options, table=table)
            return result

        centred = source
        if not layer.integer("rms", 0):
            centred = made("SUB", [source, made("MEAN", [source, which], small, "ReducerOptions")], shape, "SubOptions")
        squares = made("MUL", [centred, centred], shape, "MulOptions")
        variance = made("MEAN", [squares, which], small, "ReducerOptions")
        epsilon = self._file.constant(np.array(layer.attributes["epsilon"], np.float32), f"{layer.name}:epsilon")
        factor = made("RSQRT", [made("ADD", [variance, epsilon], small, "AddOptions")], small)
        return made("MUL", [centred, factor], shape, "MulOptions")

    def _scale(self, source: int, result: int, layer: Layer, along: Sequence[int]) -> None:
        """Writes scale, shift and activation; constants have the shape `along`."""
        length = next((values.size for values in layer.constants.values()), 1)
        scale = layer.constants[1] if layer.has(1) else np.ones(length, np.float32)
        shift = layer.constants[2] if layer.has(2) else np.zeros(length, np.float32)
        factor, summand = (
            self._file.constant(values.reshape(along).astype(np.float32), f"{layer.name}:{role}")
            for role, values in (("scale", scale), ("shift", shift))
        )
        scaled = self._file.like(result, f"{layer.name}:scaled")
        self._activations.emit("MUL", [source, factor], scaled, NO_ACTIVATION, {}, "MulOptions")
        self._activations.emit("ADD", [scaled, summand], result, layer.activation, {}, "AddOptions")
