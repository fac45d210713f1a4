"""Normalisations in TFLite, which has sums and roots for them, and PRELU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.devices.external.litert.tensors import Form
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import GraphNode


class Normalizations(OperatorFamily):
    """Layers that have a factor per channel."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {"LayerNorm": self._layer_norm, "GroupNorm": self._group_norm, "PRelu": self._prelu}

    def _layer_norm(self, node: GraphNode) -> None:
        """Writes a LayerNorm over one axis."""
        layer, rank = node.layer, len(node.layer.outputs[0].shape)
        axis = layer.integer("axis")
        form: Form = "last" if rank == 4 and axis == 1 else "plain"
        source, result = self._tensors.read(node, 0, form), self._tensors.result(node, form)
        place = rank - 1 if form == "last" else axis
        normed = self._normed(source, [place], layer)
        self._scale(normed, result, layer, [-1 if i == place else 1 for i in range(rank)])

    def _group_norm(self, node: GraphNode) -> None:
        """Writes a GroupNorm as one over pixels and the channels of a group."""
        layer, shape = node.layer, node.layer.outputs[0].shape
        groups = layer.integer("groups")
        if len(shape) == 4:
            images, channels, height, width = shape
            form: Form = "last"
            grouped, axes, along = (images, height * width, groups, channels // groups), [1, 3], [1, 1, 1, -1]
        else:
            form = "plain"
            grouped, axes = (shape[0], groups, prod(shape[1:]) // groups, 1), [2]
            along = [1, -1, *(1,) * (len(shape) - 2)]
        source, result = self._tensors.read(node, 0, form), self._tensors.result(node, form)
        normed = self._normed(self._reshaped(source, grouped), axes, layer)
        self._scale(self._reshaped(normed, self._file.shape(result)), result, layer, along)

    def _prelu(self, node: GraphNode) -> None:
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
