"""Names the OpenCL driver in use in the line that a crash writes: kernels are compiled and run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nnstretch.devices.engine.binding.library import engine
from nnstretch.support.stderr_lines import stderr_lines_wanted

if TYPE_CHECKING:
    from nnstretch.devices.opencl.properties import DeviceInfo


def name_driver(info: DeviceInfo) -> None:
    """Names the driver of a device in the line that a crash of this process writes, if the program wants such lines."""
    if stderr_lines_wanted():
        engine().set_crash_line(
            f"while {_driver(info)} was in use; if the same command works without opencl:{info.index}, update that driver"
        )


@contextmanager
def compiling(info: DeviceInfo, source: str) -> Iterator[None]:
    """Names the driver that compiles a kernel file within the block."""
    if stderr_lines_wanted():
        engine().set_crash_line(
            f"while {_driver(info)} compiled {source}; update that driver, or leave opencl:{info.index} out of the processors"
        )
    try:
        yield
    finally:
        name_driver(info)


def _driver(info: DeviceInfo) -> str:
    return f"the OpenCL driver {info.platform} {info.driver} of opencl:{info.index} ({info.name})"
