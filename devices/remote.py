"""Processors of other machines: their latencies are known or predicted from measurements made there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from nnstretch.devices.base.description import Description
from nnstretch.devices.base.float_form import float_form_routines
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Layout, Routine
from nnstretch.devices.cpu.queues import HOST
from nnstretch.devices.cpu.routines import REORDER_ROUTINE, native_routines
from nnstretch.devices.engine.build.instruction_sets import ISAS
from nnstretch.devices.opencl.backend import OPENCL
from nnstretch.devices.opencl.routines import Reorder, Traits, routines
from nnstretch.devices.opencl.routines.base import DTYPE
from nnstretch.errors import DeviceError


class ProfiledProcessor(Processor):
    """A processor of another machine. It has the routines of a local one, but runs and measures nothing."""

    def __init__(
        self,
        description: Description,
        *,
        float_forms: bool = False,
        products: Collection[str] = (),
        coherent: bool = True,
        dtypes: Sequence[str] = (DTYPE,),
    ) -> None:
        """Creates the processor of a description.

        Args:
            description: of the processor.
            float_forms: routines for float32 layers compute int8 layers too.
            products: types to which routines of a CPU may round float32 before they multiply.
            coherent: as of `Processor`, which plans that run there depend on.
            dtypes: storage types of the routines of an OpenCL device.

        Raises:
            DeviceError: this version has no routines for such a processor.
        """
        self.description = description
        self.spec = description.spec
        self.backend = HOST if description.kind == "cpu" else OPENCL
        self.blocked = Layout(description.block)
        self.coherent = coherent
        self.routines, self.reorder = _routines(description, products, dtypes)
        if float_forms:
            self.routines = (*self.routines, *float_form_routines(self.routines))

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def fingerprint(self) -> str:
        return self.description.fingerprint

    def describe(self) -> Description:
        return self.description


def _routines(
    description: Description, products: Collection[str], dtypes: Sequence[str]
) -> tuple[Sequence[Routine], Routine]:
    """The routines for layers, and the one that changes layouts."""
    if description.kind == "opencl":
        traits = Traits(
            description.block,
            bool(description.cores),
            description.compute_units,
            description.registers,
            description.local_memory,
            description.group_items,
            description.wave,
            description.item_registers,
            description.image_buffer,
        )
        return routines(traits, dtypes), Reorder(traits)
    isa = next((isa for isa in ISAS if isa.name == description.isa), None)
    if isa is None:
        raise DeviceError(
            f"{description.name} has the instruction set {description.isa!r}; this nnstretch knows "
            f"{', '.join(isa.name for isa in ISAS)}"
        )
    return native_routines(isa, len(description.cores), description.features, products), REORDER_ROUTINE
