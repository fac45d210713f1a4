"""Fused pairs of a depthwise and a pointwise convolution, whose intermediate tensor stays in the caches.

An inverted residual block of a mobile network expands its channels with a pointwise convolution, applies a depthwise one and
projects with another pointwise one. Its intermediate tensors are the largest of the network.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from nnstretch.devices.base.constants import Constant, padded_rows
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import (
    INPUT,
    USUAL_THREADS,
    Descriptor,
    Layout,
    Lowering,
    Operand,
    Parameters,
    Routine,
    distinct,
    shares,
)
from nnstretch.devices.cpu.manifest import activation_parameters, family, kernel_call
from nnstretch.devices.cpu.routines.convolution.base import geometry_parameters, is_convolution
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import FUSION_GROUP, Layer

SCRATCH_BYTES = 384 << 10
"""Maximum scratch memory of a unit; the rest of the second-level cache is for weights and pixels."""

UNITS = 16  # units of work that balance the load of four threads


class Pair(Routine):
    """Base class of the two kinds of pairs.

    Routine parameters:
        pixels, vectors: the register tile of the pointwise convolution, which names the kernel.
        band: output rows per unit of work, whose intermediate rows are in scratch memory.
    """

    def __init__(self, isa: Isa) -> None:
        self.layout = Layout(isa.block)
        self.tiles = family(self.descriptor.algorithm).tiles(isa)
        # On ARM, loads of panels of one vector take as long as their multiply-adds.
        self.least_vectors = 2 if isa.architecture == "aarch64" else 1

    def supports(self, layer: Layer) -> bool:
        if layer.op != FUSION_GROUP or len(layer.parts) != 2 or not all(map(is_convolution, layer.parts)):
            return False
        return layer.wiring[1].count(-1) == 1 and layer.wiring[1][0] == -1 and self._fits(*layer.parts)

    @abstractmethod
    def _fits(self, first: Layer, second: Layer) -> bool:
        """Whether two convolutions are of the kinds that this routine fuses."""

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.layout,) * len(layer.activations), (self.layout,)

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        rows = layer.outputs[0].shape[2]
        channels = next(KernelGeometry.of(link).out_channels for link in layer.parts if self._is_pointwise(link))
        settings = (
            {"pixels": pixels, "vectors": vectors, "band": band}
            for pixels, vectors in self.tiles
            if self._blocks(channels) % vectors == 0
            for band in shares(rows, rows)
        )
        return distinct(self.parameter_space(layer), settings)

    def _tiles(self, channels: int) -> list[tuple[int, int]]:
        """The two narrowest tiles that divide the output vectors of the pointwise convolution.

        Narrow panels keep the intermediate rows in a near cache.
        """
        fitting = sorted((t for t in self.tiles if self._blocks(channels) % t[1] == 0), key=lambda t: t[1])
        return ([t for t in fitting if t[1] >= self.least_vectors] or fitting)[:2]

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
        settings: list[Parameters] = []
        for pixels, vectors in self._tiles(channels):
            shares = (-(-rows // parts) for parts in (1, 2, 4, 8, 16, 32, 64, 128) if parts >= least(vectors))
            bands = [band for band in shares if band * row_bytes(vectors) <= SCRATCH_BYTES] or [1]
            settings += [{"pixels": pixels, "vectors": vectors, "band": band} for band in dict.fromkeys(bands[:2])]
        return tuple(settings)

    def _blocks(self, channels: int) -> int:
        return -(-channels // self.layout.block)

    def _kernel(self, parameters: Parameters) -> str:
        """The kernel's name."""
        return family(self.descriptor.algorithm).kernel(pixels=parameters["pixels"], vectors=parameters["vectors"])

    def _lowering(
        self, layer: Layer, parameters: Parameters, weights: Sequence[Constant], depthwise: Layer, other: int
    ) -> Lowering:
        """One call with both layers' prepared weights; `other` is the kernel's parameter of that name."""
        first, second = layer.parts
        constants: list[Constant] = []
        reads: list[Operand | None] = [INPUT]
        for link, weight in zip((first, second), weights, strict=True):
            reads += [Operand("constant", len(constants)), None]
            constants.append(np.ascontiguousarray(weight, np.float32) if isinstance(weight, np.ndarray) else weight)
            if link.has(2):
                reads[-1] = Operand("constant", len(constants))
                constants.append(self._padded(link.constants[2]))
        reads.append(Operand("input", layer.wiring[1][-1]) if second.has(3) else None)
        call = kernel_call(
            self._kernel(parameters),
            tuple(reads),
            geometry=geometry_parameters(KernelGeometry.of(depthwise)),
            other=other,
            band=parameters["band"],
            first_activation=activation_parameters(first.activation),
            activation=activation_parameters(second.activation),
            in_place=len(reads) - 1 if second.has(3) else None,
        )
        return Lowering((call,), tuple(constants))

    def _padded(self, values: np.ndarray) -> np.ndarray:
        """The values with zeros appended along the first axis up to whole blocks."""
        return padded_rows(values, self._blocks(len(values)) * self.layout.block)

    def _pointwise_weights(self, layer: Layer, parameters: Parameters) -> Constant:
        channels, width = layer.type_of(0).shape[1], parameters["vectors"] * self.layout.block
        return self._padded(layer.constants[1]).reshape(-1, width, channels).transpose(0, 2, 1)

    def _depthwise_weights(self, layer: Layer) -> np.ndarray:
        taps = KernelGeometry.of(layer).taps
        return self._padded(layer.constants[1]).reshape(-1, self.layout.block, taps).transpose(0, 2, 1)

    @staticmethod
    def _is_depthwise(layer: Layer) -> bool:
        geometry = KernelGeometry.of(layer)
        return geometry.groups == geometry.channels == geometry.out_channels

    @staticmethod
    def _is_pointwise(layer: Layer) -> bool:
        geometry = KernelGeometry.of(layer)
        moves = geometry.taps > 1 or geometry.strides != (1, 1) or any(layer.ints("pads"))
        return geometry.groups == 1 and not moves


class ExpandDepthwise(Pair):
    """A pointwise convolution without residual, then a depthwise one.

    Intermediate rows that two bands share are computed once, or twice if two threads compute the bands.
    """

    descriptor = Descriptor("cpu", "float32", "expand_depthwise")

    def _fits(self, first: Layer, second: Layer) -> bool:
        return self._is_pointwise(first) and self._is_depthwise(second) and not first.has(3)

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
        return self._lowering(layer, parameters, weights, second, KernelGeometry.of(first).channels)


class DepthwiseProject(Pair):
    """A depthwise convolution without residual, then a pointwise one."""

    descriptor = Descriptor("cpu", "float32", "depthwise_project")

    def _fits(self, first: Layer, second: Layer) -> bool:
        return self._is_depthwise(first) and self._is_pointwise(second) and not first.has(3)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry, outputs = KernelGeometry.of(layer.parts[0]), KernelGeometry.of(layer.parts[1]).out_channels
        row = self._blocks(geometry.channels) * self.layout.block * self.element.bytes * geometry.out_width
        bands = 2 * self.threads if self.threads > USUAL_THREADS else 2
        return self._settings(outputs, geometry.out_height, lambda _: row, lambda _: bands)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        first, second = layer.parts
        weights = (self._depthwise_weights(first), self._pointwise_weights(second, parameters))
        return self._lowering(layer, parameters, weights, first, KernelGeometry.of(second).out_channels)


ROUTINES = (ExpandDepthwise, DepthwiseProject)
