"""Direct convolution from a plain tensor with few channels."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.constants import padded_rows
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, Lowering, Parameters
from nnstretch.devices.opencl.routines.base import DTYPE, ceil_div
from nnstretch.devices.opencl.routines.conv import PLANAR_CHANNELS, Convolution, conv_geometry, tile_space
from nnstretch.devices.opencl.routines.demand import Demand, tile_registers
from nnstretch.devices.opencl.routines.images import with_storages
from nnstretch.graph.layer import Layer


class Planar(Convolution):
    """Ungrouped convolution of a plain float32 tensor with few channels (a network's first layer); blocked out.

    Parameters: `pixels` of a row and `vectors` (output blocks) per tile; on GPUs with images, the `storage` of weights.
    """

    algorithm = "planar"
    source = "conv_planar.cl"

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return shape.groups == 1 and shape.channels <= PLANAR_CHANNELS

    def _reads_plain(self, layer: Layer) -> bool:
        return True

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The tiles that waste least at the edges of the output, best first."""
        shape = conv_geometry(layer)
        settings = tile_space(self.traits.registers, shape, self.traits.block)
        return with_storages(self.traits, settings, lambda one: self._size(shape, one["vectors"] * self.traits.block))

    @staticmethod
    def _size(shape: KernelGeometry, lanes: int) -> int:
        """Number of weights, for groups of `lanes` outputs."""
        return ceil_div(shape.out_channels, lanes) * lanes * shape.channels * shape.taps

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        return Demand(tile_registers(parameters["pixels"], parameters["vectors"], self.traits.block))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape = conv_geometry(layer)
        pixels, vectors = parameters["pixels"], parameters["vectors"]
        lanes = vectors * self.traits.block
        groups = ceil_div(shape.out_channels, lanes)
        packed = (
            padded_rows(layer.constants[1], groups * lanes)
            .reshape(groups, lanes, shape.channels, *shape.kernel)
            .transpose(0, 2, 3, 4, 1)
        )
        items, each = self._tiles(shape, pixels, groups * shape.batch)
        words = (
            *(shape.channels, shape.height, shape.width, self.blocks(shape.out_channels)),
            *(shape.out_height, shape.out_width, *shape.kernel, shape.strides[0], *shape.dilations),
            *(*shape.pads, each, *self.epilogue(layer)),
        )
        call = self.call(
            "conv_planar",
            self.reads(layer),
            words,
            (items, groups, shape.batch),
            self._macros(shape, parameters),
            types={INPUT: DTYPE},
        )
        return Lowering((call,), (self.stored(packed), self.bias(layer, groups * lanes)))


ROUTINES = (Planar,)
