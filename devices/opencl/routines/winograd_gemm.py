"""Winograd convolutions whose products are those of work groups that share operands, for devices that are no CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from nnstretch.devices.algorithms.winograd import Division, division_of, tiles_of
from nnstretch.devices.base.constants import Prepared, Source
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, OUTPUT, KernelCall, Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import SUM_BYTES, ceil_div, constant
from nnstretch.devices.opencl.routines.conv import conv_geometry
from nnstretch.devices.opencl.routines.demand import Demand, transform_registers
from nnstretch.devices.opencl.routines.gemm_tile import LAUNCH, GemmTile, estimated_time, tile_of
from nnstretch.devices.opencl.routines.images import image_macros, with_storages
from nnstretch.devices.opencl.routines.implicit_gemm import ImplicitGemm
from nnstretch.devices.opencl.routines.winograd import stage_words
from nnstretch.graph.layer import Layer

_ALPHAS = (6, 4)
_KERNEL = (3, 3)
_LEAST_CHANNELS = 16  # of input and output: with fewer, transforms cost more than the products save
_SETTINGS = 2  # number of transforms and tiles to measure
_MOVE_TIME = 1.4e-6  # microseconds to encode a number or to decode one
_ITEMS = 64  # work items of a group that transforms, at least
_ENCODED, _SUMS = Operand("workspace", 0), Operand("workspace", 1)


class WinogradGemm(ImplicitGemm):
    """F(m×m, 3×3) for kernels with stride 1, no dilation and one group; blocked in and out.

    Three kernels: tiles are encoded; at every position, the sum over input channels is a product of matrices, computed like
    a 1×1 convolution with one split for each position; and the sums are decoded.

    Parameters: `alpha`, positions of a tile along an axis, m + 2; those of a `GemmTile`; and on devices with images, the
    `storage` of weights.
    """

    algorithm = "winograd_gemm"
    stores_half = False

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        simple = shape.kernel == _KERNEL and shape.strides == shape.dilations == (1, 1)
        return simple and min(shape.channels, shape.out_channels) >= _LEAST_CHANNELS

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The transforms and tiles with the lowest estimated time, best first."""
        shape = conv_geometry(layer)
        settings = [
            (self._time(shape, division_of(shape, alpha, _KERNEL[0]), tile), alpha, tile)
            for alpha in _ALPHAS
            if Demand(transform_registers(alpha)).fits(self.traits)
            for tile in self._fitting_tiles(shape)
        ]
        ranked = sorted(settings, key=lambda setting: setting[0])
        chosen = [{"alpha": alpha, **asdict(tile)} for _, alpha, tile in ranked[:_SETTINGS]]
        return with_storages(self.traits, chosen, lambda one: self._encoded_size(shape, one))

    def _encoded_size(self, shape: KernelGeometry, parameters: Parameters) -> int:
        """Number of encoded weights."""
        tile, division = tile_of(parameters), division_of(shape, parameters["alpha"], _KERNEL[0])
        channels = self._product_shape(shape, division, tile).channels
        return ceil_div(shape.out_channels, tile.outputs) * channels * tile.outputs

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        product = super().demand(layer, parameters)
        return replace(product, registers=max(product.registers, transform_registers(parameters["alpha"])))

    def _time(self, shape: KernelGeometry, division: Division, tile: GemmTile) -> float:
        """Estimated microseconds of the three kernels."""
        product, positions = self._product_shape(shape, division, tile), division.positions
        groups = tile.groups(shape.out_channels, product.width) * positions
        steps = product.channels // positions // tile.depth
        multiply = estimated_time(tile, groups, steps, self.traits.compute_units)
        moved = positions * product.width * (shape.channels + shape.out_channels)
        return multiply + 2 * LAUNCH + moved * _MOVE_TIME

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """Calls of `winograd_encode`, `implicit_gemm` and `winograd_decode`."""
        shape, tile = conv_geometry(layer), tile_of(parameters)
        division = division_of(shape, parameters["alpha"], _KERNEL[0])
        product = self._product_shape(shape, division, tile)
        channels, outputs = product.channels // division.positions, self.blocks(shape.out_channels) * self.traits.block
        sizes, count = stage_words(shape, division, panel=0), product.width
        macros = (*self._settings_macros(product, tile), *image_macros(parameters))
        calls = (
            self._stage("encode", (INPUT,), (*sizes, count, count), (count, channels), division, _ENCODED),
            self._product(product, tile, division.positions, macros, _OPERANDS, _SUMS),
            self._stage(
                "decode",
                (_SUMS, *self.reads(layer)[2:]),
                (*sizes, count, count, *self.epilogue(layer)),
                (count, outputs),
                division,
                OUTPUT,
            ),
        )
        constants = self._encoded_weights(layer, shape, parameters), self.bias(layer, outputs)
        each = division.positions * count * SUM_BYTES
        return Lowering(calls, constants, (channels * each, outputs * each))

    def _stage(
        self,
        name: str,
        reads: Sequence[Operand | None],
        words: Sequence[int],
        size: tuple[int, int],
        division: Division,
        target: Operand,
    ) -> KernelCall:
        """A call that transforms `size` tiles × channels."""
        b = self.traits.block
        macros = (("M", division.down.outputs), ("TAPS", division.down.taps), ("STRIDE", 1), ("TILES", 1), ("FEW", 0))
        items = self.traits.whole_waves(_ITEMS)
        whole = ceil_div(size[0] * b, items) * items, size[1] // b
        call = self.call(f"winograd_{name}", reads, words, whole, macros, (target,), local_size=(items, 1))
        assert call.launch is not None
        return replace(call, launch=replace(call.launch, source="winograd.cl"))

    def _product_shape(self, shape: KernelGeometry, division: Division, tile: GemmTile) -> KernelGeometry:
        """The product as a 1×1 convolution of an image whose channels are those of all positions, in whole steps."""
        step = max(tile.depth, self.traits.block)
        channels, count = ceil_div(shape.channels, step) * step, tiles_of(shape, division)
        sizes = (division.positions * channels, 1, count, shape.out_channels, 1, count)
        return KernelGeometry(1, *sizes, (1, 1), (1, 1), (0, 0))

    def _encoded_weights(self, layer: Layer, shape: KernelGeometry, parameters: Parameters) -> Prepared:
        """Weights as the product reads them: [tile of outputs][position][step][DEPTH][outputs]."""
        tile, division = tile_of(parameters), division_of(shape, parameters["alpha"], _KERNEL[0])
        product, weight = self._product_shape(shape, division, tile), layer.constants[1]
        recipe = ("opencl", self.algorithm, Source(weight), tile.outputs, product.channels, division)

        def made() -> np.ndarray:
            encoded = division.encoded(np.asarray(weight, np.float32))[:, 0]
            padded = np.zeros(
                (shape.out_channels, division.positions, product.channels // division.positions), np.float32
            )
            padded[..., : shape.channels] = encoded.transpose(1, 0, 2)
            return self._reordered(padded.reshape(shape.out_channels, -1, 1, 1), product, tile)

        return self.prepared(self._encoded_size(shape, parameters), made, recipe)


_OPERANDS = (_ENCODED, constant(0), None, None)
ROUTINES = (WinogradGemm,)
