"""Blocks of three convolutions of mobile networks as one layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import (
    PLAIN,
    USUAL_THREADS,
    Descriptor,
    Layout,
    Lowering,
    Parameters,
    distinct,
    shares,
)
from nnstretch.devices.cpu.manifest import Values, family
from nnstretch.devices.cpu.routines.convolution.base import geometry_parameters
from nnstretch.devices.cpu.routines.convolution.fused import (
    SCRATCH_BYTES,
    FusedConvolutions,
    is_depthwise,
    is_pointwise,
)
from nnstretch.devices.cpu.routines.convolution.planar import is_planar, planar_weights
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Layer

MOST_PARTS = 128
"""Maximum parts into which the usual settings divide the output rows."""


class ResidualBlock(FusedConvolutions):
    """Base class: a convolution, a depthwise and a pointwise one. A band of rows passes all of them before the next one begins.

    A thread computes the rows of the first convolution that two of its bands read once; two threads compute those at their
    border twice.

    Routine parameters:
        first, project: output vectors of the register tile of the first and of the last convolution.
        band: output rows per unit of work, whose intermediate rows are in scratch memory.
    """

    first_family: str
    """The family with the tiles of the first convolution."""

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        names = {"first": self.first_family, "project": "expand_depthwise"}
        self.vectors = {part: sorted(vectors for _, vectors in family(name).tiles(isa)) for part, name in names.items()}

    def _fits(self, parts: Sequence[Layer]) -> bool:
        return len(parts) == 3 and self._begins(parts[0]) and is_depthwise(parts[1]) and is_pointwise(parts[2])

    @abstractmethod
    def _begins(self, first: Layer) -> bool:
        """Whether a convolution is of the kind that the block begins with."""

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The two narrowest tiles of each convolution, and the two highest bands that fit and leave work for all threads."""
        rows, least = layer.outputs[0].shape[2], 2 * self.threads if self.threads > USUAL_THREADS else 2
        heights = (band for band in shares(rows, MOST_PARTS) if band <= -(-rows // least))
        bands = [band for band in heights if self._scratch_bytes(layer, band) <= SCRATCH_BYTES] or [1]
        return self._settings(layer, 2, bands[:2])

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        rows = layer.outputs[0].shape[2]
        return distinct(self.parameter_space(layer), self._settings(layer, rows, shares(rows, rows)))

    def _settings(self, layer: Layer, tiles: int, bands: Iterable[int]) -> tuple[Parameters, ...]:
        """All settings of these bands with the narrowest `tiles` tiles that divide the outputs of each convolution."""
        first, project = (
            [v for v in self.vectors[part] if self._blocks(KernelGeometry.of(link).out_channels) % v == 0][:tiles]
            for part, link in (("first", layer.parts[0]), ("project", layer.parts[2]))
        )
        return tuple({"first": f, "project": p, "band": band} for band in bands for f in first for p in project)

    def _scratch_bytes(self, layer: Layer, band: int) -> int:
        geometry = KernelGeometry.of(layer.parts[1])
        read = (band - 1) * geometry.strides[0] + (geometry.kernel[0] - 1) * geometry.dilations[0] + 1
        pixels = min(read, geometry.height) * geometry.width + band * geometry.out_width
        return self._blocks(geometry.channels) * self.layout.block * self.element.bytes * pixels

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        first, depthwise, project = layer.parts
        weights = (
            self._first_weights(first, parameters["first"]),
            self._depthwise_weights(depthwise),
            self._panels(project, parameters["project"]),
        )
        return self._lowering(
            family(self.descriptor.algorithm).kernel(),
            layer,
            weights,
            depthwise,
            outputs=KernelGeometry.of(project).out_channels,
            project_vectors=parameters["project"],
            band=parameters["band"],
            **self._first_parameters(first, parameters["first"]),
        )

    @abstractmethod
    def _first_weights(self, first: Layer, vectors: int) -> np.ndarray:
        """The first convolution's weights in panels of `vectors` output vectors."""

    @abstractmethod
    def _first_parameters(self, first: Layer, vectors: int) -> Mapping[str, Values]:
        """The kernel's parameters of the first convolution."""


class InvertedResidual(ResidualBlock):
    """A block that expands the channels first, and projects them in the end (MobileNetV2, section 3.3)."""

    descriptor = Descriptor("cpu", "float32", "inverted_residual")
    first_family = "expand_depthwise"

    def _begins(self, first: Layer) -> bool:
        return is_pointwise(first)

    def _first_weights(self, first: Layer, vectors: int) -> np.ndarray:
        return self._panels(first, vectors)

    def _first_parameters(self, first: Layer, vectors: int) -> Mapping[str, Values]:
        return {"inputs": KernelGeometry.of(first).channels, "expand_vectors": vectors}


class StemResidual(ResidualBlock):
    """A network's first convolution, which reads NCHW, and the depthwise and the pointwise one behind it."""

    descriptor = Descriptor("cpu", "float32", "stem_residual")
    first_family = "conv_planar"

    def _begins(self, first: Layer) -> bool:
        return is_planar(KernelGeometry.of(first), self.layout.block) and not is_pointwise(first)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        inputs, outputs = super().layouts(layer, parameters)
        return (PLAIN, *inputs[1:]), outputs

    def _first_weights(self, first: Layer, vectors: int) -> np.ndarray:
        return planar_weights(first, vectors * self.layout.block)

    def _first_parameters(self, first: Layer, vectors: int) -> Mapping[str, Values]:
        return {"stem": geometry_parameters(KernelGeometry.of(first)), "stem_vectors": vectors}


ROUTINES = (InvertedResidual, StemResidual)
