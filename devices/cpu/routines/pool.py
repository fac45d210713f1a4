"""Pooling and resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnstretch.devices.algorithms.resize import filter_tables, has_filters, has_tables, resize_tables
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, Descriptor, Lowering, Operand, Parameters
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.memory_bound import BLOCK, MemoryBoundRoutine, one_call, planes_of
from nnstretch.graph.layer import Layer

MAXIMUM, AVERAGE, AVERAGE_PADDED = 0, 1, 2  # modes of the kernels; AVERAGE_PADDED counts padding as zeros


class PoolRoutine(MemoryBoundRoutine):
    """MaxPool, AveragePool and GlobalPool over N,C,H,W."""

    descriptor = Descriptor("cpu", "float32", "pool")
    operators = frozenset({"MaxPool", "AveragePool", "GlobalPool"})

    def covers(self, layer: Layer) -> bool:
        """Rank 4, and every window overlaps the plane."""
        if len(layer.type_of(0).shape) != 4:
            return False
        if layer.op == "GlobalPool":
            return layer.attributes["mode"] in ("average", "max")
        window, pads = KernelGeometry.of(layer), layer.ints("pads")
        sizes = (*window.size, *window.out_size, *window.kernel, *window.strides, *window.dilations, *pads)
        if max(sizes) > family("pool_window").limits("height")[1] or min(pads) < 0:
            return False
        return all(
            window.pads[axis] <= (window.kernel[axis] - 1) * window.dilations[axis]
            and (window.out_size[axis] - 1) * window.strides[axis] - window.pads[axis] < window.size[axis]
            for axis in range(2)
        )

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        block = parameters[BLOCK]
        if layer.op == "GlobalPool":
            planes = planes_of(layer.type_of(0).shape, block)
            mode = MAXIMUM if layer.attributes["mode"] == "max" else AVERAGE
            sizes = {"rows": planes.planes, "pixels": planes.pixels, "lanes": planes.lanes}
            return one_call("pool/global", layer, {"mode": mode, **sizes})
        return one_call("pool/window", layer, window_parameters(layer, block))


class ResizeRoutine(MemoryBoundRoutine):
    """Resize over H and W."""

    descriptor = Descriptor("cpu", "float32", "resize")
    operators = frozenset({"Resize"})

    def covers(self, layer: Layer) -> bool:
        """Rank 4, and known coordinate, rounding and interpolation modes."""
        return has_tables(layer) or has_filters(layer)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call; its constants are the tables."""
        sizes = plane_sizes(layer, parameters[BLOCK])
        if has_filters(layer):
            filters = filter_tables(layer)
            taps = {
                name: table.indices.shape[1] for name, table in zip(("row_taps", "column_taps"), filters, strict=True)
            }
            constants = (*filters[0], *filters[1])
            return one_call("resize/filter", layer, {**sizes, **taps}, _constants_read(constants), constants)
        rows, columns = resize_tables(layer)
        kernel, tables = "resize/linear", [*rows, *columns]
        if layer.attributes["mode"] == "nearest":
            kernel, tables = "resize/nearest", [np.ascontiguousarray(table.indices[:, 0]) for table in (rows, columns)]
        return one_call(kernel, layer, sizes, _constants_read(tables), tuple(tables))


def _constants_read(tables: Sequence[np.ndarray]) -> tuple[Operand, ...]:
    """The layer's input, then every table."""
    return (INPUT, *(Operand("constant", i) for i in range(len(tables))))


def window_parameters(layer: Layer, block: int) -> Mapping[str, int]:
    """The kernels' parameters for the mode and the windows of a MaxPool or AveragePool."""
    mode = MAXIMUM
    if layer.op == "AveragePool":
        mode = AVERAGE_PADDED if layer.attributes.get("count_include_pad", 0) else AVERAGE
    window = KernelGeometry.of(layer)
    pairs = {"kernel": window.kernel, "stride": window.strides, "dilation": window.dilations}
    pads = dict(zip(("top", "left", "bottom", "right"), layer.ints("pads"), strict=True))
    moves = {f"{name}_{axis}": value for name, pair in pairs.items() for axis, value in zip("hw", pair, strict=True)}
    return {"mode": mode, **plane_sizes(layer, block), **pads, **moves}


def plane_sizes(layer: Layer, block: int) -> Mapping[str, int]:
    """The kernels' parameters for the sizes of images in the layout of this block."""
    shape, result = layer.type_of(0).shape, layer.outputs[0].shape
    planes = planes_of(shape, block)
    sizes = {"height": shape[2], "width": shape[3], "out_height": result[2], "out_width": result[3]}
    return {"planes": planes.planes, "lanes": planes.lanes, **sizes}


ROUTINES = (PoolRoutine, ResizeRoutine)
