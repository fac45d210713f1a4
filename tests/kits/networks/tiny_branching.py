"""A small network with fixed weights, and its second stage in two branches."""

from __future__ import annotations

import torch
from torch import nn

from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.training.loop.averaging import recompute_batch_norms

SIDE = 12
"""Of its images with one channel, in pixels."""
CLASSES = 10


def block(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """A convolution, a batch norm and a ReLU."""
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def original() -> nn.Sequential:
    """A network with fixed weights and the batch-norm statistics that fit them.

    Its stages end at layer 1 and at the pooling.
    """
    torch.manual_seed(0)
    layers = nn.Sequential(
        *(block(1, 16), block(16, 16), block(16, 32, 2), block(32, 32)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)),
    )
    recompute_batch_norms(layers, [torch.randn(256, 1, SIDE, SIDE)])
    return layers.eval()


def prepared() -> Blueprint:
    """The network, ready to be branched."""
    return blueprint(original(), torch.randn(1, 1, SIDE, SIDE), 4)


def branched(width: float, first_width: float | None = None) -> BranchedNetwork:
    """The second stage in two branches of this width; the first one is the original's, or in two branches, too."""
    plan = prepared()
    first, second = plan.traced.stages

    def pair(stage: Segment, width: float) -> SegmentChoice:
        branches = [BranchChoice(processor, tuple(stage.blocks), width) for processor in (0, 1)]
        return SegmentChoice(stage, plan.meeting(stage, branches))

    whole = SegmentChoice(first, (BranchChoice.whole(first, 0),))
    choices = [whole if first_width is None else pair(first, first_width), pair(second, width)]
    return build(plan, make_design(plan, choices))
