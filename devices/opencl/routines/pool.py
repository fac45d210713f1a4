"""Pooling and resizing."""

from __future__ import annotations

import numpy as np

from nnstretch.devices.algorithms.resize import ResizeTable, has_tables, resize_tables
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, Lowering, Parameters
from nnstretch.devices.opencl.routines.base import OpenCLRoutine, ceil_div, constant, is_image
from nnstretch.devices.opencl.routines.demand import ADDRESS_REGISTERS, Demand
from nnstretch.graph.layer import Layer


class Pool(OpenCLRoutine):
    """Maximum and average over windows, blocked in and out."""

    algorithm = "pool"
    source = "pool.cl"
    ops = ("MaxPool", "AveragePool")
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return is_image(layer.type_of(0))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        windows, size = window_words(self, layer)
        if layer.op == "MaxPool":
            return self.lowering("max_pool", layer, (*windows, *KernelGeometry.of(layer).dilations), size)
        padding = (*layer.ints("pads")[2:], int(layer.attributes["count_include_pad"] == 1))
        return self.lowering("average_pool", layer, (*windows, *padding), size)


_SUMS = 16, 8, 4


class GlobalPool(OpenCLRoutine):
    """Maximum or average over whole planes, blocked in and out."""

    algorithm = "global_pool"
    source = "pool.cl"
    ops = ("GlobalPool",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return is_image(layer.type_of(0)) and layer.attributes["mode"] in ("average", "max")

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        n, c, h, w = layer.type_of(0).shape
        blocks = self.blocks(c)
        words = (blocks, h * w, int(layer.attributes["mode"] == "max"), *layer.activation.words())
        defines = () if self.traits.on_cpu else (("SUMS", self._sums()),)
        return Lowering((self.call("global_pool", (INPUT,), words, (blocks, n), defines),))

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        return self._demand(self._sums())

    def _demand(self, sums: int) -> Demand:
        """What partial sums demand, and a number that is loaded."""
        return Demand(self.traits.block * (sums + 1) + ADDRESS_REGISTERS)

    def _sums(self) -> int:
        """Partial sums, whose loads are under way at the same time: a GPU has few work items to hide their latency."""
        return next((sums for sums in _SUMS if self._demand(sums).fits(self.traits)), _SUMS[-1])


class Resize(OpenCLRoutine):
    """Nearest and linear interpolation along height and width, blocked in and out."""

    algorithm = "resize"
    source = "resize.cl"
    ops = ("Resize",)

    def _supports(self, layer: Layer) -> bool:
        return has_tables(layer)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `resize`, with tables of input positions for rows and columns."""
        n, c, h, w = layer.type_of(0).shape
        oh, ow = layer.outputs[0].shape[2:]
        tables = tuple(map(_packed, resize_tables(layer)))
        blocks = self.blocks(c)
        rows = self.per_item(oh, blocks * n)
        linear = int(layer.attributes["mode"] == "linear")
        words, size = (blocks, h, w, oh, ow, rows, linear), (ceil_div(oh, rows), blocks, n)
        return self.lowering("resize", layer, words, size, (INPUT, constant(0), constant(1)), tables)


def window_words(routine: OpenCLRoutine, layer: Layer) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """The kernels' parameters of windows, and the work items."""
    shape = KernelGeometry.of(layer)
    blocks = routine.blocks(shape.channels)
    rows = routine.per_item(shape.out_height, blocks * shape.batch)
    columns = shape.out_width if routine.traits.on_cpu or rows > 1 else 1
    words = (blocks, *shape.size, *shape.out_size, *shape.kernel, *shape.strides, *shape.pads, rows, columns)
    items = ceil_div(shape.out_height, rows) * ceil_div(shape.out_width, columns)
    return words, (items, blocks, shape.batch)


def _packed(table: ResizeTable) -> np.ndarray:
    """Per output position: first and second source index (bits of int32), weight of the second."""
    return np.column_stack((table.indices.view(np.float32), table.weights)).ravel()


ROUTINES = (Pool, GlobalPool, Resize)
