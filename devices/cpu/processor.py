"""CPU processors: a group of cores that runs the native engine's kernels."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path

from nnstretch.devices.cpu.routines.dense import Dense
from nnstretch.devices.cpu.routines.depthwise import DepthwiseConvolution
from nnstretch.devices.cpu.routines.direct import DirectConvolution, Tile
from nnstretch.devices.cpu.routines.light import REORDER_ROUTINE, light_routines
from nnstretch.devices.cpu.routines.planar import PlanarConvolution
from nnstretch.devices.engine.binding import engine
from nnstretch.devices.engine.build import Isa, local_isa
from nnstretch.devices.processor import Processor
from nnstretch.devices.routine import Layout, Routine
from nnstretch.devices.spec import ProcessorSpec

# Register tiles (pixels, vectors) that the engine holds, best first: one broadcast input feeds `vectors` multiply-adds, so
# that tiles of more vectors need fewer loads. Instruction sets have 32 vector registers or 16. Vectors of 16 outputs can be
# computed in halves.
_MANY_DIRECT = ((6, 4), (9, 3), (14, 2), (28, 1))
_FEW_DIRECT = ((6, 2), (12, 1))
_HALF_DIRECT = ((6, 4), (9, 3), (14, 2), (28, 1))
_MANY_PLANAR = ((14, 1), (14, 2))
_FEW_PLANAR = ((6, 2), (12, 1))


def heavy_routines(isa: Isa) -> tuple[Routine, ...]:
    """The routines for convolutions and dense layers on engines built for `isa`, best guess first."""
    many = isa.block == 16 or isa.name.startswith("aarch64")
    return (
        DepthwiseConvolution(isa.block),
        PlanarConvolution(isa.block, _MANY_PLANAR if many else _FEW_PLANAR),
        DirectConvolution(isa.block, _direct_tiles(isa)),
        Dense(isa.block, 4 if many else 2),
    )


def _direct_tiles(isa: Isa) -> list[Tile]:
    many = isa.block == 16 or isa.name.startswith("aarch64")
    tiles = [Tile(pixels, vectors, isa.block) for pixels, vectors in (_MANY_DIRECT if many else _FEW_DIRECT)]
    halves = _HALF_DIRECT if isa.block == 16 else ()
    return tiles + [Tile(pixels, vectors, isa.block // 2) for pixels, vectors in halves]


@cache
def cpu_model() -> str:
    """The CPU's name as the system gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "CPU part"):
            return value.strip()
    return platform.processor() or platform.machine()


class CpuProcessor(Processor):
    """A group of CPU cores; its kernels share the work of each layer among one thread per core."""

    dtypes = ("float32",)
    memory = "host"

    def __init__(self, spec: ProcessorSpec) -> None:
        """`spec` names the cores.

        Raises:
            DeviceError: the engine is not written for this machine's CPU.
        """
        self.spec = spec
        self._isa = local_isa()
        self.blocked = Layout(self._isa.block)

    @property
    def fingerprint(self) -> str:
        """CPU model, number of cores in use, and the engine's file name, which holds instruction set and source hash.

        Raises:
            BuildError: the engine cannot be built.
        """
        return f"{cpu_model()}|{len(self.spec.cores)} cores|{engine().path.stem}"

    @property
    def routines(self) -> Sequence[Routine]:
        """Depthwise, planar and direct convolution, dense, then the light routines."""
        return self._routines

    @cached_property
    def _routines(self) -> tuple[Routine, ...]:
        return (*heavy_routines(self._isa), *light_routines(self._isa.block))

    def reorder(self) -> Routine:
        """The routine that changes layouts."""
        return REORDER_ROUTINE
