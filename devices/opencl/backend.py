"""OpenCL queues: in-order command queues of devices."""

from __future__ import annotations

from nnstretch.devices.base.backend import Backend

OPENCL = Backend(
    name="opencl",
    description="OpenCL queue",
    step_kinds=("opencl",),
    own_memory=True,
    launched_by_caller=True,
)
