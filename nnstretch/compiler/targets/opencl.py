"""The OpenCL devices of a target."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.processors import stored_types, wants_float_forms
from nnstretch.devices.base.description import Description
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.engine.binding.image import Sharing
from nnstretch.devices.engine.build.engine_library import engine_identity
from nnstretch.devices.opencl.properties import DeviceInfo
from nnstretch.devices.opencl.sources import sources_hash
from nnstretch.devices.opencl.traits import traits_of
from nnstretch.devices.opencl.vendors import vendor_name
from nnstretch.devices.remote import ProfiledProcessor
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.probe import Probe
from nnstretch.errors import UsageError
from nnstretch.package.standalone_devices import DeviceName

OPENCL = "opencl"


def names_opencl(processors: str) -> bool:
    """Whether processors, as a user writes them, have an OpenCL device among them; they may be wrong in other ways."""
    return any(re.split("[:@]", name.strip())[0] == OPENCL for name in processors.split(","))


def device_names(probe: Probe) -> Sequence[DeviceName]:
    """The OpenCL devices of a target, as model files name them."""
    return tuple(DeviceName(index, one.platform, one.name) for index, one in enumerate(probe.opencl))


def opencl_processor(device: Device, spec: ProcessorSpec, options: CompileOptions) -> ProfiledProcessor:
    """An OpenCL device of a target, with the routines that it would have on this machine.

    Args:
        device: the target, which was opened for models with OpenCL queues.
        spec: kind "opencl", its number, and the cores of a device on the CPU.
        options: say which types routines may store.

    Raises:
        UsageError: the target has no such device; names those that it has.
        TargetError: the target cannot be described.
    """
    info = _info(device, spec.index)
    traits = traits_of(info, len(spec.cores), device.isa)
    spec = replace(spec, cores=spec.cores if info.on_cpu else ())
    description = Description(
        fingerprint(device, spec),
        str(spec),
        OPENCL,
        info.name,
        traits.block,
        index=spec.index,
        cores=spec.cores if traits.on_cpu else (),
        compute_units=traits.compute_units,
        registers=traits.registers,
        local_memory=traits.local_memory,
        group_items=traits.group_items,
        wave=traits.wave,
        item_registers=traits.item_registers,
        image_buffer=traits.image_buffer,
    )
    is_coherent = info.sharing is Sharing.COHERENT or (info.on_cpu and info.unified)
    processor = ProfiledProcessor(
        description,
        coherent=is_coherent,
        dtypes=stored_types(options),
        float_forms=wants_float_forms(options),
    )
    processor.spec = spec  # a device on the CPU has cores, also if its routines are those of a GPU
    return processor


def fingerprint(device: Device, spec: ProcessorSpec) -> str:
    """Key of a device's measurements: its driver, memory and size, the kernels, and the engine.

    Errors are those of `opencl_processor`.
    """
    info = _info(device, spec.index)
    driver = hashlib.sha256(f"{info.platform} {info.driver}".encode()).hexdigest()[:6]
    # GPUs of several sizes have one name.
    size = f"{len(spec.cores)} cores" if info.on_cpu else f"{info.compute_units} units"
    engine = f"kernels {sources_hash()} runner {engine_identity(device.isa)}"
    return f"opencl {info.name} [{driver}]|memory {info.sharing.name.lower()}, {size}|{engine}"


def _info(device: Device, index: int) -> DeviceInfo:
    """What a target's driver says of a device."""
    found = device.probe.opencl
    if index >= len(found):
        known = ", ".join(f"opencl:{number} ({one.name})" for number, one in enumerate(found))
        raise UsageError(f"{device.name} has no opencl:{index}: it has {known or _why_none(device.probe)}")
    one = found[index]
    return DeviceInfo(
        index=index,
        name=one.name,
        platform=one.platform,
        driver=one.driver,
        compute_units=max(1, one.compute_units),
        on_cpu=bool(one.on_cpu),
        unified=one.unified,
        fine_grained=one.fine_grained,
        atomics=False,
        command_times=True,
        scalar=one.scalar,
        usable=True,
        why_not="",
        local_memory=one.local_memory,
        group_items=one.group_items,
        vendor="" if one.on_cpu else vendor_name(one.name, one.vendor, one.platform),
        wave=one.wave,
        half_arithmetic=one.half_arithmetic,
        int8_dot=one.int8_dot,
        image=(one.image_width, one.image_height),
        image_buffer=one.image_buffer,
        allocation_bytes=one.allocation_bytes,
        address_bits=one.address_bits,
    )


def _why_none(probe: Probe) -> str:
    """Why a target has no OpenCL devices, and what to do."""
    if probe.is_static:
        return (
            "only static programs, which cannot open OpenCL; on Android set ANDROID_NDK_HOME, for QEMU QEMU_LD_PREFIX, other "
            "systems need glibc"
        )
    return f"no OpenCL device ({probe.opencl_error or 'its drivers list none'})"
