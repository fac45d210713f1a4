"""Register tiles of the engine's kernels.

A tile is (pixels, vectors): one broadcast input feeds `vectors` multiply-adds, so that tiles of more vectors need fewer loads.
How large tiles may be depends on the vector registers that an instruction set has, 32 or 16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nnstretch.devices.engine.build.instruction_sets import Isa

Tiles = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TileSet:
    """The tiles that one engine holds for each family of kernels, best first.

    Attributes:
        direct: of direct convolutions.
        halves: of direct convolutions by half vectors.
        pair: of the pointwise half of fused pairs.
        planar: of first layers.
        strassen: of Strassen's products.
        winograd: of the products between Winograd's transforms (tiles of the plane instead of pixels).
        dense: output vectors of dense layers.
    """

    direct: Tiles
    halves: Tiles
    pair: Tiles
    planar: Tiles
    strassen: Tiles
    winograd: Tiles
    dense: int


_MANY = ((6, 4), (9, 3), (14, 2), (28, 1))

_AVX512 = TileSet(
    direct=_MANY,
    halves=_MANY,
    pair=_MANY,
    planar=((14, 1), (14, 2)),
    strassen=((14, 2), (9, 3)),
    winograd=((28, 1),),
    dense=4,
)
_NEON = replace(_AVX512, halves=(), winograd=((14, 2), (28, 1)))
_SIXTEEN_REGISTERS = TileSet(
    direct=((6, 2), (12, 1)),
    halves=(),
    pair=((6, 2), (4, 3), (12, 1)),
    planar=((6, 2), (12, 1)),
    strassen=((6, 2), (4, 3)),
    winograd=((6, 2), (12, 1)),
    dense=2,
)


def tiles_of(isa: Isa) -> TileSet:
    """The tiles of engines built for `isa`."""
    if isa.block == 16:
        return _AVX512
    return _NEON if isa.name.startswith("aarch64") else _SIXTEEN_REGISTERS
