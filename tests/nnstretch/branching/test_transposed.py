"""Transposed convolutions cost in designs what they cost in the exported graph."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from nnstretch.branching.channels.scaling import kept_counts
from nnstretch.branching.design.accounting import count_macs
from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.latency.workloads import part_layers
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import export_branched
from nnstretch.graph.layers import layers
from nnstretch.passes import optimize

IMAGES = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Up(nn.Module):
    """A convolution, a transposed one, and two convolutions."""

    def __init__(self, up: nn.ConvTranspose2d) -> None:
        super().__init__()
        self.first, self.up, self.act = nn.Conv2d(3, 16, 3), up, nn.ReLU()
        self.second, self.last = nn.Conv2d(24, 32, 3), nn.Conv2d(32, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.act(self.second(self.act(self.up(self.act(self.first(x)))))))
        return y


@pytest.mark.parametrize(
    "up",
    [
        pytest.param(nn.ConvTranspose2d(16, 24, 2, 2), id="u-net"),
        pytest.param(nn.ConvTranspose2d(16, 24, 4, 2, 1, bias=False), id="overlapping"),
        pytest.param(nn.ConvTranspose2d(16, 24, 3, 2, 1, output_padding=1), id="unequal phases"),
        pytest.param(nn.ConvTranspose2d(16, 24, 3, 1, 1), id="stride 1"),
        pytest.param(nn.ConvTranspose2d(16, 24, 2, 2, groups=4), id="grouped"),
        pytest.param(nn.ConvTranspose2d(16, 24, 3, 2, dilation=2), id="dilated"),
    ],
)
@pytest.mark.parametrize("width", [0.5, 1.0])
def test_designs_have_the_layers_and_macs_of_the_exported_graph(up: nn.ConvTranspose2d, width: float) -> None:
    plan = blueprint(Up(up).eval(), IMAGES)
    segment = Segment(0, len(plan.traced.blocks))
    design = make_design(plan, [SegmentChoice(segment, (BranchChoice(0, tuple(segment.blocks), width),))])
    network = build(plan, design)
    assert design.macs == count_macs(network, IMAGES)
    part = plan.whole(segment)
    found = part_layers(part, kept_counts(part, width)).layers
    whole = layers(optimize(export_branched(network, IMAGES)))
    expected = Counter(node.layer.workload for node in whole)
    predicted = Counter(layer.workload for layer in found)
    assert not predicted - expected
    assert sum((expected - predicted).values()) == 1  # the head
    # The convolutions of a transposed one compute no pixels that padding crops.
    assert sum(node.layer.macs for node in whole) == pytest.approx(design.macs, rel=0.15)
