"""Host queues: thread pools that run the native engine's kernels."""

from __future__ import annotations

from nnstretch.devices.base.backend import Backend, LoadableStep, LoadedQueues, LoadRequest, StepTarget
from nnstretch.devices.engine.binding.image import Queue, QueueKind
from nnstretch.devices.external.calls import open_call


class HostQueues(LoadedQueues):
    """Thread pools of the engine. Their steps are native kernels or calls of external engines."""

    def __init__(self, request: LoadRequest) -> None:
        self._request = request

    def engine_queue(self, queue: int) -> Queue:
        mine = self._request.queues[queue]
        return Queue(QueueKind.HOST, mine.cores, None, mine.ratios, mine.processor or "host")

    def step(self, queue: int, step: LoadableStep) -> StepTarget:
        if step.kind == "call":
            return open_call(step, self._request.queues[queue].cores)
        return self._request.native.find(step.kernel)


HOST = Backend(
    name="host",
    description="host queue",
    step_kinds=("kernel", "call"),
    load=HostQueues,
    serves_caller=True,
    synchronises=False,
    has_ratios=True,
)
