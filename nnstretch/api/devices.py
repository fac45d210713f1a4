"""`nnstretch.list_devices`: the processors of this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from nnstretch.devices.base.spec import format_cores, parse_processors, usable_cores
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.build.instruction_sets import local_features, local_isa
from nnstretch.devices.opencl.drivers import probe
from nnstretch.devices.opencl.properties import DeviceInfo as Properties
from nnstretch.devices.opencl.routines.base import Traits
from nnstretch.devices.opencl.traits import half_rate, traits_of
from nnstretch.devices.registry import ENGINES, external_engine
from nnstretch.errors import BuildError, DeviceError, MissingExtraError
from nnstretch.support.interrupts import check_interrupted
from nnstretch.support.words import counted


@dataclass(frozen=True)
class OpenCLTraits:
    """Traits of an OpenCL device.

    Attributes:
        vendor: of a GPU: nvidia, amd, intel, qualcomm, arm or imagination; "" for others and for devices on the CPU.
        block: channels of a block of tensors.
        wave: work items of a GPU that run in lockstep; 0 on the CPU.
        item_registers: 32-bit registers that a work item of a GPU may use; 0 if nothing limits them.
        local_memory: bytes of a work group; 0 if it is global memory, which is no faster.
        group_items: maximum work items of a work group.
        unified: whether it shares memory with the host.
        half_rate: operations on float16 in the time of one on float32; 0 without such arithmetic.
        int8_dot: dot products of int8: accelerated, emulated, or "" without.
        image: maximum width and height of an image in pixels; 0, 0 without images.
        image_buffer: maximum pixels of an image made from a buffer.
        allocation_bytes: maximum size of one allocation.
        address_bits: of a pointer.
    """

    vendor: str
    block: int
    wave: int
    item_registers: int
    local_memory: int
    group_items: int
    unified: bool
    half_rate: int
    int8_dot: str
    image: tuple[int, int]
    image_buffer: int
    allocation_bytes: int
    address_bits: int


@dataclass(frozen=True)
class DeviceInfo:
    """A processor of this machine.

    Attributes:
        name: as `processors` of `nnstretch.compile` takes it.
        kind: "cpu", "opencl", or that of an external engine.
        device: its name and platform.
        cores: CPU cores or compute units.
        dtypes: of tensors that its routines take; OpenCL devices store float16 and compute in float32.
        usable: whether it works.
        why_not: the reason if it does not.
        isa: instruction set of a CPU.
        cpu_features: of a CPU, as /proc/cpuinfo names them; those that kernels may require.
        peak_gflops_per_core: measured float32 peak of a CPU, if it was asked for.
        traits: of an OpenCL device, what its kernels and their tiles follow, and what its driver offers beyond.
    """

    name: str
    kind: str
    device: str
    cores: int
    dtypes: tuple[str, ...]
    usable: bool
    why_not: str | None
    isa: str | None = None
    cpu_features: tuple[str, ...] = ()
    peak_gflops_per_core: float | None = None
    traits: OpenCLTraits | None = None

    def __str__(self) -> str:
        """One line, such as "cpu:0-1: AMD …, 2 cores, float32, int8"."""
        state = ", ".join(self.dtypes) if self.usable else f"not usable: {self.why_not}"
        return f"{self.name}: {self.device}, {counted(self.cores, 'core')}, {state}"

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        traits = None if self.traits is None else asdict(self.traits) | {"image": list(self.traits.image)}
        lists = {"dtypes": list(self.dtypes), "cpu_features": list(self.cpu_features)}
        return dict(vars(self)) | lists | {"traits": traits}


def list_devices(*, peak: bool = False, progress: Callable[[int, int, str], None] | None = None) -> list[DeviceInfo]:
    """The processors of this machine that networks can run on, usable or not: the CPU first.

    Args:
        peak: measure the float32 peak of one core.
        progress: called with (done, total, what).
    """
    steps: dict[str, Callable[[], list[DeviceInfo]]] = {
        "CPU": lambda: [_cpu(peak=peak)],
        "OpenCL": _opencl,
        "external engines": lambda: [_external(name) for name in ENGINES],
    }
    found: list[DeviceInfo] = []
    for done, (what, step) in enumerate(steps.items()):
        if progress:
            progress(done, len(steps), what)
        found += step()
        check_interrupted()
    return found


def _cpu(*, peak: bool) -> DeviceInfo:
    cores = usable_cores()
    isa, gflops, why_not = None, None, None
    try:
        isa = local_isa().name
        if peak:
            gflops = round(engine().peak_gflops(cores[0]), 1)
    except (BuildError, DeviceError) as error:
        why_not = str(error)
    name = f"cpu:{format_cores(cores)}"
    features, usable = local_features(), why_not is None
    return DeviceInfo(name, "cpu", cpu_model(), len(cores), ("float32", "int8"), usable, why_not, isa, features, gflops)


def _opencl() -> list[DeviceInfo]:
    try:
        isa = local_isa()
    except DeviceError:  # the CPU's entry has the reason
        isa = None
    return [
        DeviceInfo(
            name=f"opencl:{device.index}",
            kind="opencl",
            device=f"{device.name} ({device.platform})",
            cores=device.compute_units,
            dtypes=("float32", "float16", "int8"),
            usable=device.usable,
            why_not=device.why_not or None,
            traits=opencl_traits(device, traits_of(device, device.compute_units, isa)) if isa else None,
        )
        for device in probe()
    ]


def opencl_traits(info: Properties, traits: Traits) -> OpenCLTraits:
    """The traits of an OpenCL device by what its driver says, and by what routines are given."""
    return OpenCLTraits(
        vendor=info.vendor,
        block=traits.block,
        wave=traits.wave,
        item_registers=traits.item_registers,
        local_memory=info.local_memory,
        group_items=info.group_items,
        unified=info.unified,
        half_rate=half_rate(info),
        int8_dot=info.int8_dot,
        image=info.image,
        image_buffer=info.image_buffer,
        allocation_bytes=info.allocation_bytes,
        address_bits=info.address_bits,
    )


def _external(name: str) -> DeviceInfo:
    """An external engine as a processor on all cores."""
    cores = usable_cores()
    (spec,) = parse_processors(f"{name}@{format_cores(cores)}")
    external = external_engine(name)
    device, why_not = external.title, None
    try:
        external.processor(spec)
        device = f"{external.title} {external.release()}"
    except (DeviceError, MissingExtraError) as error:
        why_not = str(error)
    return DeviceInfo(str(spec), name, device, len(cores), ("float32",), why_not is None, why_not)
