"""Fused pairs of a depthwise and a pointwise convolution, whose products are of bfloat16."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from nnstretch.devices.base.constants import Constant
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import (
    USUAL_THREADS,
    Descriptor,
    Parameters,
    distinct,
    shares,
)
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.bfloat16.convolution import FEATURES, PAIRS, prepared_weights, rounded_bytes
from nnstretch.devices.cpu.routines.converted_rows import ROW_BYTES
from nnstretch.devices.cpu.routines.convolution.pair import DepthwiseProject, ExpandDepthwise, Pair
from nnstretch.graph.dtypes import BFLOAT16, DEFAULT_DTYPE, element_type
from nnstretch.graph.layer import Layer

BANDS = 3  # heights of bands that are measured
VECTORS = 2  # output vectors that are expanded at a time
_FLOAT_BYTES = element_type(DEFAULT_DTYPE).bytes


class PairOfBfloat16(Pair):
    """What both kinds of pairs share.

    Routine parameters:
        band: output rows per unit of work, whose intermediate rows are in scratch memory.
    """

    rounds_to = BFLOAT16

    def supports(self, layer: Layer) -> bool:
        return (
            not self.features.isdisjoint(FEATURES) and super().supports(layer) and self._row_bytes(layer) <= ROW_BYTES
        )

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The highest bands that fit into the second-level cache; with many threads those that leave work for all."""
        rows, least = layer.outputs[0].shape[2], self.threads // USUAL_THREADS
        bands = self._bands(rows, least, lambda band: band * self._row_bytes(layer), BANDS)
        return [{"band": band} for band in bands]

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        rows = layer.outputs[0].shape[2]
        return distinct(self.parameter_space(layer), ({"band": band} for band in shares(rows, rows)))

    @abstractmethod
    def _row_bytes(self, layer: Layer) -> int:
        """Bytes of scratch memory per output row."""

    def _kernel(self, parameters: Parameters) -> str:
        return family(f"{self.descriptor.algorithm}_{BFLOAT16}").kernel()

    def _pointwise_weights(self, layer: Layer, parameters: Parameters) -> Constant:
        return prepared_weights(layer.constants[1], 1, self.layout.block)


class ExpandDepthwiseOfBfloat16(PairOfBfloat16, ExpandDepthwise):
    """A pointwise convolution without residual, then a depthwise one.

    Intermediate rows that two bands share are computed for both.
    """

    descriptor = Descriptor("cpu", BFLOAT16, "expand_depthwise")

    def _row_bytes(self, layer: Layer) -> int:
        inputs, depthwise = (KernelGeometry.of(part) for part in layer.parts)
        expanded = VECTORS * self.layout.block * _FLOAT_BYTES
        return (rounded_bytes(inputs.channels) + expanded) * depthwise.width * depthwise.strides[0]


class DepthwiseProjectOfBfloat16(PairOfBfloat16, DepthwiseProject):
    """A depthwise convolution without residual, then a pointwise one."""

    descriptor = Descriptor("cpu", BFLOAT16, "depthwise_project")

    def _row_bytes(self, layer: Layer) -> int:
        depthwise = KernelGeometry.of(layer.parts[0])
        return (rounded_bytes(depthwise.channels) + 2 * PAIRS * _FLOAT_BYTES) * depthwise.out_width


ROUTINES = (ExpandDepthwiseOfBfloat16, DepthwiseProjectOfBfloat16)
