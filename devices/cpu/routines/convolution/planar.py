"""First layers: convolution of a plain tensor with few channels to a blocked one."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.constants import padded_rows
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import PLAIN, Descriptor, Layout, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.base import BlockedConvolution, geometry_parameters, lowering
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Layer

ROWS = 8  # maximum output rows per unit: few enough for the second-level cache, enough to reuse packed input rows
UNITS = 16  # units of work that four threads share evenly
MOST_BANDS = 1 << 10  # maximum parts into which a thorough search divides the output rows
PACKED_BYTES = 1 << 26  # the kernel's limit for the packed input rows of a unit


def _packed_elements(geometry: KernelGeometry) -> int:
    """Upper bound of the elements of a unit's padded input rows."""
    rows = (ROWS - 1) * geometry.strides[0] + (geometry.kernel[0] - 1) * geometry.dilations[0] + 1
    columns = geometry.out_width * geometry.strides[1] + geometry.kernel[1] * geometry.dilations[1]
    return geometry.channels * rows * columns


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
        few = geometry.groups == 1 and geometry.channels < self.layout.block
        return few and _packed_elements(geometry) * self.element.bytes <= PACKED_BYTES

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
        width = vectors * self.layout.block
        lanes = -(-geometry.out_channels // self.layout.block) * self.layout.block
        panels = padded_rows(layer.constants[1], lanes).reshape(lanes // width, width, -1).transpose(0, 2, 1)
        kernel = family("conv_planar").kernel(pixels=parameters["pixels"], vectors=vectors)
        return lowering(kernel, layer, panels, lanes, geometry=geometry_parameters(geometry), rows=parameters["rows"])


ROUTINES = (PlanarConvolution,)
