"""Convolutions whose groups lie within a block: depthwise, and narrow groups as in ResNeXt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.blocked import BlockedConvolution
from nnstretch.devices.cpu.routines.convolution.geometry import geometry_parameters, lowering
from nnstretch.graph.layer import Layer

UNIT_FLOATS = 1 << 15
"""Minimum output floats per unit of work, so that scheduling it costs little."""

FEW_ROWS = 4
"""Output rows per unit for planes beyond the caches: strips of few rows read memory in sequential order."""


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
        weights = np.zeros((lanes, width, geometry.taps), np.float32)
        weights[: geometry.channels] = layer.constants[1].reshape(geometry.channels, width, geometry.taps)
        panels = weights.reshape(lanes // block, block, width, geometry.taps).transpose(0, 3, 2, 1)
        return lowering(
            family("depthwise").kernel(group=width),
            layer,
            panels,
            lanes,
            geometry=geometry_parameters(geometry),
            rows=parameters["rows"],
        )
