"""Host queues: thread pools that run the native engine's kernels."""

from __future__ import annotations

from nnstretch.devices.base.backend import Backend
from nnstretch.devices.cpu.queues import HostQueues

HOST = Backend(
    name="host",
    description="host queue",
    step_kinds=("kernel", "call"),
    load=HostQueues,
    serves_caller=True,
    synchronises=False,
    has_ratios=True,
)
