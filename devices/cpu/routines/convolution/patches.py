"""Convolutions of patches that do not overlap, as at the start of vision transformers."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.algorithms.strided import DIMENSIONS, StridedCopy
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import PLAIN, Descriptor, Layout, Lowering, Parameters, pipeline
from nnstretch.devices.cpu.routines.convolution.base import BlockedConvolution, pointwise
from nnstretch.devices.cpu.routines.convolution.direct import DirectConvolution
from nnstretch.devices.cpu.routines.data_movement import copy_call
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.dtypes import DEFAULT_DTYPE, element_type
from nnstretch.graph.layer import Layer


class PatchConvolution(BlockedConvolution):
    """A childnet: the elements of a patch become the channels of a pixel, and a 1 × 1 convolution computes them.

    Where a patch is a row of blocks, or rows that make blocks, one strided copy writes the blocked layout (figure 1a).

    Routine parameters: those of the convolution of pixels.
    """

    descriptor = Descriptor("cpu", "float32", "patches")
    convolution: type[BlockedConvolution] = DirectConvolution
    """Of pixels."""

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self._of_patches = self.convolution(isa)

    def supports(self, layer: Layer) -> bool:
        if layer.has(3) or not super().supports(layer):
            return False
        return self._pixels.supports(_of_pixels(layer))

    def covers(self, geometry: KernelGeometry) -> bool:
        block, (height, width) = self.layout.block, geometry.kernel
        inside = geometry.out_height * height <= geometry.height and geometry.out_width * width <= geometry.width
        is_tiling = inside and geometry.strides == geometry.kernel and not any(geometry.pads)
        fills_blocks = width % block == 0 or (block % width == 0 and height * width % block == 0)
        is_new = geometry.groups == 1 and geometry.dilations == (1, 1) and height * width > 1
        return is_new and is_tiling and fills_blocks and len(self._patches(geometry).sizes) <= DIMENSIONS

    @property
    def _pixels(self) -> BlockedConvolution:
        """The convolution of pixels, on the processor that this routine is for."""
        self._of_patches.threads, self._of_patches.features = self.threads, self.features
        return self._of_patches

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        inputs, outputs = super().layouts(layer, parameters)
        return (PLAIN, *inputs[1:]), outputs

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._pixels.parameter_space(_of_pixels(layer))

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._pixels.search_space(_of_pixels(layer))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        inner = _of_pixels(layer)
        copy = copy_call(self._patches(KernelGeometry.of(layer)), element_type(DEFAULT_DTYPE))
        stages = [Lowering((copy,)), self._pixels.lower(inner, parameters)]
        return pipeline(stages, [self.layout.bytes(inner.type_of(0))])

    def _patches(self, geometry: KernelGeometry) -> StridedCopy:
        """Output dimensions: image, channel, row and column of a block in its patch, then of the patch, then of a lane."""
        height, width = geometry.kernel
        columns = min(width, self.layout.block)
        rows = self.layout.block // columns
        line = geometry.width
        plane = geometry.height * line
        blocks = (geometry.batch, geometry.channels, height // rows, width // columns)
        pixels = (geometry.out_height, geometry.out_width, rows, columns)
        of_blocks = (geometry.channels * plane, plane, rows * line, columns)
        of_pixels = (height * line, width, line, 1)
        return StridedCopy(blocks + pixels, of_blocks + of_pixels, 0).merged()


def _of_pixels(layer: Layer) -> Layer:
    """A convolution of patches N,C,H,W as one of pixels, which have a channel for every element of a patch."""
    (result,) = layer.outputs
    images, _, *extents = result.shape
    return pointwise(layer, (images, layer.constants[1][0].size, *extents), result)


ROUTINES = (PatchConvolution,)
