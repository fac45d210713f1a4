"""Resizing in TFLite: its own operators where they compute the same, else gathers and products with constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnstretch.devices.algorithms.resize import ResizeTable, has_tables, resize_tables
from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.errors import ModelError
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import GraphNode

_HALF = ("half_pixel", "pytorch_half_pixel")


def is_bilinear(layer: Layer) -> bool:
    """Whether RESIZE_BILINEAR computes a linear Resize; it knows sizes only, no scales that differ from their ratio."""
    shape, result = layer.type_of(0).shape[2:], layer.outputs[0].shape[2:]
    scales, coordinates = layer.attributes["scales"], layer.attributes["coordinates"]
    assert isinstance(scales, tuple)
    by_shape = [made / size for made, size in zip(result, shape, strict=True)]
    by_size = coordinates == "align_corners" or np.allclose(scales, by_shape, rtol=1e-6, atol=0.0)
    return by_size and not (coordinates == "pytorch_half_pixel" and 1 in result)


class Resizes(OperatorFamily):
    """Interpolation of images."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {"Resize": self._resize}

    def _resize(self, node: GraphNode) -> None:
        layer = node.layer
        if not has_tables(layer):
            raise ModelError(
                f"layer {layer.name} (Resize) interpolates by {layer.attributes['mode']} with coordinates "
                f"{layer.attributes['coordinates']}, which TFLite does not have"
            )
        if layer.attributes["mode"] == "nearest":
            self._nearest(node)
        elif is_bilinear(layer):
            coordinates = layer.attributes["coordinates"]
            options = {"alignCorners": coordinates == "align_corners", "halfPixelCenters": coordinates in _HALF}
            self._by_size(node, "RESIZE_BILINEAR", options, "ResizeBilinearOptions")
        else:
            self._by_products(node)

    def _by_size(self, node: GraphNode, name: str, options: Mapping[str, bool], table: str) -> None:
        layer = node.layer
        source = self._tensors.read(node, 0, "last")
        operands = [source, self._integers(layer.outputs[0].shape[2:], f"{layer.name}:size")]
        with (
            self._before_activation(node, "last") as result,
            self._tensors.keeping_quantization(source, result) as made,
        ):
            self._file.operator(name, operands, [made], options, table=table, version=3)

    def _nearest(self, node: GraphNode) -> None:
        """Writes RESIZE_NEAREST_NEIGHBOR if one of its modes takes the same pixels, else gathers of rows and columns."""
        layer = node.layer
        tables = resize_tables(layer)
        sizes = [(layer.type_of(0).shape[axis], layer.outputs[0].shape[axis]) for axis in (2, 3)]
        for corners, half in ((False, False), (False, True), (True, False)):
            taken = [_nearest_pixels(*size, corners=corners, half=half) for size in sizes]
            if all(np.array_equal(t, wanted.indices[:, 0]) for t, wanted in zip(taken, tables, strict=True)):
                options = {"alignCorners": corners, "halfPixelCenters": half}
                self._by_size(node, "RESIZE_NEAREST_NEIGHBOR", options, "ResizeNearestNeighborOptions")
                return
        source = self._tensors.read(node, 0, "last")
        batch, _, width, channels = self._file.shape(source)
        height = len(tables[0].indices)
        with (
            self._before_activation(node, "last") as result,
            self._tensors.keeping_quantization(source, result) as made,
        ):
            rows = self._file.like(source, f"{layer.name}:rows", (batch, height, width, channels))
            for axis, table, before, after in ((1, tables[0], source, rows), (2, tables[1], rows, made)):
                indices = self._integers(table.indices[:, 0], f"{layer.name}:indices:{axis}")
                self._file.operator("GATHER", [before, indices], [after], {"axis": axis}, table="GatherOptions")

    def _by_products(self, node: GraphNode) -> None:
        """Writes a linear interpolation as products with constant matrices of weights: columns, then rows."""
        layer = node.layer
        source = self._tensors.read(node, 0, "plain")
        batch, channels, height, width = self._file.shape(source)
        rows, columns = (
            _weights(table, size) for table, size in zip(resize_tables(layer), (height, width), strict=True)
        )
        across = self._file.constant(columns, f"{layer.name}:columns")
        wide = self._computed(
            "BATCH_MATMUL",
            [source, across],
            (batch, channels, height, len(columns)),
            {"adjX": False, "adjY": True},
            table="BatchMatMulOptions",
        )
        down = self._file.constant(rows[None, None], f"{layer.name}:rows")
        with self._before_activation(node, "plain") as result:
            options = {"adjX": False, "adjY": False}
            self._file.operator("BATCH_MATMUL", [down, wide], [result], options, table="BatchMatMulOptions")


def _nearest_pixels(size: int, result: int, *, corners: bool, half: bool) -> np.ndarray:
    """The source pixels that RESIZE_NEAREST_NEIGHBOR takes along one axis, computed in float32 as TFLite does."""
    by_corners = corners and result > 1
    scale = np.float32(size - 1) / np.float32(result - 1) if by_corners else np.float32(size) / np.float32(result)
    positions = (np.arange(result, dtype=np.float32) + np.float32(0.5 if half else 0.0)) * scale
    # Rounding is that of C: halves away from zero.
    chosen = np.floor(positions + np.float32(0.5)) if corners else np.floor(positions)
    return np.asarray(np.minimum(chosen, size - 1), np.int32)


def _weights(table: ResizeTable, size: int) -> np.ndarray:
    """Weights of `size` source pixels per output pixel, shape (outputs, size)."""
    outputs = np.arange(len(table.indices))
    found = np.zeros((len(outputs), size), np.float32)
    np.add.at(found, (outputs, table.indices[:, 0]), 1 - table.weights)
    np.add.at(found, (outputs, table.indices[:, 1]), table.weights)
    return found
