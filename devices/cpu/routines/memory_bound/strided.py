"""Transposition and slices."""

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
    """Transpose and Slice of any tensor that takes at most six dimensions.

    With a block, a transposition to N,H,W,C reads the blocked layout, and a slice reads and writes it.
    """

    descriptor = Descriptor("cpu", "float32", "strided")
    operators = frozenset({"Transpose", "Slice"})

    def covers(self, layer: Layer) -> bool:
        """The tensor is computed at run time and its dimensions suffice."""
        return 0 not in layer.constants and len(strided_copy(layer).sizes) <= DIMENSIONS

    def blockable(self, layer: Layer) -> bool:
        """If channels move to the end, or those of whole blocks are taken."""
        if layer.op == "Transpose":
            return layer.ints("perm") == CHANNELS_LAST
        return slices_blocks(layer, self.block)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """What a transposition writes is plain."""
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
