"""Access to the OpenCL side of sessions."""

from __future__ import annotations

from nnstretch.devices.opencl.queues import OpenCLQueues
from nnstretch.scheduler.runtime.session import PlanSession


def opencl_queues(session: PlanSession) -> OpenCLQueues:
    """The OpenCL queues of a session."""
    queues = session._loaded.queues["opencl"]
    assert isinstance(queues, OpenCLQueues)
    return queues
