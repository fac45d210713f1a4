"""Arrangements: which replica groups compute the inputs in flight, and their predicted rates.

A replica group is one or more processors that compute inputs by one plan. The two extremes are:

- *apart*: every processor is a group and computes whole inputs by the plan that is best for it alone. Rates
add up, and no
  processor waits for another. The cores of one CPU may be divided among groups.
- *together*: all processors are one group, and its plan spreads every input over them. A processor that would
wait at a join
  computes another input instead. The busiest processor sets the rate.

On equal processors *apart* wins: *together* has the same rate at best, and pays for joins and uneven shares.
*Together* wins where processors are good at different layers. The step costs of the plans predict which one
is faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan, known_sum

_MARGIN = 0.03
"""Prediction error: an arrangement replaces an earlier one only if its predicted rate is higher by this share."""


@dataclass(frozen=True)
class ReplicaGroup:
    """Processors that compute inputs by one plan.

    Attributes:
        compiled: the plan with its constants. Groups with the same `compiled` share its weights.
        streams: number of inputs in flight.
        latency: predicted seconds of one input alone; None if nothing was measured.
        contention_factor: time of a queue while all groups work over its time alone; at least 1.
        sources: OpenCL sources from a package, built instead of the installed ones.
    """

    compiled: Compiled
    streams: int = 1
    latency: float | None = None
    contention_factor: float = 1.0
    sources: Mapping[str, str] | None = None

    @property
    def processors(self) -> tuple[str, ...]:
        """Names of the processors that compute something."""
        return working(self.compiled.plan)

    @property
    def interval(self) -> float | None:
        """Predicted seconds between the ends of two inputs while all streams have work."""
        busy = busy_seconds(self.compiled.plan)
        if self.latency is None or busy is None:
            return None
        return max(self.latency / self.streams, *busy.values()) * self.contention_factor

    @property
    def rate(self) -> float | None:
        """Predicted inputs per second while all streams have work."""
        return None if self.interval is None else 1 / self.interval

    @property
    def duration(self) -> float | None:
        """Predicted seconds from begin to end of an input while all streams have work."""
        return None if self.interval is None else self.interval * self.streams


@dataclass(frozen=True)
class Arrangement:
    """Replica groups that take inputs from one queue of work."""

    name: str
    groups: tuple[ReplicaGroup, ...]

    @property
    def streams(self) -> int:
        """Number of inputs in flight."""
        return sum(group.streams for group in self.groups)

    @property
    def rate(self) -> float | None:
        """Predicted inputs per second; None if nothing was measured."""
        return known_sum(group.rate for group in self.groups)

    @property
    def duration(self) -> float | None:
        """Predicted seconds from begin to end of an input on the slowest group while all streams have work.

        None if nothing was measured.
        """
        durations = [group.duration for group in self.groups]
        known = [seconds for seconds in durations if seconds is not None]
        return max(known) if len(known) == len(durations) else None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of all plans; shared weights count once."""
        plans = {id(group.compiled.weights): group.compiled.plan for group in self.groups}
        return sum(size for plan in plans.values() for _, size in plan.constant_ranges.values())

    @property
    def stream_bytes(self) -> int:
        """Bytes of intermediate tensors of all streams."""
        return sum(group.streams * state_bytes(group.compiled.plan) for group in self.groups)

    def with_streams(self, streams: int) -> Arrangement:
        """The arrangement for a number of streams.

        If there are more groups than streams, the fastest ones are kept. Spare streams are given to groups in
        turn. A group of one processor gets two at most: the second one keeps it busy while the answer of the
        first is returned.
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
    """The arrangement with the highest predicted rate; the earlier of two whose rates are close or unknown."""
    best = candidates[0]
    for candidate in candidates[1:]:
        if best.rate is not None and candidate.rate is not None and candidate.rate > best.rate * (1 + _MARGIN):
            best = candidate
    return best


def relocated(compiled: Compiled, processor: str, cores: tuple[int, ...]) -> Compiled:
    """The same plan on other cores of the CPU, with the same constants.

    Args:
        compiled: a plan with a single host queue.
        processor: name of the processor to run it on.
        cores: of that processor; as many as the plan has.
    """
    (queue,) = compiled.plan.queues
    queues = (replace(queue, processor=processor, cores=cores),)
    return replace(compiled, plan=replace(compiled.plan, queues=queues))


def working(plan: Plan) -> tuple[str, ...]:
    """Names of the processors that compute something in a plan."""
    queues = dict.fromkeys(subgraph.queue for subgraph in plan.subgraphs if subgraph.count)
    return tuple(plan.queues[queue].processor for queue in sorted(queues) if plan.queues[queue].processor)


def busy_seconds(plan: Plan) -> Mapping[int, float] | None:
    """Seconds that each queue computes for one input, by the costs of its steps; None if the plan has no costs.

    Unmeasured steps of a host queue that only serves a device count as zero.
    """
    if plan.predicted_ms is None:
        return None
    busy = dict.fromkeys(range(len(plan.queues)), 0.0)
    for subgraph in plan.subgraphs:
        steps = plan.steps[subgraph.first : subgraph.first + subgraph.count]
        busy[subgraph.queue] += sum(step.cost_ms or 0.0 for step in steps) * 1e-3
    return busy


def state_bytes(plan: Plan) -> int:
    """Bytes of the intermediate tensors of one stream."""
    return plan.host_bytes + sum(plan.shared_bytes) + sum(plan.device_bytes.values())
