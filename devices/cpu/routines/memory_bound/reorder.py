"""Reshape and the pseudo-layer Reorder, which move values without changing them."""

from __future__ import annotations

import math

from nnstretch.devices.base.routine import (
    PLAIN,
    REORDER,
    Descriptor,
    KernelCall,
    Layout,
    Lowering,
    Parameters,
    Routine,
    reorder_layouts,
)
from nnstretch.devices.cpu.manifest import family, kernel_call
from nnstretch.devices.cpu.routines.memory_bound.base import (
    BLOCK,
    INPUT,
    MOVED_DTYPES,
    OUTPUT,
    DataMovementRoutine,
    activate_in_place,
)
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import Layer, TensorType


def change_layout(tensor: TensorType, source: int, target: int) -> KernelCall:
    """The call that converts input 0 from block `source` to block `target`; float32 unless it is a copy."""
    copied = source == target and not (source and tensor.shape[1] % source)
    if copied:
        return kernel_call("reorder/copy", (INPUT,), (OUTPUT,), count=tensor.bytes)
    images, channels, height, width = tensor.shape
    return kernel_call(
        "reorder/layout",
        (INPUT,),
        (OUTPUT,),
        images=images,
        channels=channels,
        pixels=height * width,
        source=source,
        target=target,
    )


class ReshapeRoutine(DataMovementRoutine):
    """Reshape: a copy, or a conversion between the plain and the blocked layout that replaces an adapt layer.

    With a block, the input is blocked and the output plain if the input has rank 4, else the reverse.
    """

    descriptor = Descriptor("cpu", "float32", "reshape")
    operators = frozenset({"Reshape"})

    def covers(self, layer: Layer) -> bool:
        """Every reshape of a run-time tensor."""
        return 0 not in layer.constants and layer.type_of(0).elements == layer.outputs[0].elements

    def blockable(self, layer: Layer) -> bool:
        """If either side has rank 4."""
        return 4 in (len(layer.type_of(0).shape), len(layer.outputs[0].shape))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Blocked on one side at most."""
        layout = Layout(parameters[BLOCK])
        return ((layout,), (PLAIN,)) if len(layer.type_of(0).shape) == 4 else ((PLAIN,), (layout,))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call, and one more for an activation."""
        (source,), (target,) = self.layouts(layer, parameters)
        floats = math.prod(target.storage_shape(layer.outputs[0].shape))
        call = change_layout(layer.outputs[0] if target.block else layer.type_of(0), source.block, target.block)
        return Lowering((call, *activate_in_place(layer, floats)))


class ReorderRoutine(Routine):
    """Reorder: a conversion between layouts, or a copy."""

    descriptor = Descriptor("cpu", "float32", "reorder")

    def supports(self, layer: Layer) -> bool:
        """Copies of plain data of any type, and conversions of float32 between plain and blocks of 4, 8 and 16."""
        if layer.op != REORDER or layer.outputs[0].elements == 0:
            return False
        (tensor,), layouts = layer.outputs, reorder_layouts(layer)
        if any(layout.dtype for layout in layouts):
            return False
        blocks = {layout.block for layout in layouts}
        if blocks == {0}:
            return tensor.dtype in MOVED_DTYPES
        known = set(family("reorder_layout").limits("source"))
        return tensor.dtype == DEFAULT_DTYPE and len(tensor.shape) == 4 and blocks <= known

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """The layouts of the layer's attributes."""
        source, target = _blocks(layer)
        return (Layout(source),), (Layout(target),)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call."""
        return Lowering((change_layout(layer.outputs[0], *_blocks(layer)),))


def _blocks(layer: Layer) -> tuple[int, int]:
    source, target = layer.attributes["source"], layer.attributes["target"]
    assert isinstance(source, int)
    assert isinstance(target, int)
    return source, target
