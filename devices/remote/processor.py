"""Processors of other machines: their latencies are predicted from measurements made there."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.description import Description
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Layout, Routine
from nnstretch.devices.cpu.backend import HOST
from nnstretch.devices.cpu.processor import native_routines
from nnstretch.devices.cpu.routines.memory_bound.routines import REORDER_ROUTINE
from nnstretch.devices.engine.build.instruction_sets import ISAS
from nnstretch.devices.opencl.backend import OPENCL
from nnstretch.devices.opencl.routines import Reorder, Traits, routines
from nnstretch.errors import DeviceError


class ProfiledProcessor(Processor):
    """A processor of another machine. It has the routines of a local one, but runs and measures nothing."""

    dtypes = ("float32",)

    def __init__(self, description: Description) -> None:
        """Creates the processor of a description.

        Raises:
            DeviceError: this version has no routines for such a processor.
        """
        self.description = description
        self.spec = description.spec
        self.backend = HOST if description.kind == "cpu" else OPENCL
        self.blocked = Layout(description.block)
        self._routines, self._reorder = _routines(description)

    @property
    def name(self) -> str:
        """Its specification on the machine where it was measured."""
        return self.description.name

    @property
    def fingerprint(self) -> str:
        """Key of its measurements."""
        return self.description.fingerprint

    @property
    def routines(self) -> Sequence[Routine]:
        """Routines for layers in order of expected speed."""
        return self._routines

    def reorder(self) -> Routine:
        """The routine that changes layouts."""
        return self._reorder


def _routines(description: Description) -> tuple[Sequence[Routine], Routine]:
    """The routines for layers, and the one that changes layouts."""
    if description.kind == "opencl":
        traits = Traits(description.block, bool(description.cores), description.compute_units, description.registers)
        return routines(traits), Reorder(traits)
    isa = next((isa for isa in ISAS if isa.name == description.isa), None)
    if isa is None:
        raise DeviceError(
            f"{description.name} has the instruction set {description.isa!r}; this nnstretch knows "
            f"{', '.join(isa.name for isa in ISAS)}"
        )
    return native_routines(isa), REORDER_ROUTINE
