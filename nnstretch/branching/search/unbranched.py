"""Plans of the original network without branches, which a design must beat.

NN-Stretch compares a branched network with the original on the fastest processor. Two other plans use all processors without
branches: whole blocks on the processors that suit them, and layers that the scheduler places and splits. Where at least two
processors compute on cores of this machine's CPU, and none has all of these, the cores can also be one processor, a pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice
from nnstretch.branching.latency.prediction import (
    BranchPrediction,
    PlacedPredictor,
    Pool,
    Prediction,
    SegmentPrediction,
)
from nnstretch.branching.latency.split_layers import processor_groups
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.dynamic_programming import DynamicProgram, merged_choices
from nnstretch.branching.search.head_candidates import HeadCandidate
from nnstretch.branching.search.network_latency import (
    State,
    branch_seconds,
    head_prediction,
    network_prediction,
    transfer_seconds,
)
from nnstretch.branching.search.whole_blocks import WholeBlockWays
from nnstretch.branching.tracing.trace import Segment


@dataclass(frozen=True)
class UnbranchedPlan:
    """A way to run the original network on the processors.

    Attributes:
        choices: segments with one branch each; split over all processors where the scheduler's prediction is the fastest.
        prediction: predicted seconds of these segments, whole on the processors of their branches.
        seconds: predicted latency: the prediction's, or less where the scheduler places and splits layers.
        processor: index of the only processor that works; None if several do.
        pool: name of the processor that is made of all cores, if that computes everything; else "".
        is_measured: whether `seconds` are those of a run, in place of a prediction.
    """

    choices: tuple[SegmentChoice, ...]
    prediction: Prediction
    seconds: float
    processor: int | None
    pool: str = ""
    is_measured: bool = False

    def where(self, names: Sequence[str]) -> str:
        """Where it runs, for people; `names` are those of the processors."""
        if self.pool:
            return f"on all cores as one processor ({self.pool})"
        return "placed on several processors" if self.processor is None else f"on {names[self.processor]} alone"

    def processors(self, names: Sequence[str]) -> str:
        """Where it runs, as `--processors` takes it; `names` are the processors'."""
        return self.pool or (",".join(names) if self.processor is None else names[self.processor])

    @property
    def ms(self) -> float:
        """Predicted milliseconds."""
        return 1e3 * self.seconds

    def is_ahead_of(self, branched_ms: float | None) -> bool:
        """Whether the plan is predicted to be as fast as a branched design, or faster; None: there is no design."""
        return branched_ms is None or self.ms <= branched_ms


def unbranched_plan(
    latencies: LatencyTable, placed_seconds: PlacedPredictor | None, slowest: float = math.inf
) -> UnbranchedPlan | None:
    """The plan of `unbranched_plans` that is predicted to be fastest; None if there is none."""
    plans = unbranched_plans(latencies, placed_seconds, slowest)
    return min(plans, key=lambda plan: plan.seconds, default=None)


def unbranched_plans(
    latencies: LatencyTable,
    placed_seconds: PlacedPredictor | None,
    slowest: float = math.inf,
    ways: WholeBlockWays | None = None,
) -> list[UnbranchedPlan]:
    """The plans without branches: on each processor, and on several; none if all are clearly slower than the designs.

    Args:
        latencies: predictions.
        placed_seconds: predicts the network with layers placed and split by the scheduler, which takes seconds; None:
            such plans are left out.
        slowest: seconds of the slowest design to compare.
        ways: as in `split_seconds`.
    """
    least = split_estimate(latencies)
    if latencies.splits:  # bands meet less often than split blocks
        least = min(least, split_seconds(latencies, ways))
    # Routines that fuse layers of adjacent blocks save what the estimate does not know.
    if slowest < least and not latencies.rows.fuses:
        return []
    plans = _plans(latencies)
    best = min(plans, key=lambda plan: plan.seconds)
    seconds = placed_seconds() if placed_seconds is not None and least < best.seconds and least <= slowest else math.inf
    if not math.isfinite(seconds):
        return plans
    everywhere = tuple(range(latencies.processors))
    choices = tuple(replace(choice, split=everywhere) for choice in best.choices)
    return [*plans, UnbranchedPlan(choices, best.prediction, seconds, None)]


