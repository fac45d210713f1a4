"""OpenCL drivers and devices, and where torch trains."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import re
from collections.abc import Iterator
from importlib import import_module

from nnstretch.devices.opencl.discovery import failing_drivers, icd_files
from nnstretch.devices.opencl.drivers import probe
from nnstretch.devices.opencl.properties import DeviceInfo
from nnstretch.devices.opencl.traits import traits_of_gpu
from nnstretch.doctor.finding import Finding, State
from nnstretch.errors import NNStretchError, first_line

_INSTALL = "apt-get install pocl-opencl-icd (Debian, Ubuntu), or the driver of your GPU"
_TORCH_INDEX = "https://download.pytorch.org/whl"
"""Has an index of packages for each build of torch."""
_OF_INDEX = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")
"""Builds that have one there, as versions name them."""


def opencl() -> Iterator[Finding]:
    """The loader, every driver, and every device, tested with real kernels in processes of their own."""
    files = icd_files()
    if not files:
        yield Finding("OpenCL", State.NOTE, "no driver: groups of CPU cores are the only processors", _INSTALL)
        return
    try:
        failing = failing_drivers()
        devices = probe()
    except NNStretchError as error:
        yield Finding("OpenCL", State.PROBLEM, str(error), _INSTALL)
        return
    for file, reason in failing.items():
        yield Finding(
            f"OpenCL driver {file.stem}", State.NOTE, reason, f"update or remove the driver that {file} names"
        )
    for device in devices:
        subject, name = f"opencl:{device.index}", f"{device.name} ({device.platform})"
        if device.usable:
            yield Finding(subject, State.OK, f"{name}, {device.compute_units} compute units{_of_gpu(device)}")
        else:
            yield Finding(subject, State.NOTE, f"{name}: {device.why_not}", "update the driver")
    if not devices and not failing:
        yield Finding("OpenCL", State.NOTE, "drivers are installed, but have no device", _INSTALL)


def _of_gpu(device: DeviceInfo) -> str:
    """The traits of a GPU that tiles and work groups follow."""
    if device.on_cpu:
        return ""
    traits = traits_of_gpu(device)
    local = f"{traits.local_memory >> 10} KiB of local memory" if traits.local_memory else "no local memory"
    return f", waves of {traits.wave}, {traits.item_registers} registers per work item, {local}"


def torch() -> Iterator[Finding]:
    """Where trainings run."""
    try:
        import torch as library
    except ImportError:
        return  # the extra's own finding says so
    except OSError as error:  # a library of a CUDA build that is missing
        yield Finding("torch", State.PROBLEM, " ".join(str(error).split()), "install a CPU build of torch")
        return
    if library.cuda.is_available():
        names = ", ".join(library.cuda.get_device_name(i) for i in range(library.cuda.device_count()))
        yield Finding("torch", State.OK, f"{library.__version__}, trains on {names}")
    else:
        yield Finding("torch", State.OK, f"{library.__version__}, trains on the CPU")


def torchvision() -> Iterator[Finding]:
    """Whether torchvision is one for the torch beside it. Trainings do without its operators; modules of users may not."""
    try:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "torchvision")}
        import_module("torch")
    except (importlib.metadata.PackageNotFoundError, ImportError, OSError):
        return  # the extra's own finding, or that of torch, says so
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        pair = f"torchvision {versions['torchvision']} does not fit torch {versions['torch']}"
        found = f"{pair}: {first_line(error)}; modules of your own that import it fail"
        yield Finding("torchvision", State.NOTE, found, _matching_torchvision(versions["torch"]))
    else:
        yield Finding("torchvision", State.OK, f"{versions['torchvision']}, fits torch {versions['torch']}")


def _matching_torchvision(torch_version: str) -> str:
    """The command that installs the torchvision for a torch, which stays; each requires one torch, of the same build."""
    _, _, build = torch_version.partition("+")
    index = f" --index-url {_TORCH_INDEX}/{build}" if _OF_INDEX.fullmatch(build) else ""
    return f"pip uninstall -y torchvision && pip install torch=={torch_version} torchvision{index}"


def opencl_loader() -> Iterator[Finding]:
    """libOpenCL, which standalone models open by themselves."""
    name = ctypes.util.find_library("OpenCL")
    if name is None and icd_files():
        found = "no libOpenCL: standalone models cannot use OpenCL (Python has a loader of its own)"
        yield Finding("OpenCL loader", State.NOTE, found, "apt-get install ocl-icd-libopencl1")
