"""Predicted latency of whole networks: branches, transfers between segments, merging, and the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from nnstretch.branching.channels.scaling import TensorChannels, kept_counts
from nnstretch.branching.design.blueprint import BranchChoice, HeadChoice, SegmentChoice
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import make_design, stays_exact
from nnstretch.branching.latency.prediction import BranchPrediction, Prediction, SegmentPrediction
from nnstretch.branching.latency.split_layers import processor_groups
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.merge import merged_channels


@dataclass(frozen=True)
class State(TensorChannels):
    """What the cost of the remaining blocks depends on: the tensor that they read.

    Attributes:
        home: indices of the processors that hold it or have computed parts of it, ascending.
    """

    home: tuple[int, ...]


def branch_seconds(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> list[list[float]]:
    """Seconds of every branch on its processor alone, without interpolation between layers.

    Args:
        latencies: predictions.
        choices: the segments of a network.
    """
    states = states_before(latencies, choices)
    return [
        [latencies.branch_seconds(choice.segment, branch, states) for branch in choice.branches] for choice in choices
    ]


def network_prediction(
    latencies: LatencyTable,
    choices: Sequence[SegmentChoice],
    branches: Sequence[Sequence[float]],
    head: Sequence[HeadChoice] = (),
) -> Prediction:
    """Predicted latency of a network, part by part.

    Args:
        latencies: predictions.
        choices: its segments.
        branches: seconds of every branch alone, as `branch_seconds` gives them.
        head: branches of its head; empty: it is whole.
    """
    states = states_before(latencies, choices)
    parts = [_segment(latencies, choice, alone, states) for choice, alone in zip(choices, branches, strict=True)]
    return Prediction(tuple(parts), head_prediction(latencies, states, head))


def _segment(
    latencies: LatencyTable, choice: SegmentChoice, alone: Sequence[float], states: Mapping[fx.Node, State]
) -> SegmentPrediction:
    """Predicted seconds of a segment, from those of its branches alone and the states before it."""
    segment, group = choice.segment, [branch.processor for branch in choice.branches]
    state = states[latencies.blueprint.boundary(segment.first)]
    if choice.split:
        split = latencies.split(latencies.blueprint.whole(segment), choice.split, state.home, states)
        return _split_prediction(group[0], choice.split, split.seconds)
    transfer = transfer_seconds(latencies, segment.first, state, group)
    fetch = min(transfer, latencies.fetch(segment, state.channels, state.home, tuple(sorted(set(group)))))
    made = tuple(
        BranchPrediction(p, seconds, seconds * latencies.contention_factor(segment, p, group) + fetch)
        for p, seconds in zip(group, alone, strict=True)
    )
    merging = latencies.merging(segment.stop, _written(latencies, choice, states))
    return SegmentPrediction(transfer - fetch, made, merging)


def _split_prediction(processor: int, group: tuple[int, ...], seconds: float) -> SegmentPrediction:
    """Predicted seconds of layers that are split over a group of processors; their transfers are inside."""
    return SegmentPrediction(0.0, (BranchPrediction(processor, seconds, seconds),), split=group)


def predicted_design(
    latencies: LatencyTable, choices: Sequence[SegmentChoice], head: Sequence[HeadChoice] = ()
) -> tuple[Design, Prediction]:
    """The design of a network with its prediction, without interpolation between layers."""
    branches = branch_seconds(latencies, choices)
    prediction = network_prediction(latencies, choices, branches, head)
    branch_ms = [[1e3 * seconds for seconds in some] for some in branches]
    head_ms = [1e3 * branch.alone for branch in prediction.head.branches] if head else None
    total = 1e3 * prediction.seconds
    return make_design(latencies.blueprint, choices, branch_ms, total, head, head_ms), prediction


def confirm(latencies: LatencyTable, choices: Sequence[SegmentChoice], head: Sequence[HeadChoice] = ()) -> bool:
    """Lets the predictor measure the estimated layers of a network; returns whether a prediction changed."""
    blueprint, states = latencies.blueprint, states_before(latencies, choices)
    copies = [
        (blueprint.plan(choice.segment, branch), blueprint.counts(choice.segment, branch), branch.processor)
        for choice in choices
        for branch in choice.branches
    ]
    for branch in head:
        plan = blueprint.towers(branch.towers)
        copies.append((plan, kept_counts(plan, branch.width, blueprint.multiple), branch.processor))
    rest = blueprint.tail if head else blueprint.head
    if rest.nodes:
        copies += [(rest, kept_counts(rest, 1.0), processor) for processor in range(latencies.processors)]
    changed = [latencies.confirm(plan, counts, processor, states) for plan, counts, processor in copies]
    split = [(blueprint.whole(choice.segment), choice.split) for choice in choices if choice.split]
    changed += [latencies.confirm_split(plan, group, states) for plan, group in split]
    return any(changed)


@dataclass(frozen=True)
class _Way:
    """A way to compute the first segments of a network: their choices, the states before and after them, and the seconds."""

    choices: tuple[SegmentChoice, ...]
    states: dict[fx.Node, State]
    seconds: float

    def then(self, latencies: LatencyTable, choice: SegmentChoice) -> tuple[tuple[int, ...], _Way]:
        """The way with another segment, and where that leaves its result."""
        alone = [latencies.branch_seconds(choice.segment, branch, self.states) for branch in choice.branches]
        seconds = self.seconds + _segment(latencies, choice, alone, self.states).seconds
        state = _state_after(latencies, choice, self.states)
        states = {**self.states, latencies.blueprint.boundary(choice.segment.stop): state}
        return state.home, _Way((*self.choices, choice), states, seconds)


def placed(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> tuple[SegmentChoice, ...]:
    """The segments of a network; those without branches are whole on a processor, or split, such that the network takes least.

    The scheduler decides this in the same way when it plans the network, whichever processor a choice names. By dynamic
    programming over where the input of a segment lies.
    """
    ways: dict[tuple[int, ...], _Way] = {(0,): _Way((), _first_states(latencies), 0.0)}
    for choice in choices:
        places = [choice] if len(choice.branches) > 1 else _places(latencies, choice.segment)
        reached: dict[tuple[int, ...], _Way] = {}
        for way in ways.values():
            for place in places:
                home, longer = way.then(latencies, place)
                if home not in reached or longer.seconds < reached[home].seconds:
                    reached[home] = longer
        ways = reached
    return min(ways.values(), key=lambda way: way.seconds + head_prediction(latencies, way.states).seconds).choices


def _places(latencies: LatencyTable, segment: Segment) -> list[SegmentChoice]:
    """The ways to run a segment without branches."""
    processors = range(latencies.processors)
    whole = [SegmentChoice(segment, (BranchChoice.whole(segment, processor),)) for processor in processors]
    groups = processor_groups(processors) if latencies.splits else ()
    return [*whole, *(SegmentChoice.split_over(segment, group) for group in groups)]


def states_before(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> dict[fx.Node, State]:
    """The state before every segment and before the head, by the tensor that is read there."""
    states = _first_states(latencies)
    for choice in choices:
        states[latencies.blueprint.boundary(choice.segment.stop)] = _state_after(latencies, choice, states)
    return states


def _first_states(latencies: LatencyTable) -> dict[fx.Node, State]:
    """The state before the first segment."""
    blueprint = latencies.blueprint
    return {blueprint.boundary(0): State(blueprint.channels_before(0), exact=True, home=(0,))}


def _state_after(latencies: LatencyTable, choice: SegmentChoice, states: Mapping[fx.Node, State]) -> State:
    """The state after a segment."""
    blueprint = latencies.blueprint
    written = _written(latencies, choice, states)
    home = tuple(sorted({branch.processor for branch in choice.branches}))
    if choice.split:
        source = states[blueprint.boundary(choice.segment.first)]
        home = latencies.split(blueprint.whole(choice.segment), choice.split, source.home, states).home
    exact = stays_exact(blueprint, choice.segment, written)
    return State(merged_channels(blueprint.merge, written), exact, home)


def _written(latencies: LatencyTable, choice: SegmentChoice, states: Mapping[fx.Node, State]) -> list[int]:
    """Channels that the branches of a segment write."""
    return [latencies.blueprint.written(choice.segment, branch, states) for branch in choice.branches]


def transfer_seconds(latencies: LatencyTable, block: int, state: State, readers: Sequence[int]) -> float:
    """Seconds until `readers` can read the input of a block."""
    return latencies.meeting(block, state.channels, state.home, tuple(sorted(set(readers))))


def head_prediction(
    latencies: LatencyTable, states: Mapping[fx.Node, State], head: Sequence[HeadChoice] = ()
) -> SegmentPrediction:
    """The head: its branches and what follows them, or all of it on the processor that finishes it first, or split.

    The transfer of its input is included.

    Args:
        latencies: predictions.
        states: by the tensor that is read; the one of the head's source among them.
        head: branches; empty: it is whole.
    """
    if head:
        group = [branch.processor for branch in head]
        alone = [latencies.towers(branch, states) for branch in head]
        made = tuple(
            BranchPrediction(processor, seconds, seconds * latencies.head_contention_factor(processor, group))
            for processor, seconds in zip(group, alone, strict=True)
        )
        rest = latencies.head_meeting(tuple(sorted(set(group)))) + latencies.tail(states)
        return SegmentPrediction(head_transfer(latencies, states, group), made, rest)
    last, state = len(latencies.blueprint.traced.blocks), states[latencies.blueprint.head.source]
    ways = []
    for processor in range(latencies.processors):
        seconds = latencies.head(processor, states)
        whole = BranchPrediction(processor, seconds, seconds)
        ways.append(SegmentPrediction(transfer_seconds(latencies, last, state, [processor]), (whole,)))
    fastest = min(ways, key=lambda way: way.seconds)
    for spread in processor_groups(range(latencies.processors)) if latencies.splits else ():
        cost = latencies.split_near(latencies.blueprint.head, spread, state.home, state)
        ways.append(_split_prediction(fastest.branches[0].processor, spread, cost.seconds))
    return min(ways, key=lambda way: way.seconds)


def head_transfer(latencies: LatencyTable, states: Mapping[fx.Node, State], group: Sequence[int]) -> float:
    """Seconds until a group of processors can read the head's source."""
    last = len(latencies.blueprint.traced.blocks)
    return transfer_seconds(latencies, last, states[latencies.blueprint.head.source], group)
