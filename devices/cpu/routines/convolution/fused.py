"""What routines share that compute several convolutions as one layer, whose intermediate tensors stay in the caches.

An inverted residual block of a mobile network expands its channels with a pointwise convolution, applies a depthwise one and
projects with another pointwise one (MobileNetV2, section 3.3). Its intermediate tensors are the largest of the network.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from nnstretch.devices.base.constants import Constant, padded_rows
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, Layout, Lowering, Operand, Parameters, Routine, shares
from nnstretch.devices.cpu.manifest import Values, activation_parameters, family, kernel_call
from nnstretch.devices.cpu.routines.convolution.base import geometry_parameters, is_convolution
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import FUSION_GROUP, Layer

SCRATCH_BYTES = 384 << 10
"""Maximum scratch memory of a unit; the rest of the second-level cache is for weights and pixels."""

MOST_BANDS = 128
"""Maximum number of bands into which the usual settings divide the output rows."""


class FusedConvolutions(Routine):
    """Base class: convolutions one behind the other; the last one may add a residual."""

    def __init__(self, isa: Isa) -> None:
        self.layout = Layout(isa.block)
        self.tiles = family("expand_depthwise").tiles(isa)  # of pointwise convolutions in all kernels
        # On ARM, loads of panels of one vector take as long as their multiply-adds.
        self.least_vectors = 2 if isa.architecture == "aarch64" else 1

    def supports(self, layer: Layer) -> bool:
        if layer.op != FUSION_GROUP or not all(map(is_convolution, layer.parts)) or not self._fits(layer.parts):
            return False
        if any(link.has(3) for link in layer.parts[:-1]):
            return False
        later = enumerate(layer.wiring[1:], 1)
        return all(sources[0] == -place and min((*sources[1:], 0)) >= 0 for place, sources in later)

    @abstractmethod
    def _fits(self, parts: Sequence[Layer]) -> bool:
        """Whether convolutions are of the kinds that this routine fuses."""

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.layout,) * len(layer.activations), (self.layout,)

    def _lowering(
        self, kernel: str, layer: Layer, weights: Sequence[Constant], depthwise: Layer, **parameters: Values
    ) -> Lowering:
        """One call with the weights and biases of all convolutions.

        Args:
            kernel: reads the input, weights and bias of each convolution, and the residual of the last one.
            layer: the fusion group.
            weights: of each convolution, as the kernel reads them.
            depthwise: the part whose geometry the kernel has.
            parameters: the kernel's other parameters, without those of activations.
        """
        constants: list[Constant] = []
        reads: list[Operand | None] = [INPUT]
        for link, weight in zip(layer.parts, weights, strict=True):
            reads += [Operand("constant", len(constants)), None]
            constants.append(np.ascontiguousarray(weight, np.float32) if isinstance(weight, np.ndarray) else weight)
            if link.has(2):
                reads[-1] = Operand("constant", len(constants))
                constants.append(self._padded(link.constants[2]))
        last = layer.parts[-1]
        reads.append(Operand("input", layer.wiring[-1][-1]) if last.has(3) else None)
        names = (*("first_activation", "second_activation")[: len(layer.parts) - 1], "activation")
        activations = {
            name: activation_parameters(link.activation) for name, link in zip(names, layer.parts, strict=True)
        }
        call = kernel_call(
            kernel,
            tuple(reads),
            in_place=len(reads) - 1 if last.has(3) else None,
            geometry=geometry_parameters(KernelGeometry.of(depthwise)),
            **parameters,
            **activations,
        )
        return Lowering((call,), tuple(constants))

    def _fitting_tiles(self, channels: int) -> list[tuple[int, int]]:
        """The tiles (pixels, vectors) that divide the output vectors of a pointwise convolution, narrowest first."""
        return sorted((tile for tile in self.tiles if self._blocks(channels) % tile[1] == 0), key=lambda tile: tile[1])

    def _narrow_tiles(self, channels: int) -> list[tuple[int, int]]:
        """The two narrowest tiles that are worth it. Narrow panels keep the intermediate rows in a near cache."""
        fitting = self._fitting_tiles(channels)
        return ([tile for tile in fitting if tile[1] >= self.least_vectors] or fitting)[:2]

    @staticmethod
    def _bands(rows: int, least: int, scratch_bytes: Callable[[int], int], most: int = 2) -> list[int]:
        """The highest bands whose intermediate rows fit into a near cache, `most` at most.

        Args:
            rows: output rows.
            least: minimum number of bands, which share the work among threads.
            scratch_bytes: scratch memory of a band, by its rows.
            most: number of bands.
        """
        heights = shares(rows, MOST_BANDS, least)
        return [band for band in heights if scratch_bytes(band) <= SCRATCH_BYTES][:most] or [1]

    def _blocks(self, channels: int) -> int:
        return -(-channels // self.layout.block)

    def _padded(self, values: np.ndarray) -> np.ndarray:
        """The values with zeros appended along the first axis up to whole blocks."""
        return padded_rows(values, self._blocks(len(values)) * self.layout.block)

    def _panels(self, layer: Layer, vectors: int) -> np.ndarray:
        """A pointwise convolution's weights: panels of `vectors` output vectors, each as input channels × outputs."""
        channels, width = layer.type_of(0).shape[1], vectors * self.layout.block
        return self._padded(layer.constants[1]).reshape(-1, width, channels).transpose(0, 2, 1)

    def _depthwise_weights(self, layer: Layer) -> np.ndarray:
        taps = KernelGeometry.of(layer).taps
        return self._padded(layer.constants[1]).reshape(-1, self.layout.block, taps).transpose(0, 2, 1)


def is_depthwise(layer: Layer) -> bool:
    """Whether each channel of a convolution makes one output."""
    geometry = KernelGeometry.of(layer)
    return geometry.groups == geometry.channels == geometry.out_channels


def is_pointwise(layer: Layer) -> bool:
    """Whether output pixel i of a convolution reads input pixel i only, and all channels."""
    geometry = KernelGeometry.of(layer)
    moves = geometry.taps > 1 or geometry.strides != (1, 1) or any(layer.ints("pads"))
    return geometry.groups == 1 and not moves
