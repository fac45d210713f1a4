"""Transpose and Slice."""

from __future__ import annotations

from nnstretch.devices.algorithms.strided import CHANNELS_LAST, DIMENSIONS, StridedCopy, slices_blocks, strided_copy
from nnstretch.devices.base.routine import PLAIN, Descriptor, KernelCall, Layout, Lowering, Parameters
from nnstretch.devices.cpu.manifest import kernel_call
from nnstretch.devices.cpu.routines.memory_bound.base import (
    BLOCK,
    INPUT,
    OUTPUT,
    DataMovementRoutine,
    activate_in_place,
    stored_floats,
)
from nnstretch.graph.dtypes import ElementType
from nnstretch.graph.layer import Layer


def copy_call(copy: StridedCopy, element: ElementType) -> KernelCall:
    """The call that makes a strided copy of input 0."""
    padded = copy.padded()
    return kernel_call(
        "strided/copy",
        (INPUT,),
        (OUTPUT,),
        sizes=padded.sizes,
        strides=padded.strides,
        first=padded.first,
        bytes=element.bytes,
    )


class StridedRoutine(DataMovementRoutine):
    """Transpose and Slice that need at most `DIMENSIONS` dimensions.

    With a block, a transpose to N,H,W,C reads the blocked layout, and a slice reads and writes it.
    """

    descriptor = Descriptor("cpu", "float32", "strided")
    operators = frozenset({"Transpose", "Slice"})

    def covers(self, layer: Layer) -> bool:
        """The input is computed at run time, and the copy needs at most `DIMENSIONS` dimensions."""
        return 0 not in layer.constants and len(strided_copy(layer).sizes) <= DIMENSIONS

    def blockable(self, layer: Layer) -> bool:
        """If the channels become the last axis, or the slice takes whole blocks."""
        if layer.op == "Transpose":
            return layer.ints("perm") == CHANNELS_LAST
        return slices_blocks(layer, self.block)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """A transpose writes the plain layout."""
        layout = Layout(parameters[BLOCK])
        return (layout,), (PLAIN if layer.op == "Transpose" else layout,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call, and one more for an activation."""
        (_,), (target,) = self.layouts(layer, parameters)
        block = parameters[BLOCK]
        if layer.op == "Transpose" and block:
            images, channels, height, width = layer.type_of(0).shape
            call = kernel_call(
                "strided/channels_last",
                (INPUT,),
                (OUTPUT,),
                images=images,
                channels=channels,
                pixels=height * width,
                block=block,
            )
        else:
            call = copy_call(strided_copy(layer, block), layer.outputs[0].element)
        floats = stored_floats(layer.outputs[0].shape, target.block)
        return Lowering((call, *activate_in_place(layer, floats)))