def whole_blocks(latencies: LatencyTable, processor: int) -> list[SegmentChoice]:
    """The original blocks on one processor, a segment each."""
    return _on_processors([processor] * len(latencies.blueprint.traced.blocks))


def single_processor_plan(latencies: LatencyTable, processor: int) -> UnbranchedPlan:
    """The whole network on one processor, whose memory then holds the input: nothing is transferred."""
    choices = merged_choices(latencies.blueprint.traced, whole_blocks(latencies, processor))
    bodies = [seconds for (seconds,) in branch_seconds(latencies, choices)]
    *segments, head = (
        SegmentPrediction(0.0, (BranchPrediction(processor, seconds, seconds),))
        for seconds in [*bodies, latencies.head(processor)]
    )
    prediction = Prediction(tuple(segments), head)
    return UnbranchedPlan(choices, prediction, prediction.seconds, processor)


def pool_plan(latencies: LatencyTable, pooled: LatencyTable, pool: Pool) -> UnbranchedPlan:
    """The whole network on one processor that is made of all cores.

    Few layers are measured on all cores before the network runs there, and a learned cost of a kind of layer that was not
    measured with as many threads may be several times too high. All cores take no longer than some of them alone; where they
    are predicted to, the plan has the optimistic `pool_estimate` instead, so that it is run if it may be ahead.

    Args:
        latencies: predictions of the several processors.
        pooled: predictions of the pool.
        pool: all cores as one processor.
    """
    plan = replace(single_processor_plan(pooled, 0), processor=None, pool=pool.name)
    on_some = min((_alone(latencies, processor) for processor in pool.shares), default=math.inf)
    return plan if plan.seconds <= on_some else replace(plan, seconds=pool_estimate(latencies, pool))


def pool_estimate(latencies: LatencyTable, pool: Pool) -> float:
    """Optimistic seconds of the network on a pool: some of its groups of cores, sped up by what the others add."""
    return min((share * _alone(latencies, processor) for processor, share in pool.shares.items()), default=0.0)


def _alone(latencies: LatencyTable, processor: int) -> float:
    """Predicted seconds of the original on one processor."""
    blocks = Segment(0, len(latencies.blueprint.traced.blocks))
    return latencies.original(blocks)[processor] + latencies.head(processor)


def split_seconds(latencies: LatencyTable, ways: WholeBlockWays | None = None) -> float:
    """Predicted seconds of the network without branches: blocks are whole, split over the processors, or in bands of rows.

    Args:
        latencies: predictions.
        ways: to compute blocks, if a search has some that it keeps.
    """
    end = latencies.blueprint.head.source

    def whole_head(state: State) -> Sequence[HeadCandidate]:
        return (HeadCandidate((), head_prediction(latencies, {end: state}).seconds, 0),)

    ways = WholeBlockWays(latencies) if ways is None else ways
    program = DynamicProgram(latencies, {}, lambda *_: (), whole_head, ways, unbranched=True)
    return min((found.seconds for found in program.run(lambda *_: None)), default=math.inf)


def split_estimate(latencies: LatencyTable) -> float:
    """Optimistic seconds of the best plan without branches: blocks are whole, or their layers are split ideally.

    A split block costs one meeting point, at its input, and its layers take no longer than with perfectly divided work. The
    scheduler's plans, whose layers meet more often and divide channels by whole blocks of the layout, are hardly faster.
    The input lies where it is read.
    """
    blueprint = latencies.blueprint
    reached: dict[int | None, float] = dict.fromkeys(range(latencies.processors), 0.0)
    for block in range(len(blueprint.traced.blocks)):
        alone = latencies.original(Segment(block, block + 1))
        reached = _next(latencies, block, reached, alone, latencies.ideal_split(block, _groups(latencies)))
    heads = [latencies.head(processor) for processor in range(latencies.processors)]
    count = len(blueprint.traced.blocks)
    ends = _next(latencies, count, reached, heads, latencies.ideal_split(count, _groups(latencies)))
    return min(ends.values())


