"""Backends: the kinds of queue that plans have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnstretch.devices.base.loading import LoadedQueues, LoadRequest
from nnstretch.devices.base.routine import StepKind


@dataclass(frozen=True)
class Backend:
    """A kind of queue: what planning, validation and cost models know of its queues.

    Attributes:
        name: stored in plans as the kind of a queue.
        description: what a queue of this kind is called in messages.
        step_kinds: kinds of the steps that such a queue runs.
        load: the queues of this kind in a plan that is being loaded.
        own_memory: whether tensors and constants lie in memory of the queue's own. All other queues work in host memory.
        serves_caller: whether the calling thread can serve such a queue, as it serves queue 0.
        launched_by_caller: whether the calling thread launches the queue's sub-graphs. Other queues have a thread each.
        changes_layouts: whether the queue has a routine that changes layouts. Queue 0 works for those that have none.
        runs_models: whether the queue computes by calls of another engine's models only: what lies between two joins becomes
            one call, with a cost to enter and to leave it.
        synchronises: whether a tensor that crosses to or from the queue costs a transfer.
        has_ratios: whether the queue's cores may have relative speeds.
    """

    name: str
    description: str
    step_kinds: tuple[StepKind, ...]
    load: Callable[[LoadRequest], LoadedQueues]
    own_memory: bool = False
    serves_caller: bool = False
    launched_by_caller: bool = False
    changes_layouts: bool = True
    runs_models: bool = False
    synchronises: bool = True
    has_ratios: bool = False

    def domain(self, queue: int) -> int:
        """The memory domain of queue number `queue` of this kind: 0 for host memory, else the queue itself."""
        return queue if self.own_memory else 0
