"""Dynamic programming over the chain of blocks: the fastest network for every number of MACs.

A state holds everything on which the cost of the rest of the network depends: the block reached, the channels
of its input, whether they are the original ones, and which processor holds them. For every state and number
of MACs, in steps of a thousandth of the original's, the fastest way is kept. The result is optimal for the
predictions on the given search space, up to the rounding of MACs. Skip connections are not part of the state:
the search assumes that they have their original channels; `network_prediction` uses their real ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nnstretch.branching.channels.scaling import UNSCALED, SkipInputs, TensorChannels, kept_counts
from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.design.from_choices import make_design, original_cost, stays_exact
from nnstretch.branching.latency.prediction import BranchPrediction, Prediction, SegmentPrediction
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import SegmentCandidate
from nnstretch.branching.tracing.trace import Segment, TracedNetwork
from nnstretch.branching.transform.merge import merged_channels

_STEPS = 1000  # of MACs, per original network
_MOST = 2.0  # maximum MACs over the original's

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


CandidateSource = Callable[[Segment, State], Sequence[SegmentCandidate]]
"""Candidates to branch a segment from a state."""


@dataclass(frozen=True)
class NetworkCandidate:
    """A whole network.

    Attributes:
        choices: its segments.
        seconds: predicted latency.
        macs: for one sample, rounded to steps.
    """

    choices: tuple[SegmentChoice, ...]
    seconds: float
    macs: int


@dataclass(frozen=True)
class _Transition:
    """A segment computed in one way from a state."""

    state: State
    segment: Segment
    candidate: SegmentCandidate


@dataclass
class _Label:
    """The fastest ways to a state, one per number of MACs.

    Attributes:
        seconds: by number of MAC steps; infinite where there is no way.
        moves: last transition of each way, as an index into the list of transitions.
        before: MAC steps before that transition.
    """

    seconds: npt.NDArray[np.float64]
    moves: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]

    @staticmethod
    def empty(size: int) -> _Label:
        return _Label(np.full(size, np.inf), np.full(size, -1, np.int64), np.zeros(size, np.int64))

    def reach(self, other: _Label, seconds: float, steps: int, move: int) -> None:
        """Extends all ways of `other` by one transition and keeps those that are faster."""
        end = len(other.seconds) - steps
        if end <= 0:
            return
        offered = other.seconds[:end] + seconds
        better = np.flatnonzero(offered < self.seconds[steps:])
        self.seconds[better + steps] = offered[better]
        self.moves[better + steps] = move
        self.before[better + steps] = better


@dataclass(eq=False)
class DynamicProgram:
    """The dynamic program for one search space.

    Attributes:
        latencies: predictions.
        segments: segments that may be branched, by their first block.
        candidates: ways to branch a segment from a state.
        transitions: number of transitions evaluated.
    """

    latencies: LatencyTable
    segments: Mapping[int, Sequence[Segment]]
    candidates: CandidateSource
    transitions: int = 0
    _labels: list[dict[State, _Label]] = field(default_factory=list)
    _moves: list[_Transition] = field(default_factory=list)
    _unit: float = 1.0

    def run(self, progress: Callable[[int, int], None]) -> list[NetworkCandidate]:
        """The front of latency and MACs over networks with at least one branched segment, in order of MACs.

        Args:
            progress: called with the blocks done and their total.
        """
        blueprint = self.latencies.blueprint
        count = len(blueprint.traced.blocks)
        self._unit = max(original_cost(blueprint).macs / _STEPS, 1.0)
        size = round(_STEPS * _MOST)
        self._labels = [{} for _ in range(count + 1)]
        start = _Label.empty(size)
        start.seconds[0] = 0.0
        self._labels[0][State(blueprint.channels_before(0), exact=True, home=0)] = start
        for block in range(count):
            progress(block, count)
            for state, label in list(self._labels[block].items()):
                self._whole(block, state, label)
                for segment in self.segments.get(block, ()):
                    self._branched(segment, state, label)
        progress(count, count)
        return self._front(count)

    def _whole(self, block: int, state: State, label: _Label) -> None:
        """Transitions that compute the original block on one processor."""
        latencies, segment = self.latencies, Segment(block, block + 1)
        written = latencies.blueprint.channels_before(segment.stop)
        for processor in range(latencies.processors):
            choice = BranchChoice.whole(segment, processor)
            cost = latencies.branch(segment, choice, state.channels, exact=state.exact)
            candidate = SegmentCandidate((choice,), cost.seconds, cost.macs, (cost.channels,), cost.channels)
            self._move(segment, state, label, candidate, State(written, exact=True, home=processor))

    def _branched(self, segment: Segment, state: State, label: _Label) -> None:
        """Transitions that branch a segment."""
        for candidate in self.candidates(segment, state):
            exact = self.latencies.blueprint.merge is not Merge.CONCAT
            self._move(segment, state, label, candidate, State(candidate.channels, exact=exact, home=EVERYWHERE))

    def _move(self, segment: Segment, state: State, label: _Label, candidate: SegmentCandidate, to: State) -> None:
        self.transitions += 1
        readers = [branch.processor for branch in candidate.branches]
        seconds = transfer_seconds(self.latencies, segment.first, state, readers) + candidate.seconds
        if to.home == EVERYWHERE:
            seconds += self._merge_seconds(segment.stop, candidate)
        if not math.isfinite(seconds):
            return
        labels = self._labels[segment.stop]
        if to not in labels:
            labels[to] = _Label.empty(len(label.seconds))
        labels[to].reach(label, seconds, round(candidate.macs / self._unit), len(self._moves))
        self._moves.append(_Transition(state, segment, candidate))

    def _merge_seconds(self, block: int, candidate: SegmentCandidate) -> float:
        """Seconds of merging the branches' outputs."""
        shapes = [self.latencies.shape_before(block, channels) for channels in candidate.parts]
        return self.latencies.merging(shapes)

    def _front(self, count: int) -> list[NetworkCandidate]:
        """The fastest branched network for every number of MACs, without those that are slower and have fewer MACs."""
        ends = []
        for state, label in self._labels[count].items():
            head = head_prediction(self.latencies, state).seconds
            ends += [(label.seconds[i] + head, -i, state) for i in np.flatnonzero(np.isfinite(label.seconds)).tolist()]
        ends.sort(key=lambda end: end[:2])
        front, most = [], -1
        for seconds, steps, state in ends:
            if -steps > most:
                choices = self._path(count, state, -steps)
                if any(len(choice.branches) > 1 for choice in choices):
                    most = -steps
                    front.append(NetworkCandidate(choices, float(seconds), round(most * self._unit)))
        return front[::-1]

    def _path(self, block: int, state: State, steps: int) -> tuple[SegmentChoice, ...]:
        """The segments on the way to a state; adjacent segments on one processor are merged."""
        choices: list[SegmentChoice] = []
        while block:
            label = self._labels[block][state]
            move = self._moves[label.moves[steps]]
            steps = int(label.before[steps])
            block, state = move.segment.first, move.state
            choices.append(SegmentChoice(move.segment, move.candidate.branches))
        return _merged(self.latencies.blueprint.traced, choices[::-1])


def _merged(traced: TracedNetwork, choices: Sequence[SegmentChoice]) -> tuple[SegmentChoice, ...]:
    merged: list[SegmentChoice] = []
    for choice in choices:
        last = merged[-1] if merged else None
        alone = last is not None and len(choice.branches) == len(last.branches) == 1
        segment = Segment(last.segment.first if last else choice.segment.first, choice.segment.stop)
        one = last is not None and alone and choice.branches[0].processor == last.branches[0].processor
        if one and traced.is_self_contained(segment):
            merged[-1] = SegmentChoice(segment, (BranchChoice.whole(segment, choice.branches[0].processor),))
        else:
            merged.append(choice)
    return tuple(merged)


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
