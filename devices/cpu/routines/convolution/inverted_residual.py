"""Inverted residual blocks as one layer: expand, depthwise, project."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import USUAL_THREADS, Descriptor, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.fused import (
    SCRATCH_BYTES,
    FusedConvolutions,
    is_depthwise,
    is_pointwise,
)
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Layer


class InvertedResidual(FusedConvolutions):
    """An inverted residual block in bands of rows, each of which passes all three convolutions before the next one begins.

    A thread computes the expanded rows that two of its bands share once; two threads compute those at their border twice.

    Routine parameters:
        expand, project: output vectors of the register tile of each pointwise convolution.
        band: output rows per unit of work, whose intermediate rows are in scratch memory.
    """

    descriptor = Descriptor("cpu", "float32", "inverted_residual")

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.vectors = sorted(vectors for _, vectors in family("expand_depthwise").tiles(isa))

    def _fits(self, parts: Sequence[Layer]) -> bool:
        if len(parts) != 3:
            return False
        expand, depthwise, project = parts
        return is_pointwise(expand) and is_depthwise(depthwise) and is_pointwise(project)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The two narrowest tiles of each convolution, and the two highest bands that fit and leave work for all threads."""
        rows, least = layer.outputs[0].shape[2], 2 * self.threads if self.threads > USUAL_THREADS else 2
        heights = (band for band in shares(rows, rows) if band <= -(-rows // least))
        bands = [band for band in heights if self._scratch_bytes(layer, band) <= SCRATCH_BYTES] or [1]
        return self._settings(layer, 2, bands[:2])

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        rows = layer.outputs[0].shape[2]
        return distinct(self.parameter_space(layer), self._settings(layer, len(self.vectors), shares(rows, rows)))

    def _settings(self, layer: Layer, tiles: int, bands: Iterable[int]) -> tuple[Parameters, ...]:
        """All settings of these bands with the narrowest `tiles` tiles that divide the outputs of each convolution."""
        expand, _, project = (self._fitting(KernelGeometry.of(link).out_channels)[:tiles] for link in layer.parts)
        return tuple({"expand": e, "project": p, "band": band} for band in bands for e in expand for p in project)

    def _fitting(self, channels: int) -> list[int]:
        return [vectors for vectors in self.vectors if self._blocks(channels) % vectors == 0]

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