def _plans(latencies: LatencyTable) -> list[UnbranchedPlan]:
    """The plans of whole blocks."""
    alone = [single_processor_plan(latencies, processor) for processor in range(latencies.processors)]
    choices = merged_choices(latencies.blueprint.traced, _on_processors(_fastest_places(latencies)))
    prediction = network_prediction(latencies, choices, branch_seconds(latencies, choices))
    several = UnbranchedPlan(choices, prediction, prediction.seconds, None)
    return [*alone, *([several] if len({choice.branches[0].processor for choice in choices}) > 1 else [])]


def _on_processors(processors: Sequence[int]) -> list[SegmentChoice]:
    """The original blocks, each on its processor."""
    blocks = [Segment(number, number + 1) for number in range(len(processors))]
    return [SegmentChoice(b, (BranchChoice.whole(b, p),)) for b, p in zip(blocks, processors, strict=True)]


def _fastest_places(latencies: LatencyTable) -> list[int]:
    """The processor of every block in the fastest plan of whole blocks, by dynamic programming over the blocks."""
    count = len(latencies.blueprint.traced.blocks)
    reached = dict.fromkeys(range(latencies.processors), math.inf) | {0: 0.0}
    before: list[dict[int, int]] = []
    for block in range(count + 1):
        costs = (
            latencies.original(Segment(block, block + 1))
            if block < count
            else [latencies.head(processor) for processor in range(latencies.processors)]
        )
        arrivals = {
            p: min((reached[q] + _transfer(latencies, block, q, p), q) for q in reached)
            for p in range(latencies.processors)
        }
        before.append({p: q for p, (_, q) in arrivals.items()})
        reached = {p: seconds + costs[p] for p, (seconds, _) in arrivals.items()}
    place = min(reached, key=lambda p: reached[p])
    places = []
    for came_from in reversed(before):
        place = came_from[place]
        places.append(place)
    return places[-2::-1]


def _next(
    latencies: LatencyTable, block: int, reached: Mapping[int | None, float], alone: Sequence[float], split: float
) -> dict[int | None, float]:
    """Seconds until a block is done, by the processor that holds its result; None: several do.

    Args:
        latencies: predictions.
        block: its number; past the last block, the head.
        reached: seconds until its input is there, by the processor that holds it.
        alone: of the whole block on every processor.
        split: of the block split over several processors, without meeting points.
    """
    ends: dict[int | None, float] = {
        p: seconds + min(r + (0.0 if q is None else _transfer(latencies, block, q, p)) for q, r in reached.items())
        for p, seconds in enumerate(alone)
    }
    channels = latencies.blueprint.channels_before(block)
    groups = processor_groups(range(latencies.processors))
    meeting = min(latencies.meeting(block, channels, group, group) for group in groups)
    return {**ends, None: min(reached.values()) + meeting + split}


def _transfer(latencies: LatencyTable, block: int, home: int, reader: int) -> float:
    """Seconds until a processor can read the original input of a block that another one holds."""
    state = State(latencies.blueprint.channels_before(block), exact=True, home=(home,))
    return transfer_seconds(latencies, block, state, [reader])


def _groups(latencies: LatencyTable) -> list[dict[int, float]]:
    """Contention factor of every processor, for every group that can work at the same time."""
    factor = latencies.predictor.contention_factor
    groups = processor_groups(range(latencies.processors))
    return [{p: factor(p, frozenset(group) - {p}) for p in group} for group in groups]
