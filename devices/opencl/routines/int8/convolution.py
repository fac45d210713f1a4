"""Convolutions of int8 in the blocked layout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from nnstretch.devices.algorithms.quantized import is_quantized, parameters_of
from nnstretch.devices.algorithms.quantized_products import QUAD, has_int8_operands, padded
from nnstretch.devices.algorithms.quantized_sums import conv_form, group_layouts, group_lowering, with_residual
from nnstretch.devices.base.constants import Source, whole
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Layout, Lowering, Parameters
from nnstretch.devices.opencl.routines.base import INT8, is_image
from nnstretch.devices.opencl.routines.conv import (
    Convolution,
    block_ranges,
    conv_geometry,
    grouped_weights,
    tile_macros,
    tile_space,
)
from nnstretch.devices.opencl.routines.demand import Demand, tile_registers
from nnstretch.devices.opencl.routines.depthwise import depthwise_demand, depthwise_tiles
from nnstretch.devices.opencl.routines.int8.base import Int8Routine
from nnstretch.graph.layer import FUSION_GROUP, Layer


class Int8Convolution(Int8Routine, Convolution):
    """A convolution of int8, blocked in and out."""

    def _supports(self, layer: Layer) -> bool:
        fits = is_image(layer.type_of(0)) and min(layer.ints("pads")) >= 0 and has_int8_operands(layer)
        return fits and is_quantized(layer.outputs[0]) and self._fits(conv_geometry(layer), layer)


class DirectInt8(Int8Convolution):
    """Any convolution but depthwise ones; keeps `pixels` × `vectors` outputs in registers.

    Parameters: `pixels` of a row and `vectors` (output blocks) per tile.
    """

    algorithm = "direct"
    source = "conv_int8.cl"

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return not _is_depthwise(shape)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The tiles that waste least at the edges of the output, best first."""
        return tile_space(self.traits.registers, conv_geometry(layer), self.traits.block)

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        return Demand(tile_registers(parameters["pixels"], parameters["vectors"], self.traits.block))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape, block, weight = conv_geometry(layer), self.traits.block, layer.constants[1]
        lanes = parameters["vectors"] * block
        span, ranges = block_ranges(shape, lanes, block)
        items, each = self._tiles(shape, parameters["pixels"], len(ranges) * shape.batch)

        def by_quad() -> np.ndarray:
            """Weights as [output group][input block][KH][KW][quad][output][4]."""
            grouped = grouped_weights(weight, shape, lanes, block)
            quads = grouped.reshape(len(ranges), span, block // QUAD, QUAD, *shape.kernel, lanes)
            return quads.transpose(0, 1, 4, 5, 2, 6, 3)

        size = len(ranges) * span * block * shape.taps * lanes
        words = (
            *(shape.channels, shape.height, shape.width, shape.out_channels, shape.out_height, shape.out_width),
            *(*shape.kernel, shape.strides[0], *shape.dilations, *shape.pads),
            *(shape.group_in, shape.group_out, span, each),
        )
        return self.weighted(
            "conv_int8",
            layer,
            whole(size, by_quad, INT8, ("opencl int8 direct", Source(weight), shape.groups, lanes, block)),
            len(ranges) * lanes,
            words,
            (items, len(ranges), shape.batch),
            (*tile_macros(parameters), ("STRIDE_W", shape.strides[1])),
            np.full(block, parameters_of(layer.type_of(0)).zero_point, np.int8),
        )


class DepthwiseInt8(Int8Convolution):
    """Groups of one channel with one output each.

    Parameters: `pixels` of a row per tile.
    """

    algorithm = "depthwise"
    source = "depthwise_int8.cl"

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return _is_depthwise(shape)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The tiles that waste least at the edge of the output, best first."""
        return depthwise_tiles(conv_geometry(layer), self.traits)

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        return depthwise_demand(conv_geometry(layer), parameters["pixels"], self.traits.block)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape, block, weight = conv_geometry(layer), self.traits.block, layer.constants[1]
        blocks = self.blocks(shape.channels)
        lanes = blocks * block
        items, each = self._tiles(shape, parameters["pixels"], blocks * shape.batch)
        words = (
            *(blocks, shape.height, shape.width, shape.out_height, shape.out_width, shape.kernel[0], shape.strides[0]),
            *(shape.dilations[0], *shape.pads, each, parameters_of(layer.type_of(0)).zero_point),
        )
        columns = (shape.kernel[1], shape.strides[1], shape.dilations[1])
        row = zip(("KERNEL_W", "STRIDE_W", "DILATION_W"), columns, strict=True)
        return self.weighted(
            "depthwise_int8",
            layer,
            whole(
                lanes * shape.taps,
                partial(_by_block, weight, lanes, block),
                INT8,
                ("opencl int8 depthwise", Source(weight), block),
            ),
            lanes,
            words,
            (items, blocks, shape.batch),
            (*tile_macros(parameters), *row),
        )


def _is_depthwise(shape: KernelGeometry) -> bool:
    return 1 < shape.groups == shape.channels == shape.out_channels


def _by_block(weight: np.ndarray, lanes: int, block: int) -> np.ndarray:
    """Weights C,1,KH,KW as [block][tap][lane]."""
    rows = padded(weight.reshape(len(weight), -1).T, lanes)
    return rows.reshape(-1, lanes // block, block).transpose(1, 0, 2)


class SummedDirectInt8(DirectInt8):
    """`DirectInt8` of a convolution and the Add that reads it; both round their results."""

    algorithm = "direct_add"
    ops = (FUSION_GROUP,)

    def _supports(self, layer: Layer) -> bool:
        form = with_residual(layer)
        return form is not None and super()._supports(form)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return super().parameter_space(conv_form(layer))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return group_layouts(layer, *super().layouts(conv_form(layer), parameters))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        return group_lowering(layer, super().lower(conv_form(layer), parameters))


ROUTINES = (DepthwiseInt8, DirectInt8, SummedDirectInt8)
