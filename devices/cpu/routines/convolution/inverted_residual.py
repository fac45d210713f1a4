"""Inverted residual blocks as one layer: expand, depthwise, project."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import USUAL_THREADS, Descriptor, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.fused import (
    FusedConvolutions,
    is_depthwise,
    is_pointwise,
)
from nnstretch.graph.layer import Layer


class InvertedResidual(FusedConvolutions):
    """An inverted residual block in bands of rows, each of which passes all three convolutions before the next one begins.

    A thread computes the expanded rows that two of its bands share once; two threads compute those at their border twice.

    Routine parameters:
        expand, project: output vectors of the register tile of each pointwise convolution.
        band: output rows per unit of work, whose intermediate rows are in scratch memory.
    """

    descriptor = Descriptor("cpu", "float32", "inverted_residual")

    def _fits(self, parts: Sequence[Layer]) -> bool:
        if len(parts) != 3:
            return False
        expand, depthwise, project = parts
        return is_pointwise(expand) and is_depthwise(depthwise) and is_pointwise(project)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """Two tiles of each pointwise convolution, and the two highest bands that fit and leave work for all threads."""
        least = 2 * self.threads if self.threads > USUAL_THREADS else 2
        bands = self._bands(layer.outputs[0].shape[2], least, lambda band: self._scratch_bytes(layer, band))
        return self._settings(layer, self._narrow_tiles, bands)

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        rows = layer.outputs[0].shape[2]
        return distinct(self.parameter_space(layer), self._settings(layer, self._fitting_tiles, shares(rows, rows)))

    @staticmethod
    def _settings(
        layer: Layer, tiles: Callable[[int], list[tuple[int, int]]], bands: Sequence[int]
    ) -> list[Parameters]:
        """All settings of these bands with the tiles for the outputs of each pointwise convolution."""
        expand, _, project = (tiles(KernelGeometry.of(link).out_channels) for link in layer.parts)
        return [{"expand": e, "project": p, "band": band} for band in bands for _, e in expand for _, p in project]

    def _scratch_bytes(self, layer: Layer, band: int) -> int:
        geometry = KernelGeometry.of(layer.parts[1])
        read = (band - 1) * geometry.strides[0] + (geometry.kernel[0] - 1) * geometry.dilations[0] + 1
        pixels = min(read, geometry.height) * geometry.width + band * geometry.out_width
        return self._blocks(geometry.channels) * self.layout.block * self.element.bytes * pixels

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        expand, depthwise, project = layer.parts
        weights = (
            self._panels(expand, parameters["expand"]),
            self._depthwise_weights(depthwise),
            self._panels(project, parameters["project"]),
        )
        return self._lowering(
            family("inverted_residual").kernel(),
            layer,
            weights,
            depthwise,
            inputs=KernelGeometry.of(expand).channels,
            outputs=KernelGeometry.of(project).out_channels,
            expand_vectors=parameters["expand"],
            project_vectors=parameters["project"],
            band=parameters["band"],
        )


ROUTINES = (InvertedResidual,)
