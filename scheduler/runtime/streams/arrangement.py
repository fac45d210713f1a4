"""Who computes which inputs when several are on their way: groups of processors, and what is predicted of them.

A group is one processor or several that compute inputs by one plan. Two ways lie at the ends:

- *apart*: every processor is a group of its own and computes whole inputs by the plan that is best for it alone. Rates add
  up, and nobody ever waits for anybody. Cores of one CPU may be divided among groups, too.
- *together*: all processors are one group, whose plan spreads every input over them. With several inputs on their way no
  processor waits at meeting points, it computes for another input meanwhile; the busiest processor sets the rate.

For equal processors the rates are the same at best, and apart wins, since together pays for meetings and never shares work out
evenly. Together wins where processors are good at different layers: then each gets what it is better at, while apart
every processor computes everything. So it is a matter of prediction, by the plans' own step costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nnstretch.scheduler.costmodel.totals import known_sum
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan

_MARGIN = 0.03
"""Share by which an arrangement must be predicted to be faster than one that stands before it: what predictions miss by."""


@dataclass(frozen=True)
class ReplicaGroup:
    """Processors that compute inputs by one plan.

    Attributes:
        compiled: the plan with its constants. ReplicaGroups that have the same one share its weights.
        streams: how many inputs it has on their way.
        latency: seconds that one input takes alone, as predicted; None if nothing was measured.
        contention_factor: how many times as long queues take while all groups work; at least 1.
        sources: OpenCL sources to build instead of the installed ones (of a package).
    """

    compiled: Compiled
    streams: int = 1
    latency: float | None = None
    contention_factor: float = 1.0
    sources: Mapping[str, str] | None = None

    @property
    def processors(self) -> tuple[str, ...]:
        """Names of the processors that have something to compute."""
        return working(self.compiled.plan)

    @property
    def interval(self) -> float | None:
        """Seconds from one input's end to the next one's while all streams have work, as predicted."""
        busy = busy_seconds(self.compiled.plan)
        if self.latency is None or busy is None:
            return None
        return max(self.latency / self.streams, *busy.values()) * self.contention_factor

    @property
    def rate(self) -> float | None:
        """Inputs per second then."""
        return None if self.interval is None else 1 / self.interval

    @property
    def duration(self) -> float | None:
        """Seconds that every input is on its way then."""
        return None if self.interval is None else self.interval * self.streams


@dataclass(frozen=True)
class Arrangement:
    """ReplicaGroups that take inputs from one queue."""

    name: str
    groups: tuple[ReplicaGroup, ...]

    @property
    def streams(self) -> int:
        """Inputs on their way at a time."""
        return sum(group.streams for group in self.groups)

    @property
    def rate(self) -> float | None:
        """Inputs per second as predicted; None if nothing was measured."""
        return known_sum(group.rate for group in self.groups)

    @property
    def weight_bytes(self) -> int:
        """Of all plans that differ."""
        plans = {id(group.compiled.weights): group.compiled.plan for group in self.groups}
        return sum(size for plan in plans.values() for _, size in plan.constant_ranges.values())

    @property
    def stream_bytes(self) -> int:
        """What all streams take together for what lies between input and output."""
        return sum(group.streams * state_bytes(group.compiled.plan) for group in self.groups)

    def with_streams(self, streams: int) -> Arrangement:
        """The arrangement for a number of streams: the fastest groups where there are more, and spare streams shared out.

        A second stream keeps a group busy while the first one's answer is handed over; one processor has no use for more.
        """
        groups = sorted(self.groups, key=lambda group: group.latency or math.inf)[:streams]
        kept = [group for group in self.groups if group in groups]
        spare = streams - len(kept)
        for turn in range(spare):
            number = turn % len(kept)
            group = kept[number]
            if group.streams < (2 if len(group.processors) < 2 else streams):
                kept[number] = replace(group, streams=group.streams + 1)
        return replace(self, groups=tuple(kept))


def choose(candidates: Sequence[Arrangement]) -> Arrangement:
    """The one with the highest predicted rate; an earlier one where a later one is not clearly faster, or not measured."""
    best = candidates[0]
    for candidate in candidates[1:]:
        if best.rate is not None and candidate.rate is not None and candidate.rate > best.rate * (1 + _MARGIN):
            best = candidate
    return best


def relocated(compiled: Compiled, processor: str, cores: tuple[int, ...]) -> Compiled:
    """A plan for one CPU on another one like it, with the same constants.

    Args:
        compiled: its only queue is a CPU's.
        processor: name of the other one.
        cores: of the other one, as many.
    """
    (queue,) = compiled.plan.queues
    queues = (replace(queue, processor=processor, cores=cores),)
    return replace(compiled, plan=replace(compiled.plan, queues=queues))


def working(plan: Plan) -> tuple[str, ...]:
    """Names of the processors that have something to compute in a plan."""
    queues = dict.fromkeys(subgraph.queue for subgraph in plan.subgraphs if subgraph.count)
    return tuple(plan.queues[queue].processor for queue in sorted(queues) if plan.queues[queue].processor)


def busy_seconds(plan: Plan) -> Mapping[int, float] | None:
    """Seconds that each queue computes for one input, by the costs of its steps; None if a step has none.

    Steps of a host that only serves a device have no cost where nothing is measured there, and count as nothing.
    """
    if plan.predicted_ms is None:
        return None
    busy = dict.fromkeys(range(len(plan.queues)), 0.0)
    for subgraph in plan.subgraphs:
        steps = plan.steps[subgraph.first : subgraph.first + subgraph.count]
        busy[subgraph.queue] += sum(step.cost_ms or 0.0 for step in steps) * 1e-3
    return busy


def state_bytes(plan: Plan) -> int:
    """Memory that one stream takes for what lies between its input and output."""
    return plan.host_bytes + sum(plan.shared_bytes) + sum(plan.device_bytes.values())
