"""Pooling."""

from __future__ import annotations

from nnstretch.devices.base.routine import Descriptor, KernelCall, Lowering, Parameters
from nnstretch.devices.cpu.routines.memory_bound.base import BLOCK, INPUT, OUTPUT, LightRoutine, planes_of
from nnstretch.graph.layer import Layer

MAXIMUM, AVERAGE, AVERAGE_PADDED = 0, 1, 2
"""Modes of the kernels; the last one counts padding as zeros."""

LARGEST_SPAN = 1 << 24
"""Largest height, width, kernel, stride, pad or dilation that the kernel takes."""


class PoolRoutine(LightRoutine):
    """MaxPool, AveragePool and GlobalPool over N,C,H,W."""

    descriptor = Descriptor("cpu", "float32", "pool")
    operators = frozenset({"MaxPool", "AveragePool", "GlobalPool"})

    def covers(self, layer: Layer) -> bool:
        """Rank 4, and no window that holds nothing but padding."""
        if len(layer.type_of(0).shape) != 4:
            return False
        if layer.op == "GlobalPool":
            return layer.attributes["mode"] in ("average", "max")
        kernel, strides, dilations, pads = _window(layer)
        size, result = layer.type_of(0).shape[2:], layer.outputs[0].shape[2:]
        if max(*size, *result, *kernel, *strides, *dilations, *pads) > LARGEST_SPAN or min(pads) < 0:
            return False
        return all(
            pads[axis] <= (kernel[axis] - 1) * dilations[axis]
            and (result[axis] - 1) * strides[axis] - pads[axis] < size[axis]
            for axis in range(2)
        )

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call."""
        shape = layer.type_of(0).shape
        planes = planes_of(shape, parameters[BLOCK])
        words = layer.activation.words()
        if layer.op == "GlobalPool":
            mode = MAXIMUM if layer.attributes["mode"] == "max" else AVERAGE
            values = (mode, planes.planes, planes.pixels, planes.lanes, *words)
            return Lowering((KernelCall("pool/global", (INPUT,), (OUTPUT,), values),))
        kernel, strides, dilations, pads = _window(layer)
        mode = MAXIMUM
        if layer.op == "AveragePool":
            mode = AVERAGE_PADDED if layer.attributes.get("count_include_pad", 0) else AVERAGE
        sizes = (*shape[2:], *layer.outputs[0].shape[2:])
        window = (mode, planes.planes, planes.lanes, *sizes, *kernel, *strides, *pads, *dilations, *words)
        return Lowering((KernelCall("pool/window", (INPUT,), (OUTPUT,), window),))


def _window(layer: Layer) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides, dilations (height, width) and pads (top, left, bottom, right)."""
    dilations = layer.ints("dilations") if "dilations" in layer.attributes else (1, 1)
    return layer.ints("kernel"), layer.ints("strides"), dilations, layer.ints("pads")
