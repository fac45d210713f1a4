"""The fastest whole networks for every amount of MACs, made of ways to branch segments (dynamic programming).

A state is what the rest of the network depends on: up to which block it is computed, how many channels are read there, whether
they are the original ones, and where they are. For every state and number of MACs in steps of a thousandth of the original's
the fastest way is kept, so that the result is optimal for the predictions on the grid of widths and depths, but for the
rounding of MACs to steps. What is read past a block, as by the heads of detectors, is no part of a state: on the way it is
taken to have the channels that it had; predictions of whole networks know how many it has.
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

_STEPS = 1000
_MOST = 2.0  # MACs over the original's; designs beyond are left out

EVERYWHERE = -1
"""Home of a tensor that several processors have computed."""


@dataclass(frozen=True)
class State:
    """What follows a boundary depends on this: channels read, whether they are the original ones, and their home."""

    channels: int
    exact: bool
    home: int


CandidateSource = Callable[[Segment, State], Sequence[SegmentCandidate]]
"""Ways to branch a segment that reads a state's channels."""


@dataclass(frozen=True)
class NetworkCandidate:
    """A whole network: its segments, predicted seconds, and MACs."""

    choices: tuple[SegmentChoice, ...]
    seconds: float
    macs: int


@dataclass(frozen=True)
class _Move:
    """A segment that follows on a state."""

    state: State
    segment: Segment
    option: SegmentCandidate


@dataclass
class _Label:
    """The fastest ways to a state, one per number of MACs.

    Attributes:
        seconds: by number of steps of MACs; infinite where there is no way.
        moves: the last move of each, as a position in the list of moves.
        before: the steps of MACs that it came from.
    """

    seconds: npt.NDArray[np.float64]
    moves: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]

    @staticmethod
    def empty(size: int) -> _Label:
        return _Label(np.full(size, np.inf), np.full(size, -1, np.int64), np.zeros(size, np.int64))

    def reach(self, other: _Label, seconds: float, steps: int, move: int) -> None:
        """Offers all ways of `other` with one more move."""
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
    """Joins segments.

    Attributes:
        latencies: predictions.
        segments: stretches that may be branched, by their first block.
        options: ways to branch them.
        transitions: transitions that were evaluated.
    """

    latencies: LatencyTable
    segments: Mapping[int, Sequence[Segment]]
    options: CandidateSource
    transitions: int = 0
    _labels: list[dict[State, _Label]] = field(default_factory=list)
    _moves: list[_Move] = field(default_factory=list)
    _unit: float = 1.0

    def run(self, progress: Callable[[int, int], None]) -> list[NetworkCandidate]:
        """The front of fastest networks, MACs ascending; every one has a branched segment."""
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
        """The block as it was, on each of the processors."""
        latencies, segment = self.latencies, Segment(block, block + 1)
        written = latencies.blueprint.channels_before(segment.stop)
        for processor in range(latencies.processors):
            choice = BranchChoice.whole(segment, processor)
            cost = latencies.branch(segment, choice, state.channels, exact=state.exact)
            option = SegmentCandidate((choice,), cost.seconds, cost.macs, (cost.channels,), cost.channels)
            self._move(segment, state, label, option, State(written, exact=True, home=processor))

    def _branched(self, segment: Segment, state: State, label: _Label) -> None:
        for option in self.options(segment, state):
            exact = self.latencies.blueprint.merge is not Merge.CONCAT
            self._move(segment, state, label, option, State(option.channels, exact=exact, home=EVERYWHERE))

    def _move(self, segment: Segment, state: State, label: _Label, option: SegmentCandidate, to: State) -> None:
        self.transitions += 1
        readers = [branch.processor for branch in option.branches]
        seconds = transfer_seconds(self.latencies, segment.first, state, readers) + option.seconds
        if to.home == EVERYWHERE:
            seconds += self._joining(segment.stop, option)
        if not math.isfinite(seconds):
            return
        labels = self._labels[segment.stop]
        if to not in labels:
            labels[to] = _Label.empty(len(label.seconds))
        labels[to].reach(label, seconds, round(option.macs / self._unit), len(self._moves))
        self._moves.append(_Move(state, segment, option))

    def _joining(self, block: int, option: SegmentCandidate) -> float:
        """Seconds of putting the branches' channels together."""
        shapes = [self.latencies.shape_before(block, channels) for channels in option.parts]
        return self.latencies.merging(shapes)

    def _front(self, count: int) -> list[NetworkCandidate]:
        """Of every number of MACs the fastest network with a branch, slower ones with fewer MACs left out."""
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
        """The segments on the way to a state; neighbours that stay whole on one processor are one."""
        choices: list[SegmentChoice] = []
        while block:
            label = self._labels[block][state]
            move = self._moves[label.moves[steps]]
            steps = int(label.before[steps])
            block, state = move.segment.first, move.state
            choices.append(SegmentChoice(move.segment, move.option.branches))
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
    """Seconds of every branch on its processor alone, every layer asked for as it will be."""
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
    """What every part of a network takes whose branches take so many seconds alone."""
    *states, last = _states(latencies, choices)
    reads = _reads(latencies, choices, [*states, last])
    parts = []
    for choice, state, seconds in zip(choices, states, branches, strict=True):
        group = [branch.processor for branch in choice.branches]
        handed = transfer_seconds(latencies, choice.segment.first, state, group)
        fetch = min(handed, latencies.fetch(choice.segment, state.channels, group))
        beside = [
            s * latencies.contention_factor(choice.segment, p, group) + fetch
            for s, p in zip(seconds, group, strict=True)
        ]
        made = tuple(itertools.starmap(BranchPrediction, zip(group, seconds, beside, strict=True)))
        parts.append(
            SegmentPrediction(handed - fetch, made, latencies.merging(_written(latencies, choice, state, reads)))
        )
    return Prediction(tuple(parts), head_prediction(latencies, last, reads))


