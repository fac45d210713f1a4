"""All fused layers of a network that is not branched."""

from __future__ import annotations

from nnstretch.branching.channels.scaling import kept_counts
from nnstretch.branching.design.blueprint import Blueprint
from nnstretch.branching.latency.workloads import part_layers
from nnstretch.branching.tracing.trace import Segment
from nnstretch.graph.layer import Layer


def original_layers(network: Blueprint) -> list[Layer]:
    """The layers of a network's blocks and head, and the fusion groups of pairs of them; weights are noise."""
    blocks = [network.whole(Segment(number, number + 1)) for number in range(len(network.traced.blocks))]
    rows = [part_layers(plan, kept_counts(plan, 1.0)) for plan in (*blocks, network.head)]
    return [layer for row in rows for layer in (*row.layers, *row.joined.values())]
