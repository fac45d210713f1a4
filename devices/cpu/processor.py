"""CPU processors: a group of cores that runs the native engine's kernels."""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from nnstretch.devices.base.description import Description
from nnstretch.devices.base.float_form import float_form_routines
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Layout, Routine
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.queues import HOST
from nnstretch.devices.cpu.routines import REORDER_ROUTINE, native_routines
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.build.instruction_sets import Isa, local_features, local_isa
from nnstretch.errors import DeviceError
from nnstretch.support.settings import core_speeds, hidden_cpu_features


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

    backend = HOST
    reorder = REORDER_ROUTINE

    def __init__(
        self,
        spec: ProcessorSpec,
        isa: Isa | None = None,
        external_engines: Sequence[Routine] = (),
        *,
        float_forms: bool = False,
        features: Collection[str] | None = None,
        products: Collection[str] = (),
    ) -> None:
        """A group of cores.

        Args:
            spec: the cores and their relative speeds.
            isa: instruction set of the CPU that plans run on; None for this machine's.
            external_engines: routines of external engines that compete with the native ones.
            float_forms: routines for float32 compute int8 layers too.
            features: of the CPU that plans run on, as /proc/cpuinfo names them; None for this machine's if it has the
                instruction set, else for those of any CPU with it.
            products: types to which routines may round float32 before they multiply.

        Raises:
            DeviceError: the engine does not support this machine's CPU.
        """
        self.spec = spec
        self._isa = isa or local_isa()
        if features is None:
            features = local_features() if self._isa == local_isa() else ()
        self._features = tuple(features)
        native = native_routines(self._isa, len(spec.cores), self._features, products)
        forms = float_form_routines(native) if float_forms else ()
        self.routines = (*native, *forms, *external_engines)
        self.blocked = Layout(self._isa.block)

    @property
    def fingerprint(self) -> str:
        """CPU model; number, ratios and experimental speeds of the cores; engine's file name with its hash; hidden features.

        Raises:
            BuildError: the engine cannot be built.
            DeviceError: the instruction set is another machine's, so nothing can be measured here.
        """
        if self._isa != local_isa():
            raise DeviceError(
                f"{self.name} has another instruction set ({self._isa.name}) than this machine; plan it without measuring"
            )
        ratios = f" {':'.join(map(str, self.spec.ratios))}" if self.spec.ratios else ""
        hidden = "".join(f" -{name}" for name in sorted(hidden_cpu_features()))  # other kernels are chosen without them
        slowed = core_speeds()
        speeds = [f"{slowed.get(core, 1.0):g}" for core in self.spec.cores]
        slow = f" at {':'.join(speeds)}" if any(core in slowed for core in self.spec.cores) else ""
        return f"{cpu_model()}|{len(self.spec.cores)} cores{ratios}|{engine().path.stem}{hidden}{slow}"

    def describe(self) -> Description:
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
            features=self._features,
        )