def predicted_design(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> tuple[Design, Prediction]:
    """The design of a network and what it is predicted to take, every layer asked for as it will be."""
    branches = branch_seconds(latencies, choices)
    prediction = network_prediction(latencies, choices, branches)
    branch_ms = [[1e3 * seconds for seconds in some] for some in branches]
    return make_design(latencies.blueprint, choices, branch_ms, 1e3 * prediction.seconds), prediction


def confirm(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> bool:
    """Has the predictor find out what it has guessed of a network; whether that changed anything."""
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
    """How those read every meeting point who read it as a skip."""
    borders = [0, *(choice.segment.stop for choice in choices)]
    return {
        latencies.blueprint.boundary(border): TensorChannels(state.channels, state.exact)
        for border, state in zip(borders, states, strict=True)
    }


def _states(latencies: LatencyTable, choices: Sequence[SegmentChoice]) -> list[State]:
    """What every segment reads, and what the head reads."""
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
    """Shapes of what the branches of a segment write."""
    blueprint = latencies.blueprint
    return [
        latencies.shape_before(
            choice.segment.stop,
            blueprint.written(choice.segment, branch, state.channels, reads),
        )
        for branch in choice.branches
    ]


def transfer_seconds(latencies: LatencyTable, block: int, state: State, readers: Sequence[int]) -> float:
    """Seconds until those who compute the block of that number can read what was computed before."""
    if set(readers) == {state.home}:
        return 0.0
    return latencies.meeting(block, state.channels)


def head_prediction(latencies: LatencyTable, state: State, skips: SkipInputs = UNSCALED) -> SegmentPrediction:
    """What follows the last block, with what it takes to read it, on the processor that is fastest."""
    last = len(latencies.blueprint.traced.blocks)
    ways = []
    for processor in range(latencies.processors):
        seconds = latencies.head(state.channels, processor, exact=state.exact, skips=skips)
        alone = BranchPrediction(processor, seconds, seconds)
        ways.append(SegmentPrediction(transfer_seconds(latencies, last, state, [processor]), (alone,)))
    return min(ways, key=lambda way: way.seconds)
