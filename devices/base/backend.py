"""Backends: kinds of queue in a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnstretch.devices.base.loading import LoadedQueues, LoadRequest
from nnstretch.devices.base.routine import StepKind


@dataclass(frozen=True)
class Backend:
    """A kind of queue and the properties that planning, validation and cost models use.

    Attributes:
        name: stored in plans as the kind of a queue.
        description: name of the kind in messages.
        step_kinds: kinds of steps that the queue runs.
        load: loads all queues of this kind in a plan.
        own_memory: whether each queue has its own memory for tensors and constants; other queues use host memory.
        serves_caller: whether the calling thread can run such a queue, as it runs queue 0.
        launched_by_caller: whether the calling thread launches the queue's sub-graphs; other queues have a thread each.
        changes_layouts: whether the queue has a layout-change routine; if not, queue 0 changes layouts for it.
        runs_models: whether the queue only calls models of an external engine. All layers between two joins become one
            call, which has a cost of its own.
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
