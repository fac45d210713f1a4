"""Pooling."""

from __future__ import annotations

from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters
from nnstretch.devices.cpu.manifest import activation_parameters, family, kernel_call
from nnstretch.devices.cpu.routines.memory_bound.base import BLOCK, INPUT, OUTPUT, MemoryBoundRoutine, planes_of
from nnstretch.graph.layer import Layer

MAXIMUM, AVERAGE, AVERAGE_PADDED = 0, 1, 2
"""Modes of the kernels; AVERAGE_PADDED counts padding as zeros."""


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
        kernel, strides, dilations, pads = _window(layer)
        size, result = layer.type_of(0).shape[2:], layer.outputs[0].shape[2:]
        most = family("pool_window").limits("height")[1]
        if max(*size, *result, *kernel, *strides, *dilations, *pads) > most or min(pads) < 0:
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
        activation = activation_parameters(layer.activation)
        if layer.op == "GlobalPool":
            mode = MAXIMUM if layer.attributes["mode"] == "max" else AVERAGE
            call = kernel_call(
                "pool/global",
                (INPUT,),
                (OUTPUT,),
                mode=mode,
                rows=planes.planes,
                pixels=planes.pixels,
                lanes=planes.lanes,
                activation=activation,
            )
            return Lowering((call,))
        kernel, strides, dilations, pads = _window(layer)
        mode = MAXIMUM
        if layer.op == "AveragePool":
            mode = AVERAGE_PADDED if layer.attributes.get("count_include_pad", 0) else AVERAGE
        call = kernel_call(
            "pool/window",
            (INPUT,),
            (OUTPUT,),
            mode=mode,
            planes=planes.planes,
            lanes=planes.lanes,
            height=shape[2],
            width=shape[3],
            out_height=layer.outputs[0].shape[2],
            out_width=layer.outputs[0].shape[3],
            kernel_h=kernel[0],
            kernel_w=kernel[1],
            stride_h=strides[0],
            stride_w=strides[1],
            top=pads[0],
            left=pads[1],
            bottom=pads[2],
            right=pads[3],
            dilation_h=dilations[0],
            dilation_w=dilations[1],
            activation=activation,
        )
        return Lowering((call,))


def _window(layer: Layer) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, strides, dilations (height, width) and pads (top, left, bottom, right)."""
    dilations = layer.ints("dilations") if "dilations" in layer.attributes else (1, 1)
    return layer.ints("kernel"), layer.ints("strides"), dilations, layer.ints("pads")
