"""Predicted latency of whole networks: branches, transfers between segments, merging, and the head."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.branching.channels.scaling import UNSCALED, SkipInputs, TensorChannels, kept_counts
from nnstretch.branching.design.blueprint import SegmentChoice
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import make_design, stays_exact
from nnstretch.branching.latency.prediction import BranchPrediction, Prediction, SegmentPrediction
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.transform.merge import merged_channels

EVERYWHERE = -1
"""Home of a tensor that several processors have computed together."""


@dataclass(frozen=True)
class State:
    """What the cost of the remaining blocks depends on.

    Attributes:
        channels: of the input of the next block.
        exact: they are the original channels.
        home: index of the processor that holds them, or `EVERYWHERE`.
    """

    channels: int
    exact: bool
    home: int


def branch_seconds(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> list[list[float]]:
    """Seconds of every branch on its processor alone, without interpolation between layers.

    Args:
        latencies: predictions.
        choices: the segments of a network.
    """
    result = []
    states = _states(latencies, choices)
    reads = _reads(latencies, choices, states)
    for choice, state in zip(choices, states, strict=False):
        result.append(
            [
                latencies.branch_seconds(choice.segment, branch, state.channels, exact=state.exact, skips=reads)
                for branch in choice.branches
            ]
        )
    return result


def network_prediction(
    latencies: LatencyTable, choices: Sequence[SegmentChoice], branches: Sequence[Sequence[float]]
) -> Prediction:
    """Predicted latency of a network, part by part.

    Args:
        latencies: predictions.
        choices: its segments.
        branches: seconds of every branch alone, as `branch_seconds` gives them.
    """
    *states, last = _states(latencies, choices)
    reads = _reads(latencies, choices, [*states, last])
    parts = []
    for choice, state, seconds in zip(choices, states, branches, strict=True):
        group = [branch.processor for branch in choice.branches]
        transfer = transfer_seconds(latencies, choice.segment.first, state, group)
        fetch = min(transfer, latencies.fetch(choice.segment, state.channels, group))
        contended = [
            s * latencies.contention_factor(choice.segment, p, group) + fetch
            for s, p in zip(seconds, group, strict=True)
        ]
        made = tuple(itertools.starmap(BranchPrediction, zip(group, seconds, contended, strict=True)))
        parts.append(
            SegmentPrediction(transfer - fetch, made, latencies.merging(_written(latencies, choice, state, reads)))
        )
    return Prediction(tuple(parts), head_prediction(latencies, last, reads))


def predicted_design(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> tuple[Design, Prediction]:
    """The design of a network with its prediction, without interpolation between layers."""
    branches = branch_seconds(latencies, choices)
    prediction = network_prediction(latencies, choices, branches)
    branch_ms = [[1e3 * seconds for seconds in some] for some in branches]
    return make_design(latencies.blueprint, choices, branch_ms, 1e3 * prediction.seconds), prediction


def confirm(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> bool:
    """Lets the predictor measure the estimated layers of a network; returns whether a prediction changed."""
    blueprint = latencies.blueprint
    *states, last = _states(latencies, choices)
    reads = _reads(latencies, choices, [*states, last])
    changed = [
        latencies.confirm(
            blueprint.plan(choice.segment, branch),
            blueprint.counts(choice.segment, branch),
            state.channels,
            branch.processor,
            exact=state.exact,
            skips=reads,
        )
        for choice, state in zip(choices, states, strict=True)
        for branch in choice.branches
    ]
    head = kept_counts(blueprint.head, 1.0)
    changed += [
        latencies.confirm(blueprint.head, head, last.channels, processor, exact=last.exact, skips=reads)
        for processor in range(latencies.processors)
    ]
    return any(changed)


def _reads(latencies: LatencyTable, choices: Sequence[SegmentChoice], states: Sequence[State]) -> SkipInputs:
    """Channels each skip connection reads at each meeting point."""
    borders = [0, *(choice.segment.stop for choice in choices)]
    return {
        latencies.blueprint.boundary(border): TensorChannels(state.channels, state.exact)
        for border, state in zip(borders, states, strict=True)
    }


def _states(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> list[State]:
    """The state before every segment and before the head."""
    blueprint = latencies.blueprint
    states = [State(blueprint.channels_before(0), exact=True, home=0)]
    for number, choice in enumerate(choices):
        reads = _reads(latencies, choices[:number], states)
        written = [shape[1] for shape in _written(latencies, choice, states[-1], reads)]
        channels = merged_channels(blueprint.merge, written)
        home = choice.branches[0].processor if len(choice.branches) == 1 else EVERYWHERE
        states.append(State(channels, stays_exact(blueprint, choice.segment, written), home))
    return states


def _written(latencies: LatencyTable, choice: SegmentChoice, state: State, reads: SkipInputs) -> list[tuple[int, ...]]:
    """Shapes of the tensors that the branches of a segment write."""
    blueprint = latencies.blueprint
    return [
        latencies.shape_before(
            choice.segment.stop,
            blueprint.written(choice.segment, branch, state.channels, reads),
        )
        for branch in choice.branches
    ]


def transfer_seconds(latencies: LatencyTable, block: int, state: State, readers: Sequence[int]) -> float:
    """Seconds until `readers` can read the input of a block."""
    if set(readers) == {state.home}:
        return 0.0
    return latencies.meeting(block, state.channels)


def head_prediction(latencies: LatencyTable, state: State, skips: SkipInputs = UNSCALED) -> SegmentPrediction:
    """The head on the processor that finishes it first, transfer of its input included."""
    last = len(latencies.blueprint.traced.blocks)
    ways = []
    for processor in range(latencies.processors):
        seconds = latencies.head(state.channels, processor, exact=state.exact, skips=skips)
        alone = BranchPrediction(processor, seconds, seconds)
        ways.append(SegmentPrediction(transfer_seconds(latencies, last, state, [processor]), (alone,)))
    return min(ways, key=lambda way: way.seconds)
