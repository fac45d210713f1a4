"""Dynamic programming over the chain of blocks: the fastest network for every number of MACs.

A block is branched with its neighbours, runs whole on one processor, or is split layer by layer over several.

A state holds everything on which the cost of the rest of the network depends: the block reached, the channels
of its input, whether they are the original ones, and which processors hold them. For every state and number
of MACs, in steps of a thousandth of the original's, the fastest way is kept. The result is optimal for the
predictions on the given search space, up to the rounding of MACs. Skip connections are not part of the state:
the search assumes that they have their original channels; `network_prediction` uses their real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nnstretch.branching.design.blueprint import BranchChoice, HeadChoice, SegmentChoice
from nnstretch.branching.design.design import Merge
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import SegmentCandidate
from nnstretch.branching.search.head_candidates import HeadCandidate
from nnstretch.branching.search.network_latency import State, transfer_seconds
from nnstretch.branching.search.whole_blocks import WholeBlockWays
from nnstretch.branching.tracing.trace import Segment, TracedNetwork

_STEPS = 1000  # of MACs, per original network
_MOST = 2.0  # maximum MACs over the original's

_Numbers = npt.NDArray[np.float64]


CandidateSource = Callable[[Segment, State], Sequence[SegmentCandidate]]
"""Candidates to branch a segment from a state."""
HeadSource = Callable[[State], Sequence[HeadCandidate]]
"""Candidates to compute the head from a state."""


@dataclass(frozen=True)
class NetworkCandidate:
    """A whole network.

    Attributes:
        choices: its segments.
        seconds: predicted latency.
        macs: for one sample, rounded to steps, without those of the original head.
        head: branches of its head; empty: it is whole.
    """

    choices: tuple[SegmentChoice, ...]
    seconds: float
    macs: int
    head: tuple[HeadChoice, ...] = ()

    @property
    def structure(self) -> tuple[tuple[SegmentChoice, ...], tuple[HeadChoice, ...]]:
        """What determines the network."""
        return self.choices, self.head

    @property
    def is_branched(self) -> bool:
        """Whether two processors or more work at the same time somewhere."""
        return any(len(branches) > 1 for branches in (self.head, *(choice.branches for choice in self.choices)))


@dataclass(frozen=True)
class _Transition:
    """A segment computed in one way from a state."""

    state: State
    choice: SegmentChoice


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
        heads: ways to compute the head from a state.
        whole: ways to compute blocks without branches.
        unbranched: whether networks without branches count, too.
        transitions: number of transitions evaluated.
    """

    latencies: LatencyTable
    segments: Mapping[int, Sequence[Segment]]
    candidates: CandidateSource
    heads: HeadSource
    whole: WholeBlockWays
    unbranched: bool = False
    transitions: int = 0
    _labels: list[dict[State, _Label]] = field(default_factory=list)
    _moves: list[_Transition] = field(default_factory=list)
    _unit: float = 1.0

    def run(self, progress: Callable[[int, int], None]) -> list[NetworkCandidate]:
        """The front of latency and MACs over networks in order of MACs, with at least one branched segment by default.

        Args:
            progress: called with the blocks done and their total.
        """
        blueprint = self.latencies.blueprint
        count = len(blueprint.traced.blocks)
        self._unit = max(blueprint.original_cost.macs / _STEPS, 1.0)
        size = round(_STEPS * _MOST)
        self._labels = [{} for _ in range(count + 1)]
        start = _Label.empty(size)
        start.seconds[0] = 0.0
        self._labels[0][State(blueprint.channels_before(0), exact=True, home=(0,))] = start
        for block in range(count):
            progress(block, count)
            for state, label in list(self._labels[block].items()):
                for way in self.whole.of(block, state):
                    move = _Transition(state, way.choice)
                    self._move(move, label, way.seconds, way.macs, way.to)
                for segment in self.segments.get(block, ()):
                    self._branched(segment, state, label)
        progress(count, count)
        return self._front(count)

    def _branched(self, segment: Segment, state: State, label: _Label) -> None:
        """Transitions that branch a segment."""
        latencies, exact = self.latencies, self.latencies.blueprint.merge is not Merge.CONCAT
        for candidate in self.candidates(segment, state):
            readers = tuple(branch.processor for branch in candidate.branches)
            seconds = transfer_seconds(latencies, segment.first, state, readers) + candidate.seconds
            seconds += latencies.merging(segment.stop, candidate.parts)
            to = State(candidate.channels, exact=exact, home=readers)
            choice = SegmentChoice(segment, candidate.branches)
            self._move(_Transition(state, choice), label, seconds, candidate.macs, to)

    def _move(self, move: _Transition, label: _Label, seconds: float, macs: int, to: State) -> None:
        self.transitions += 1
        if not math.isfinite(seconds):
            return
        labels = self._labels[move.choice.segment.stop]
        if to not in labels:
            labels[to] = _Label.empty(len(label.seconds))
        labels[to].reach(label, seconds, round(macs / self._unit), len(self._moves))
        self._moves.append(move)

    def _front(self, count: int) -> list[NetworkCandidate]:
        """The fastest network for every number of MACs, without those that are slower and have fewer MACs."""
        ends: list[tuple[State, HeadCandidate]] = []
        seconds, steps, places = list[_Numbers](), list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int64]]()
        for state, label in self._labels[count].items():
            reached = np.flatnonzero(np.isfinite(label.seconds))
            for head in self.heads(state):
                seconds.append(label.seconds[reached] + head.seconds)
                steps.append(reached + round(head.macs / self._unit))
                places.append(np.stack([np.full(len(reached), len(ends)), reached]))
                ends.append((state, head))
        if not ends:
            return []
        times, work, sources = np.concatenate(seconds), np.concatenate(steps), np.concatenate(places, axis=1)
        front, most = list[NetworkCandidate](), -1
        for i in np.lexsort((-work, times)).tolist():
            if work[i] <= most:
                continue
            state, head = ends[sources[0, i]]
            found = NetworkCandidate(
                self._path(count, state, int(sources[1, i])),
                float(times[i]),
                round(work[i] * self._unit),
                head.branches,
            )
            if self.unbranched or found.is_branched:
                most = int(work[i])
                front.append(found)
        return front

    def _path(self, block: int, state: State, steps: int) -> tuple[SegmentChoice, ...]:
        """The segments on the way to a state; adjacent segments on one processor are merged."""
        choices: list[SegmentChoice] = []
        while block:
            label = self._labels[block][state]
            move = self._moves[label.moves[steps]]
            steps = int(label.before[steps])
            block, state = move.choice.segment.first, move.state
            choices.append(move.choice)
        return merged_choices(self.latencies.blueprint.traced, choices[::-1])


