"""Convolutions whose groups lie within a block: depthwise, and narrow groups as in ResNeXt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from nnstretch.devices.base.constants import padded_rows
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, Descriptor, Lowering, Operand, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family, kernel_call
from nnstretch.devices.cpu.routines.convolution.base import BlockedConvolution, geometry_parameters, lowering
from nnstretch.graph.layer import Layer, TensorType

UNIT_FLOATS = 1 << 15  # minimum output floats per unit of work, so that scheduling it costs little
FEW_ROWS = 4  # output rows per unit for planes beyond the caches: strips of few rows read memory in sequential order


class DepthwiseConvolution(BlockedConvolution):
    """Groups of 1, 2, 4 or 8 channels (fewer than a block) with as many outputs each.

    Routine parameters:
        rows: output rows per unit of work.
    """

    descriptor = Descriptor("cpu", "float32", "depthwise")

    def covers(self, geometry: KernelGeometry) -> bool:
        width = geometry.channels // geometry.groups
        return geometry.channels == geometry.out_channels and width in (1, 2, 4, 8) and width < self.layout.block

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        rows = min(-(-UNIT_FLOATS // (geometry.out_width * self.layout.block)), geometry.out_height)
        wide = geometry.out_width * self.layout.block * geometry.out_height > UNIT_FLOATS
        return tuple({"rows": r} for r in ((rows, FEW_ROWS) if wide and rows > FEW_ROWS else (rows,)))

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        rows = KernelGeometry.of(layer).out_height
        return distinct(self.parameter_space(layer), ({"rows": part} for part in shares(rows, rows)))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry = KernelGeometry.of(layer)
        block = self.layout.block
        width = geometry.channels // geometry.groups
        lanes = -(-geometry.channels // block) * block
        panels = (
            padded_rows(layer.constants[1], lanes)
            .reshape(lanes // block, block, width, geometry.taps)
            .transpose(0, 3, 2, 1)
        )
        return lowering(
            family("depthwise").kernel(group=width),
            layer,
            panels,
            lanes,
            geometry=geometry_parameters(geometry),
            rows=parameters["rows"],
        )


class RepeatedDepthwiseConvolution(DepthwiseConvolution):
    """A childnet for groups of one channel with two or four outputs: a depthwise convolution of repeated channels.

    Routine parameters: those of the depthwise convolution.
    """

    descriptor = Descriptor("cpu", "float32", "repeated_depthwise")

    def covers(self, geometry: KernelGeometry) -> bool:
        times = geometry.out_channels // geometry.channels
        return (
            geometry.groups == geometry.channels and geometry.out_channels % geometry.channels == 0 and times in (2, 4)
        )

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        images, channels, height, width = layer.type_of(0).shape
        outputs = layer.outputs[0].shape[1]
        repeated, workspace = TensorType((images, outputs, height, width)), Operand("workspace", 0)
        inner = replace(
            layer,
            inputs=(repeated, *layer.inputs[1:]),
            attributes=MappingProxyType({**layer.attributes, "groups": outputs}),
        )
        lowered = super().lower(inner, parameters)
        (call,) = lowered.calls
        sizes = {"images": images, "channels": channels, "pixels": height * width}
        first = kernel_call("strided/repeat", (INPUT,), **sizes, block=self.layout.block, times=outputs // channels)
        second = replace(call, reads=(workspace, *call.reads[1:]))
        calls = (replace(first, writes=(workspace,)), second)
        return Lowering(calls, lowered.constants, (self.layout.bytes(repeated),))


ROUTINES = (DepthwiseConvolution, RepeatedDepthwiseConvolution)
