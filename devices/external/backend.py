"""Call queues: threads that run models of external engines."""

from __future__ import annotations

from nnstretch.devices.base.backend import Backend
from nnstretch.devices.external.calls import CallQueues

CALLS = Backend(
    name="call",
    description="call queue",
    step_kinds=("call",),
    load=CallQueues,
    changes_layouts=False,
    runs_models=True,
)
