"""The queues of a plan and the processors behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.devices.base.backend import Backend
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Routine
from nnstretch.scheduler.plan.schema import CALLER_QUEUE, PlanQueue, plan_queue


@dataclass(frozen=True)
class QueuePool:
    """The queues of a plan.

    Attributes:
        queues: as plans store them.
        processors: by queue; that of queue 0 changes layouts in host memory.
        queue_of: for every processor that the caller named the number of its queue.
    """

    queues: tuple[PlanQueue, ...]
    processors: tuple[Processor, ...]
    queue_of: tuple[int, ...]

    def reorders(self) -> dict[int, Routine]:
        """The routines that change layouts, by queue."""
        return {queue: p.reorder() for queue, p in enumerate(self.processors) if p.backend.changes_layouts}

    def reordering(self, queue: int) -> int:
        """The queue that changes layouts for a queue: itself if it can, else queue 0."""
        return queue if self.backend(queue).changes_layouts else 0

    def backend(self, queue: int) -> Backend:
        """The kind of a queue."""
        return self.processors[queue].backend


def queue_pool(processors: Sequence[Processor], host: Processor) -> QueuePool:
    """Queues for `processors`: the first that can serve the caller becomes queue 0; without one `host` does."""
    first = next((i for i, p in enumerate(processors) if p.backend.serves_caller), None)
    queues = [plan_queue(processors[first]) if first is not None else CALLER_QUEUE]
    behind = [processors[first] if first is not None else host]
    queue_of = [0] * len(processors)
    for i, processor in enumerate(processors):
        if i != first:
            queue_of[i] = len(queues)
            queues.append(plan_queue(processor))
            behind.append(processor)
    return QueuePool(tuple(queues), tuple(behind), tuple(queue_of))