def merged_choices(traced: TracedNetwork, choices: Sequence[SegmentChoice]) -> tuple[SegmentChoice, ...]:
    """Consecutive segments; adjacent ones without branches on equal processors are merged where a segment may end.

    Segments of several blocks that are split may be computed in bands, which end where they do; these stay.
    """
    merged: list[SegmentChoice] = []
    grows = False  # whether the last one may be merged with the next
    for choice in choices:
        is_single = not choice.split or len(choice.segment.blocks) == 1
        last = merged[-1] if grows and is_single else None
        segment = Segment(last.segment.first if last else choice.segment.first, choice.segment.stop)
        if last is not None and _run_alike(last, choice) and traced.is_self_contained(segment):
            whole = SegmentChoice(segment, (BranchChoice.whole(segment, choice.branches[0].processor),))
            merged[-1] = SegmentChoice.split_over(segment, choice.split) if choice.split else whole
        else:
            merged.append(choice)
        grows = is_single
    return tuple(merged)


def _run_alike(one: SegmentChoice, other: SegmentChoice) -> bool:
    """Whether two segments have no branches, and run on the same processor or are split over the same ones."""
    if len(one.branches) > 1 or len(other.branches) > 1 or one.split != other.split:
        return False
    return bool(one.split) or one.branches[0].processor == other.branches[0].processor
