"""Depthwise convolution."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.constants import padded_rows
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Lowering, Parameters
from nnstretch.devices.opencl.routines.base import Traits, ceil_div
from nnstretch.devices.opencl.routines.conv import MOST_TILES, Convolution, conv_geometry, tile_macros
from nnstretch.devices.opencl.routines.demand import ADDRESS_REGISTERS, Demand
from nnstretch.devices.opencl.routines.images import with_storages
from nnstretch.graph.layer import Layer

_PIXELS = (7, 8, 14, 4, 2, 1)


class Depthwise(Convolution):
    """Convolution with one kernel per channel, blocked in and out.

    Parameters: `pixels` of a row per tile; on GPUs with images, the `storage` of weights.
    """

    algorithm = "depthwise"
    source = "depthwise.cl"

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return shape.groups == shape.channels == shape.out_channels

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        shape = conv_geometry(layer)
        weights = self.blocks(shape.channels) * self.traits.block * shape.taps
        return with_storages(self.traits, depthwise_tiles(shape, self.traits), lambda _: weights)

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        return depthwise_demand(conv_geometry(layer), parameters["pixels"], self.traits.block)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape = conv_geometry(layer)
        b = self.traits.block
        blocks = self.blocks(shape.channels)
        packed = padded_rows(layer.constants[1], blocks * b).reshape(blocks, b, *shape.kernel).transpose(0, 2, 3, 1)
        items, each = self._tiles(shape, parameters["pixels"], blocks * shape.batch)
        words = (
            *(blocks, shape.height, shape.width, shape.out_height, shape.out_width, shape.kernel[0], shape.strides[0]),
            *(shape.dilations[0], *shape.pads, each, *self.epilogue(layer)),
        )
        columns = (shape.kernel[1], shape.strides[1], shape.dilations[1])
        row = zip(("KERNEL_W", "STRIDE_W", "DILATION_W"), columns, strict=True)
        macros = (*tile_macros(parameters), *row)
        call = self.call("conv_depthwise", self.reads(layer), words, (items, blocks, shape.batch), macros)
        return Lowering((call,), (self.stored(packed), self.bias(layer, blocks * b)))


def depthwise_tiles(shape: KernelGeometry, traits: Traits) -> Sequence[Parameters]:
    """The tiles of `pixels` that waste least at the edge of the output, best first; the smallest if the device takes none."""
    width = shape.out_width

    def cost(pixels: int) -> float:
        # A long tile pays off only if it is the whole row; otherwise its sums waste registers.
        crowded = 1.1 if pixels > 8 and width > pixels else 1.0
        return ceil_div(width, pixels) * (pixels + 1) * crowded

    sizes = [p for p in _PIXELS if p < traits.registers and p < width + 4]
    fitting = [p for p in sizes if depthwise_demand(shape, p, traits.block).fits(traits)]
    return tuple({"pixels": pixels} for pixels in sorted(fitting or [1], key=cost)[:MOST_TILES])


def depthwise_demand(shape: KernelGeometry, pixels: int, block: int) -> Demand:
    """A tile's sums, and of a row of the kernel all weights and all inputs, which are loaded together."""
    taps = shape.kernel[1]
    inputs = min(pixels * taps, (pixels - 1) * shape.strides[1] + (taps - 1) * shape.dilations[1] + 1)
    return Demand(block * (pixels + taps + inputs) + ADDRESS_REGISTERS)


ROUTINES = (Depthwise,)
