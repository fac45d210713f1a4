"""Ways to compute original blocks without branches, which the dynamic program combines with branched segments.

A block is whole on one processor, its layers are split over several, or several blocks are computed in bands of rows. What
these take depends on the tensor that they read, but on no run of a design, so that a search prices each once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nnstretch.branching.channels.scaling import TensorChannels
from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice
from nnstretch.branching.latency.split_layers import Home, processor_groups
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.network_latency import State, transfer_seconds
from nnstretch.branching.tracing.trace import Segment


@dataclass(frozen=True)
class WholeBlocks:
    """Original blocks computed in one way from a state.

    Attributes:
        choice: the blocks, and where they run.
        seconds: with the transfer of their input; finite.
        macs: for one sample.
        to: the state behind them.
    """

    choice: SegmentChoice
    seconds: float
    macs: int
    to: State


@dataclass(eq=False)
class WholeBlockWays:
    """The ways to compute blocks without branches.

    Attributes:
        latencies: predictions.
    """

    latencies: LatencyTable
    _known: dict[tuple[int, State], list[WholeBlocks]] = field(default_factory=dict, init=False)
    _bands: dict[tuple[int, TensorChannels, Home], list[tuple[Segment, Home, float]]] = field(
        default_factory=dict, init=False
    )
    _version: int = field(default=-1, init=False)

    def of(self, block: int, state: State) -> Sequence[WholeBlocks]:
        """The ways that begin with a block, whose input `state` describes."""
        if self._version != self.latencies.version:
            self._known.clear()
            self._bands.clear()
            self._version = self.latencies.version
        key = (block, state)
        if key not in self._known:
            ways = (*self._whole(block, state), *self._split(block, state), *self._in_bands(block, state))
            self._known[key] = [way for way in ways if math.isfinite(way.seconds)]
        return self._known[key]

    def _whole(self, block: int, state: State) -> Iterator[WholeBlocks]:
        """The block on one processor."""
        latencies, segment = self.latencies, Segment(block, block + 1)
        written = latencies.blueprint.channels_before(segment.stop)
        for processor in range(latencies.processors):
            branch = BranchChoice.whole(segment, processor)
            cost = latencies.branch(segment, branch, state.channels, exact=state.exact)
            seconds = transfer_seconds(latencies, block, state, [processor]) + cost.seconds
            to = State(written, exact=True, home=(processor,))
            yield WholeBlocks(SegmentChoice(segment, (branch,)), seconds, cost.macs, to)

    def _split(self, block: int, state: State) -> Iterator[WholeBlocks]:
        """The block with its layers split, if that may be done."""
        latencies, segment = self.latencies, Segment(block, block + 1)
        if not latencies.splits:
            return
        written, plan = latencies.blueprint.channels_before(segment.stop), latencies.blueprint.whole(segment)
        for group in processor_groups(range(latencies.processors)):
            cost = latencies.split_near(plan, group, state.home, state)
            to = State(written, exact=True, home=cost.home)
            yield WholeBlocks(SegmentChoice.split_over(segment, group), cost.seconds, self._macs(block, state), to)

    def _in_bands(self, block: int, state: State) -> Iterator[WholeBlocks]:
        """Several blocks in bands of rows, if layers may be split."""
        latencies, blueprint = self.latencies, self.latencies.blueprint
        if not latencies.splits:
            return
        source = latencies.near(blueprint.whole(Segment(block, block + 1)), state)
        key = (block, source, state.home)
        if key not in self._bands:
            self._bands[key] = list(self._spans(block, source, state.home))
        first = self._macs(block, state)
        for segment, group, seconds in self._bands[key]:
            macs = first + latencies.original_macs(Segment(block + 1, segment.stop))
            to = State(blueprint.channels_before(segment.stop), exact=True, home=group)
            yield WholeBlocks(SegmentChoice.split_over(segment, group), seconds, macs, to)

    def _spans(self, block: int, source: TensorChannels, home: Home) -> Iterator[tuple[Segment, Home, float]]:
        """Spans of blocks from a block on that may be in bands, the processors that hold these, and the seconds."""
        latencies, blueprint = self.latencies, self.latencies.blueprint
        part = latencies.block_in_bands(block, source)
        for last in range(block + 1, len(blueprint.traced.blocks)):
            following = latencies.block_in_bands(last, TensorChannels(blueprint.channels_before(last), exact=True))
            if part is None or following is None:
                break
            part, segment = part.then(following), Segment(block, last + 1)
            if blueprint.traced.is_self_contained(segment):
                for group in processor_groups(range(latencies.processors)):
                    yield segment, group, latencies.banded_seconds(part, group, home)

    def _macs(self, block: int, state: State) -> int:
        """MACs of a block that reads the channels of a state."""
        one = Segment(block, block + 1)
        return self.latencies.branch(one, BranchChoice.whole(one, 0), state.channels, exact=state.exact).macs
