"""Base classes of the routines for convolutions of blocked tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Layout, Parameters, Routine
from nnstretch.devices.cpu.routines.convolution.geometry import is_convolution
from nnstretch.graph.layer import Layer

TileT = TypeVar("TileT")


class BlockedConvolution(Routine):
    """A convolution that reads and writes the engine's blocked layout."""

    def __init__(self, block: int) -> None:
        """`block`: the engine's block."""
        self.layout = Layout(block)

    def supports(self, layer: Layer) -> bool:
        return is_convolution(layer) and self.covers(KernelGeometry.of(layer))

    @abstractmethod
    def covers(self, geometry: KernelGeometry) -> bool:
        """Whether the kernels compute a convolution of this geometry."""

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.layout,) * len(layer.activations), (self.layout,)


class TiledConvolution(BlockedConvolution, Generic[TileT]):
    """A blocked convolution with one kernel per register tile."""

    def __init__(self, block: int, tiles: Sequence[TileT]) -> None:
        """`block`: the engine's block; `tiles`: its register tiles, in the order that the routine documents."""
        super().__init__(block)
        self.tiles = tuple(tiles)
