"""OpenCL queues: in-order command queues of devices."""

from __future__ import annotations

from nnstretch.devices.base.backend import Backend
from nnstretch.devices.base.loading import LoadedQueues, LoadRequest


def _load(request: LoadRequest) -> LoadedQueues:
    from nnstretch.devices.opencl.queues import OpenCLQueues  # sessions without OpenCL start faster without pyopencl

    return OpenCLQueues(request)


OPENCL = Backend(
    name="opencl",
    description="OpenCL queue",
    step_kinds=("opencl",),
    load=_load,
    own_memory=True,
    launched_by_caller=True,
)
