"""The space of one processor alone, and its costs in the space of all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.selection_problem import selection_problem
from nnstretch.scheduler.plan.schema import queue_pool
from nnstretch.scheduler.planner import ChoiceSpace
from nnstretch.scheduler.simulation.timing import InterferenceModel


def only(space: ChoiceSpace, queue: int) -> ChoiceSpace | None:
    """The space of one queue's processor alone, where fallbacks run on the host.

    None if it cannot compute everything, or if transfers depend on the queue of the caller.
    """
    if space.costs.all_cross:
        return None
    processor = space.pool.processors[queue]
    host = processor if processor.backend.serves_caller else space.host
    pool = queue_pool([processor], host)
    choices = [
        [
            replace(choice, queue=0 if unit.is_fallback else pool.queue_of[0])
            for choice in options
            if unit.is_fallback or choice.queue == queue
        ]
        for unit, options in zip(space.graph.units, space.choices, strict=True)
    ]
    if not all(choices):
        return None
    problem = selection_problem(space.graph, choices, pool, space.costs)
    return replace(space, pool=pool, host=host, choices=choices, problem=problem)


def with_costs(space: ChoiceSpace, queue: int, single: ChoiceSpace) -> ChoiceSpace:
    """The space with the costs of a queue's choices taken from the space of its processor alone."""
    choices: list[list[Choice]] = []
    for old, new in zip(space.choices, single.choices, strict=True):
        fresh = iter(new)
        choices.append([replace(c, seconds=next(fresh).seconds) if c.queue == queue else c for c in old])
    return space.with_seconds(choices)


@dataclass(frozen=True)
class RelabelledInterference:
    """Interference of a plan of one processor, whose queues have other numbers.

    Attributes:
        interference: between the queues of all processors.
        names: number of a queue in the plan -> its number among all.
    """

    interference: InterferenceModel
    names: dict[int, int]

    @property
    def whole_tensors(self) -> bool:
        """As in the original."""
        return self.interference.whole_tensors

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        """Between the queues by their original numbers."""
        return self.interference.transfer_seconds(self._name(queue), frozenset(map(self._name, others)), size)

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        """1: a single queue works alone."""
        return 1.0

    def _name(self, queue: int) -> int:
        return self.names.get(queue, 0)
