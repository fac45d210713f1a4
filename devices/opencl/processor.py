"""The OpenCL processor: a device with its routines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnstretch.devices.base.description import Description
from nnstretch.devices.base.float_form import float_form_routines
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Layout
from nnstretch.devices.base.spec import ProcessorSpec, format_cores
from nnstretch.devices.engine.binding.image import Sharing
from nnstretch.devices.opencl.backend import OPENCL
from nnstretch.devices.opencl.routines import Reorder, routines
from nnstretch.devices.opencl.routines.base import DTYPE
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.devices.opencl.sources import sources_hash
from nnstretch.devices.opencl.verdicts import retest


class OpenCLProcessor(Processor):
    """An OpenCL device as a processor.

    Attributes:
        runtime: context, queue, programs and memory of the device.

    Args:
        spec: kind "opencl", the device's number, and the cores of a device on the CPU.
        dtypes: storage types of its routines, float32 and float16.
        float_forms: these routines compute int8 layers too.

    Raises:
        DeviceError: there is no such device or it does not work.
    """

    backend = OPENCL

    def __init__(self, spec: ProcessorSpec, dtypes: Sequence[str] = (DTYPE,), *, float_forms: bool = False) -> None:
        self.runtime = OpenCLRuntime(spec)
        info = self.runtime.info
        self.spec = spec if info.on_cpu else replace(spec, cores=())
        self.coherent = info.sharing is Sharing.COHERENT or (info.on_cpu and info.unified)
        self.in_host_memory = info.sharing is Sharing.COHERENT and info.on_cpu and info.unified
        self.blocked = Layout(self.runtime.traits.block)
        native = routines(self.runtime.traits, dtypes)
        self.routines = (*native, *(float_form_routines(native) if float_forms else ()))
        self.reorder = Reorder(self.runtime.traits)

    @property
    def fingerprint(self) -> str:
        """Key of its measurements: driver, device, cores in use and kernels."""
        info = self.runtime.info
        parts = [info.platform, info.driver, info.name, f"block={self.blocked.block}", f"kernels={sources_hash()}"]
        parts.append(f"memory={info.sharing.name.lower()}")
        if info.on_cpu:
            parts += [f"cores={format_cores(self.spec.cores)}", f"threads={self.runtime.threads}"]
        return "opencl|" + "|".join(parts)

    def why_lost(self) -> str:
        return retest(self.runtime.info).why_not

    def describe(self) -> Description:
        """Traits of the device, and cores of a device on the CPU."""
        info, traits = self.runtime.info, self.runtime.traits
        return Description(
            self.fingerprint,
            self.name,
            "opencl",
            info.name,
            traits.block,
            index=self.spec.index,
            cores=self.spec.cores if traits.on_cpu else (),
            compute_units=traits.compute_units,
            registers=traits.registers,
            local_memory=traits.local_memory,
            group_items=traits.group_items,
            wave=traits.wave,
            item_registers=traits.item_registers,
            image_buffer=traits.image_buffer,
        )
