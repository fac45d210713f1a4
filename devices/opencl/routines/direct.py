"""Direct convolution in the blocked layout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from nnstretch.devices.base.constants import Prepared, Source
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Lowering, Parameters
from nnstretch.devices.opencl.routines.base import DTYPE, SUM_BYTES, ceil_div
from nnstretch.devices.opencl.routines.conv import (
    Convolution,
    block_ranges,
    conv_geometry,
    grouped_weights,
    most_pixels,
    tile_space,
)
from nnstretch.devices.opencl.routines.demand import Demand, tile_registers
from nnstretch.devices.opencl.routines.images import with_storages
from nnstretch.graph.layer import Layer

_SPLIT_BLOCK = 16  # block of CPUs that may split vectors into halves
_MOST_HALVES = 5  # maximum half vectors of a tile
_CACHED_WEIGHTS = 1 << 19  # bytes of weights that stay in the second-level cache of a CPU core
_PASS_WEIGHTS = 3 << 16  # bytes of the weights of a pass


class Direct(Convolution):
    """Any convolution, blocked in and out; keeps `pixels` × `vectors` outputs in registers.

    Parameters: `pixels` of a row and `vectors` (output blocks) per tile, and the `length` of vectors of half a block. Half
    vectors are for channel groups that end in the middle of a block, on CPUs that split vectors of 16 floats anyway. On GPUs
    with images, also the `storage` of weights (`images`).
    """

    algorithm = "direct"
    source = "conv.cl"

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return True

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The tiles that waste least at the edges of the output, best first."""
        shape = conv_geometry(layer)
        settings = (*self._halves(shape), *tile_space(self.traits.registers, shape, self.traits.block))
        return with_storages(self.traits, settings, lambda one: self._size(shape, self._lanes(one)))

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        return Demand(tile_registers(parameters["pixels"], parameters["vectors"], self.traits.block))

    def _halves(self, shape: KernelGeometry) -> Sequence[Parameters]:
        """Tiles of half vectors that consist of whole groups or divide a group."""
        length = self.traits.block // 2
        per_group = shape.group_out // length
        splits = self.traits.on_cpu and self.traits.block == _SPLIT_BLOCK and self.dtype == DTYPE
        if not splits or shape.groups == 1 or shape.group_out % length or per_group % 2 == 0:
            return ()
        vectors = next(v for v in range(min(per_group, _MOST_HALVES), 0, -1) if per_group % v == 0)
        most = max(1, most_pixels(self.traits.registers, vectors))
        pixels = ceil_div(shape.out_width, ceil_div(shape.out_width, most))
        return ({"pixels": pixels, "vectors": vectors, "length": length},)

    def _lanes(self, parameters: Parameters) -> int:
        """Outputs of a tile."""
        return parameters["vectors"] * parameters.get("length", self.traits.block)

    def _size(self, shape: KernelGeometry, lanes: int) -> int:
        """Number of weights of `_weights`."""
        span, ranges = block_ranges(shape, lanes, self.traits.block)
        return len(ranges) * span * self.traits.block * shape.taps * lanes

    def _weights(self, layer: Layer, shape: KernelGeometry, lanes: int) -> Prepared:
        """Weights as [output group][span input blocks][KH][KW][input lane][output lane], with `lanes` outputs per group."""
        span, _ = block_ranges(shape, lanes, self.traits.block)
        weight = layer.constants[1]
        recipe = ("opencl direct", Source(weight), self.dtype, lanes, span)
        return self.prepared(self._size(shape, lanes), partial(self._reordered, weight, shape, lanes), recipe)

    def _reordered(self, weight: np.ndarray, shape: KernelGeometry, lanes: int) -> np.ndarray:
        """The values of `_weights`."""
        weights = grouped_weights(np.asarray(weight, np.float32), shape, lanes, self.traits.block)
        blocked = weights.reshape(len(weights), -1, self.traits.block, *shape.kernel, lanes)
        return blocked.transpose(0, 1, 3, 4, 2, 5)

    def _blocks_per_pass(self, shape: KernelGeometry, span: int, lanes: int, tiles: int) -> int:
        """Input blocks per pass over the `tiles` of a work item: all if it reads no weights from memory twice.

        Sums between passes are stored as outputs, so tensors of float16 have one pass.
        """
        block = SUM_BYTES * self.traits.block * shape.taps * lanes
        if tiles == 1 or self.dtype != DTYPE or not self.traits.on_cpu or span * block <= _CACHED_WEIGHTS:
            return span
        return max(1, _PASS_WEIGHTS // block)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape = conv_geometry(layer)
        pixels, lanes = parameters["pixels"], self._lanes(parameters)
        span, ranges = block_ranges(shape, lanes, self.traits.block)
        items, each = self._tiles(shape, pixels, len(ranges) * shape.batch)
        words = (
            *(shape.channels, shape.height, shape.width, shape.out_channels, shape.out_height, shape.out_width),
            *(*shape.kernel, shape.strides[0], *shape.dilations, *shape.pads),
            *(shape.group_in, shape.group_out, span, self._blocks_per_pass(shape, span, lanes, each)),
            *(each, *self.epilogue(layer)),
        )
        call = self.call(
            "conv_direct", self.reads(layer), words, (items, len(ranges), shape.batch), self._macros(shape, parameters)
        )
        bias = self.bias(layer, len(ranges) * lanes)
        return Lowering((call,), (self._weights(layer, shape, lanes), bias))


ROUTINES = (Direct,)
