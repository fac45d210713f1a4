"""How messages name an OpenCL device and what its driver says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch.errors import DeviceError

if TYPE_CHECKING:
    from nnstretch.devices.opencl.properties import DeviceInfo


def device_text(index: int, info: DeviceInfo) -> str:
    """The device ``opencl:index``, as messages name it."""
    return f"OpenCL device {index} ({info.name})"


def first_line(error: Exception) -> str:
    """The first line of what a driver says; a build log follows it."""
    return str(error).strip().splitlines()[0]


def failure(device: str, what: str, error: Exception) -> DeviceError:
    """An error of a device in one line.

    Args:
        device: as `device_text` names it.
        what: it did, such as ``gave no queue``.
        error: that the driver or the host's memory raised.
    """
    return DeviceError(f"{device} {what}: {first_line(error)}")
