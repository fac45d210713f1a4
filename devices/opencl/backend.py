"""The kind of OpenCL queues. Apart from `queues`, so that sessions without OpenCL start faster."""

from __future__ import annotations

from nnstretch.devices.base.backend import Backend, LoadedQueues, LoadRequest


def _load(request: LoadRequest) -> LoadedQueues:
    from nnstretch.devices.opencl.queues import OpenCLQueues

    return OpenCLQueues(request)


OPENCL = Backend(
    name="opencl",
    description="OpenCL queue",
    step_kinds=("opencl",),
    load=_load,
    own_memory=True,
    launched_by_caller=True,
)
