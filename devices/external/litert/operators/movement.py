"""Layers that move elements, in TFLite."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.devices.external.litert.tensors import TO_LAST, TO_PLAIN, formed, natural_form
from nnstretch.graph.layers import GraphNode

_BROADCAST_TO_VERSION = 2


class Movements(OperatorFamily):
    """Concatenations, slices, transpositions, and other orders of the same elements."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {
            "Concat": self._concat,
            "Reshape": self._reshape,
            "Transpose": self._transpose,
            "Rearrange": self._rearrange,
            "Slice": self._slice,
            "Expand": self._expand,
            "DepthToSpace": self._depth_to_space,
            "SpaceToDepth": self._space_to_depth,
        }

    def _concat(self, node: GraphNode) -> None:
        layer = node.layer
        form = natural_form(layer.outputs[0].shape)
        axis = layer.integer("axis")
        axis = TO_LAST.index(axis) if form == "last" else axis
        quantization = layer.outputs[0].quantization
        operands = [
            self._file.requantized(self._tensors.read(node, i, form), quantization) for i in range(len(layer.inputs))
        ]
        self._activations.emit(
            "CONCATENATION",
            operands,
            self._tensors.result(node),
            layer.activation,
            {"axis": axis},
            "ConcatenationOptions",
        )

    def _reshape(self, node: GraphNode) -> None:
        with self._before_activation(node, "plain") as result:
            self._tensors.reshaped(self._tensors.read(node, 0, "plain"), result)

    def _transpose(self, node: GraphNode) -> None:
        """Writes a transpose; free if the result equals an existing form, as before the heads of detectors."""
        name, result = str(node.inputs[0]), node.outputs[0]
        order = node.layer.ints("perm")
        forms = self._tensors.forms(name)
        if order == TO_LAST and "last" in forms:
            self._tensors.put(result, "plain", forms["last"])
        elif order == TO_PLAIN and "plain" in forms:
            self._tensors.put(result, "last", forms["plain"])
        else:
            self._tensors.put(
                result, "plain", self._tensors.transposed(self._tensors.get(name, "plain"), order, result)
            )

    def _rearrange(self, node: GraphNode) -> None:
        """Writes the pixels as their factors, the factors in another order, and pixels again; channels stay last."""
        layer = node.layer
        sizes, order = layer.ints("sizes"), layer.ints("perm")
        source = self._tensors.read(node, 0, "last")
        factors = self._reshaped(source, (*sizes, self._file.shape(source)[3]))
        moved = self._transposed(factors, (*order, len(order)))
        with self._before_activation(node, "last") as result:
            self._tensors.reshaped(moved, result)

    def _slice(self, node: GraphNode) -> None:
        layer = node.layer
        form = self._tensors.form_of(node)
        begins, steps = layer.ints("starts"), layer.ints("steps")
        ends = [b + (n - 1) * s + 1 for b, n, s in zip(begins, layer.outputs[0].shape, steps, strict=True)]
        where = [
            self._integers(formed(values, form), f"{layer.name}:{what}")
            for what, values in (("begins", begins), ("ends", ends), ("steps", steps))
        ]
        operands = [self._tensors.read(node, 0, form), *where]
        self._file.operator("STRIDED_SLICE", operands, [self._tensors.result(node, form)], table="StridedSliceOptions")

    def _expand(self, node: GraphNode) -> None:
        layer = node.layer
        form = (
            self._tensors.form_of(node) if len(layer.type_of(0).shape) == 4 == len(layer.outputs[0].shape) else "plain"
        )
        source = self._tensors.read(node, 0, form)
        with self._before_activation(node, form) as result:
            extents = self._integers(self._file.shape(result), f"{layer.name}:shape")
            self._file.operator(
                "BROADCAST_TO", [source, extents], [result], table="BroadcastToOptions", version=_BROADCAST_TO_VERSION
            )

    def _depth_to_space(self, node: GraphNode) -> None:
        """Writes DEPTH_TO_SPACE; channels in ONNX's order CRD are brought to TFLite's order first."""
        layer = node.layer
        size, source = layer.integer("size"), self._tensors.read(node, 0, "last")
        if layer.attributes["mode"] == "CRD":
            *pixels, channels = self._file.shape(source)
            split = self._reshaped(source, (prod(pixels), channels // size**2, size**2))
            source = self._reshaped(self._transposed(split, (0, 2, 1)), (*pixels, channels))
        with self._before_activation(node, "last") as result:
            options = {"blockSize": size}
            self._file.operator("DEPTH_TO_SPACE", [source], [result], options, table="DepthToSpaceOptions")

    def _space_to_depth(self, node: GraphNode) -> None:
        options = {"blockSize": node.layer.integer("size")}
        source = self._tensors.read(node, 0, "last")
        with self._before_activation(node, "last") as result:
            self._file.operator("SPACE_TO_DEPTH", [source], [result], options, table="SpaceToDepthOptions")
