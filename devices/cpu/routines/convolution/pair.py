"""Fused pairs of a depthwise and a pointwise convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import mul

from nnstretch.devices.base.constants import Constant
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import (
    USUAL_THREADS,
    Descriptor,
    Lowering,
    Parameters,
    distinct,
    shares,
)
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.fused import (
    FusedConvolutions,
    is_depthwise,
    is_pointwise,
)
from nnstretch.graph.layer import Layer

UNITS = 16  # units of work that balance the load of four threads


class Pair(FusedConvolutions):
    """Base class of the two kinds of pairs.

    Routine parameters:
        pixels, vectors: the register tile of the pointwise convolution, which names the kernel.
        band: output rows per unit of work, whose intermediate rows are in scratch memory.
    """

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        rows = layer.outputs[0].shape[2]
        channels = next(KernelGeometry.of(link).out_channels for link in layer.parts if is_pointwise(link))
        settings = (
            {"pixels": pixels, "vectors": vectors, "band": band}
            for pixels, vectors in self._fitting_tiles(channels)
            for band in shares(rows, rows)
        )
        return distinct(self.parameter_space(layer), settings)

    def _settings(
        self, channels: int, rows: int, row_bytes: Callable[[int], int], least: Callable[[int], int]
    ) -> Sequence[Parameters]:
        """Two tiles, each with the two highest bands that fit and leave work for several threads.

        Args:
            channels: outputs of the pointwise convolution.
            rows: output rows.
            row_bytes: scratch memory per output row, by the vectors of the tile.
            least: minimum number of bands, by the vectors of the tile.
        """
        return tuple(
            {"pixels": pixels, "vectors": vectors, "band": band}
            for pixels, vectors in self._narrow_tiles(channels)
            for band in self._bands(rows, least(vectors), partial(mul, row_bytes(vectors)))
        )

    def _kernel(self, parameters: Parameters) -> str:
        """The kernel's name."""
        return family(self.descriptor.algorithm).kernel(pixels=parameters["pixels"], vectors=parameters["vectors"])

    def _call(
        self, layer: Layer, parameters: Parameters, weights: Sequence[Constant], depthwise: Layer, other: int
    ) -> Lowering:
        """The kernel's call; `other` is its parameter of that name."""
        kernel = self._kernel(parameters)
        return self._lowering(kernel, layer, weights, depthwise, other=other, band=parameters["band"])

    def _pointwise_weights(self, layer: Layer, parameters: Parameters) -> Constant:
        return self._panels(layer, parameters["vectors"])


class ExpandDepthwise(Pair):
    """A pointwise convolution without residual, then a depthwise one.

    A thread computes the intermediate rows that two of its bands share once; two threads compute those at their border twice.
    """

    descriptor = Descriptor("cpu", "float32", "expand_depthwise")

    def _fits(self, parts: Sequence[Layer]) -> bool:
        return len(parts) == 2 and is_pointwise(parts[0]) and is_depthwise(parts[1])

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer.parts[1])
        blocks = self._blocks(geometry.channels)
        row = self.layout.block * self.element.bytes * geometry.width * geometry.strides[0]
        return self._settings(
            geometry.channels,
            geometry.out_height,
            lambda vectors: vectors * row,
            lambda vectors: -(-self.units(UNITS) * vectors // (geometry.batch * blocks)),
        )

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        first, second = layer.parts
        weights = (self._pointwise_weights(first, parameters), self._depthwise_weights(second))
        return self._call(layer, parameters, weights, second, KernelGeometry.of(first).channels)


class DepthwiseProject(Pair):
    """A depthwise convolution without residual, then a pointwise one."""

    descriptor = Descriptor("cpu", "float32", "depthwise_project")

    def _fits(self, parts: Sequence[Layer]) -> bool:
        return len(parts) == 2 and is_depthwise(parts[0]) and is_pointwise(parts[1])

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry, outputs = KernelGeometry.of(layer.parts[0]), KernelGeometry.of(layer.parts[1]).out_channels
        row = self._blocks(geometry.channels) * self.layout.block * self.element.bytes * geometry.out_width
        bands = 2 * self.threads if self.threads > USUAL_THREADS else 2
        return self._settings(outputs, geometry.out_height, lambda _: row, lambda _: bands)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        first, second = layer.parts
        weights = (self._depthwise_weights(first), self._pointwise_weights(second, parameters))
        return self._call(layer, parameters, weights, first, KernelGeometry.of(second).out_channels)


ROUTINES = (ExpandDepthwise, DepthwiseProject)
