"""First layers: convolution of a plain tensor with few channels to a blocked one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.base.constants import padded_rows
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import PLAIN, Descriptor, Layout, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.base import BlockedConvolution, geometry_parameters, lowering
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.dtypes import DEFAULT_DTYPE, element_type
from nnstretch.graph.layer import Layer

ROWS = 8  # maximum output rows per unit: few enough for the second-level cache, enough to reuse packed input rows
UNITS = 16  # units of work that four threads share evenly
MOST_BANDS = 1 << 10  # maximum parts into which a thorough search divides the output rows
PACKED_BYTES = 1 << 26  # the kernel's limit for the packed input rows of a unit
_FLOAT_BYTES = element_type(DEFAULT_DTYPE).bytes


def is_planar(geometry: KernelGeometry, block: int) -> bool:
    """Whether the kernels compute a convolution: it has few channels, and its packed rows fit."""
    few = geometry.groups == 1 and geometry.channels < block
    return few and _packed_elements(geometry) * _FLOAT_BYTES <= PACKED_BYTES


def _packed_elements(geometry: KernelGeometry) -> int:
    """Upper bound of the elements of a unit's padded input rows."""
    rows = (ROWS - 1) * geometry.strides[0] + (geometry.kernel[0] - 1) * geometry.dilations[0] + 1
    columns = geometry.out_width * geometry.strides[1] + geometry.kernel[1] * geometry.dilations[1]
    return geometry.channels * rows * columns


def planar_weights(layer: Layer, width: int) -> np.ndarray:
    """The weights in panels of `width` outputs, each as taps of all input channels × outputs; zeros fill the last one."""
    weight = layer.constants[1]
    return padded_rows(weight, -(-len(weight) // width) * width).reshape(-1, width, weight[0].size).transpose(0, 2, 1)


class PlanarConvolution(BlockedConvolution):
    """Convolution that reads NCHW with fewer channels than a block, and writes the blocked layout.

    Routine parameters:
        pixels, vectors: the register tile, which names the kernel.
        rows: output rows per unit of work.
    """

    descriptor = Descriptor("cpu", "float32", "planar")

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.tiles = family("conv_planar").tiles(isa)

    def covers(self, geometry: KernelGeometry) -> bool:
        return is_planar(geometry, self.layout.block)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        inputs, outputs = super().layouts(layer, parameters)
        return (PLAIN, *inputs[1:]), outputs

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        blocks = -(-geometry.out_channels // self.layout.block)
        rows = min(ROWS, -(-geometry.out_height // self.units(UNITS)))
        return tuple(
            {"pixels": pixels, "vectors": vectors, "rows": rows}
            for pixels, vectors in self.tiles
            if blocks % vectors == 0
        )

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        default = self.parameter_space(layer)
        rows = [part for part in shares(KernelGeometry.of(layer).out_height, MOST_BANDS) if part <= ROWS]
        return distinct(default, ({**setting, "rows": part} for setting in default for part in rows))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry = KernelGeometry.of(layer)
        vectors = parameters["vectors"]
        lanes = -(-geometry.out_channels // self.layout.block) * self.layout.block
        panels = planar_weights(layer, vectors * self.layout.block)
        kernel = family("conv_planar").kernel(pixels=parameters["pixels"], vectors=vectors)
        return lowering(kernel, layer, panels, lanes, geometry=geometry_parameters(geometry), rows=parameters["rows"])


ROUTINES = (PlanarConvolution,)
