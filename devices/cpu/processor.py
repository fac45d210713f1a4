"""CPU processors: a group of cores that runs the native engine's kernels."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path

from nnstretch.devices.base.description import Description
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Layout, Routine
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.backend import HOST
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.depthwise import DepthwiseConvolution
from nnstretch.devices.cpu.routines.convolution.direct import DirectConvolution, Tile
from nnstretch.devices.cpu.routines.convolution.pair import DepthwiseProject, ExpandDepthwise
from nnstretch.devices.cpu.routines.convolution.planar import PlanarConvolution
from nnstretch.devices.cpu.routines.convolution.strassen import StrassenConvolution
from nnstretch.devices.cpu.routines.convolution.winograd import WinogradConvolution
from nnstretch.devices.cpu.routines.dense import Dense, DenseAsConvolution
from nnstretch.devices.cpu.routines.memory_bound.routines import REORDER_ROUTINE, memory_bound_routines
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.build.instruction_sets import Isa, local_isa
from nnstretch.errors import DeviceError


def compute_bound_routines(isa: Isa) -> tuple[Routine, ...]:
    """Routines for convolutions, fused pairs and dense layers of engines built for `isa`, most promising first."""

    def tiles(name: str, *columns: str) -> list[tuple[int, int]]:
        found = (kernel.numbers(*(columns or ("pixels", "vectors"))) for kernel in family(name).on(isa))
        return list(dict.fromkeys((first, second) for first, second in found))

    lengths = {"v": isa.block, "h": isa.block // 2}
    direct = [
        Tile(pixels, vectors, lengths[str(kernel.tile["kind"])])
        for kernel in family("conv_direct").on(isa)
        for pixels, vectors in [kernel.numbers("pixels", "vectors")]
    ]
    convolution = DirectConvolution(isa.block, direct)
    ((_, dense_vectors),) = tiles("dense", "rows", "vectors")
    return (
        DepthwiseConvolution(isa.block),
        PlanarConvolution(isa.block, tiles("conv_planar")),
        convolution,
        ExpandDepthwise(isa.block, tiles("expand_depthwise")),
        DepthwiseProject(isa.block, tiles("depthwise_project")),
        StrassenConvolution(isa.block, tiles("conv_strassen")),
        WinogradConvolution(isa.block, tiles("winograd", "tiles", "vectors")),
        Dense(isa.block, dense_vectors),
        DenseAsConvolution(isa.block, convolution),
    )


def native_routines(isa: Isa) -> tuple[Routine, ...]:
    """All routines of engines built for `isa`: compute-bound ones first, then memory-bound ones."""
    return (*compute_bound_routines(isa), *memory_bound_routines(isa.block))


@cache
def cpu_model() -> str:
    """The CPU's name as the operating system reports it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "CPU part"):
            return value.strip()
    return platform.processor() or platform.machine()


class CpuProcessor(Processor):
    """A group of CPU cores; one thread per core shares the work of each layer."""

    dtypes = ("float32",)
    backend = HOST

    def __init__(self, spec: ProcessorSpec, isa: Isa | None = None, external_engines: Sequence[Routine] = ()) -> None:
        """A group of cores.

        Args:
            spec: the cores and their relative speeds.
            isa: instruction set of the CPU that plans run on; None for this machine's.
            external_engines: routines of external engines that compete with the native ones.

        Raises:
            DeviceError: the engine does not support this machine's CPU.
        """
        self.spec = spec
        self._isa = isa or local_isa()
        self._external_engines = tuple(external_engines)
        self.blocked = Layout(self._isa.block)

    @property
    def fingerprint(self) -> str:
        """CPU model, number and ratios of the cores, and the engine's file name (instruction set and source hash).

        Raises:
            BuildError: the engine cannot be built.
            DeviceError: the instruction set is another machine's, so nothing can be measured here.
        """
        if self._isa != local_isa():
            raise DeviceError(
                f"{self.name} has another instruction set ({self._isa.name}) than this machine; plan it without measuring"
            )
        ratios = f" {':'.join(map(str, self.spec.ratios))}" if self.spec.ratios else ""
        return f"{cpu_model()}|{len(self.spec.cores)} cores{ratios}|{engine().path.stem}"

    def describe(self) -> Description:
        """Instruction set and cores."""
        spec = self.spec
        return Description(
            self.fingerprint,
            self.name,
            "cpu",
            cpu_model(),
            self._isa.block,
            cores=spec.cores,
            ratios=spec.ratios,
            isa=self._isa.name,
        )

    @property
    def routines(self) -> Sequence[Routine]:
        """Compute-bound routines, then memory-bound routines, then those of external engines."""
        return self._routines

    @cached_property
    def _routines(self) -> tuple[Routine, ...]:
        return (*native_routines(self._isa), *self._external_engines)

    def reorder(self) -> Routine:
        """The routine that changes layouts."""
        return REORDER_ROUTINE
