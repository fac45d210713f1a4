"""Small networks, processors with made-up rates, and all designs, for tests of the search."""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from functools import cache

import torch
from torch import nn

from nnstretch import zoo
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.from_choices import make_design, segment_cost
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.network_latency import branch_seconds
from nnstretch.branching.tracing.trace import Segment
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.zoo import weights
from nnstretch.zoo.blocks import Chain, Residual, classifier, conv_bn, with_shortcut

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


class Rates:
    """Every processor has a rate for multiply-accumulates, and memory and launches cost the same everywhere."""

    def __init__(self, *rates: float, meeting: float = 5e-6, together: float = 1.0) -> None:
        self.rates, self.meeting, self.together = rates, meeting, together
        self.asked: set[tuple[int, str]] = set()

    def layer_seconds(self, layer: Layer, processor: int) -> float:
        moved = sum(t.elements for t in (*layer.inputs, *layer.outputs) if t is not None)
        return layer.macs / self.rates[processor] + 4 * moved / 20e9 + 1e-6

    def seconds(self, found: list[Layer], processor: int, /) -> float:
        self.asked.update((processor, layer.workload) for layer in found)
        return sum(self.layer_seconds(layer, processor) for layer in found)

    def fused_seconds(self, pair: Layer, processor: int, /) -> float:
        return math.inf

    def meeting_seconds(self, tensor: TensorType, /, *_: Collection[int]) -> float:
        return self.meeting + tensor.elements * 1e-11

    def fetch_seconds(self, tensor: TensorType, /, *_: Collection[int]) -> float:
        return tensor.elements * 1e-11

    def confirm(self, found: list[Layer], processor: int, /) -> bool:
        return False

    def contention_factor(self, processor: int, others: frozenset[int], /) -> float:
        return self.together if others else 1.0


def basic(channels: int, out: int, stride: int) -> Residual:
    body = nn.Sequential(conv_bn(channels, out, 3, stride=stride), conv_bn(out, out, 3, activation=None))
    return with_shortcut(body, channels, out, stride)


def small(stages: int = 2) -> Chain:
    widths = [32, 48, 64][: stages + 1]
    parts = [
        nn.Sequential(basic(before, after, 2), basic(after, after, 1)) for before, after in itertools.pairwise(widths)
    ]
    network = Chain(nn.Sequential(*conv_bn(3, 32, 3, stride=2)), parts, nn.Sequential(*classifier(widths[-1], 10)))
    weights.initialise(network, 3, 0)
    return network.eval()


def resnet() -> nn.Module:
    return zoo.build("resnet18", num_classes=10, small_images=True)


@cache
def prepared(name: str) -> Blueprint:
    """Traced once for all searches, which do not change it."""
    return blueprint(zoo.build(name, num_classes=10, small_images=True), IMAGES)


@cache
def prepared_small() -> Blueprint:
    """As `prepared`, of `small`."""
    return blueprint(small(), IMAGES)


@cache
def tiny() -> Blueprint:
    """As `prepared`, of a chain of four blocks and a head."""
    return blueprint(small(1), IMAGES, 16)


def every_design(plan: Blueprint, widths: Sequence[float], limits: SearchLimits) -> Iterator[list[SegmentChoice]]:
    """All ways to cut a network, and to branch what lies between for two processors, within the limits on MACs."""
    count = len(plan.traced.blocks)

    def ways(segment: Segment) -> Iterator[SegmentChoice]:
        for processor in (0, 1):
            yield SegmentChoice(segment, (BranchChoice(processor, tuple(segment.blocks), 1.0),))
        if plan.branchable(segment):
            options = [
                [BranchChoice(p, k, w) for k in plan.depth_candidates(segment, 0.5) for w in widths] for p in (0, 1)
            ]
            yield from (SegmentChoice(segment, pair) for pair in itertools.product(*options))

    for inner in itertools.chain.from_iterable(itertools.combinations(range(1, count), n) for n in range(count)):
        borders = [0, *inner, count]
        yield from map(list, itertools.product(*(list(ways(Segment(*pair))) for pair in itertools.pairwise(borders))))


def within(plan: Blueprint, latencies: LatencyTable, choices: list[SegmentChoice], limits: SearchLimits) -> bool:
    """Whether the branches of a design are within the limits."""
    design = make_design(plan, choices)
    branches = branch_seconds(latencies, choices)
    for choice, segment, seconds in zip(choices, design.segments, branches, strict=True):
        if len(choice.branches) > 1:
            fastest = min(latencies.original(choice.segment))
            width = sum(branch.channels for branch in segment.branches)
            meeting = latencies.meeting(segment.stop, width, (0, 1), (0, 1))
            macs = sum(branch.macs for branch in segment.branches)
            if max(seconds) > limits.beta * fastest or meeting > limits.alpha * fastest:
                return False
            if macs < limits.min_macs * segment_cost(plan, choice.segment).macs:
                return False
    return any(len(choice.branches) > 1 for choice in choices)
