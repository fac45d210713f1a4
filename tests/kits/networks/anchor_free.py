"""Small anchor-free detectors: a backbone, a feature pyramid, and distributions and scores at strides 8, 16 and 32."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from nnstretch.branching.design.blueprint import BranchChoice, HeadChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.tracing.trace import Segment
from tests.kits.networks.any_module import conv

SIDE = 64
"""Of the images in pixels."""
BINS, STRIDES = 16, (8, 16, 32)
_PRIOR = 0.01  # first probability of every class


class AnchorFree(nn.Module):
    """Writes a map `N x (4 * 16 + classes) x H x W` for every stride."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16, stride=2), conv(16, 24, stride=2), conv(24, 24))
        widths = (32, 40, 48)
        self.stages = nn.ModuleList(
            nn.Sequential(conv(before, after, stride=2), conv(after, after))
            for before, after in zip((24, *widths), widths, strict=False)
        )
        self.lateral = nn.ModuleList(conv(width, 32, 1) for width in widths)
        self.boxes = nn.ModuleList(nn.Sequential(conv(32, 32), nn.Conv2d(32, 4 * BINS, 1)) for _ in widths)
        self.classes = nn.ModuleList(nn.Sequential(conv(32, 24), nn.Conv2d(24, classes, 1)) for _ in widths)
        for name, parameter in self.classes.named_parameters():
            if name.endswith("1.bias") and parameter.numel() == classes:
                nn.init.constant_(parameter, -math.log(1 / _PRIOR - 1))

    def levels(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Distributions and scores of every stride."""
        maps = []
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        maps = [lateral(read) for lateral, read in zip(self.lateral, maps, strict=True)]
        for level in (1, 0):
            maps[level] = maps[level] + functional.interpolate(maps[level + 1], scale_factor=2.0)
        return [(box(y), kind(y)) for y, box, kind in zip(maps, self.boxes, self.classes, strict=True)]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.cat(level, 1) for level in self.levels(x))


class Decoding(AnchorFree):
    """Writes boxes (centre, width, height in pixels) and probabilities of all cells: `N x (4 + classes) x 84`."""

    centres: Tensor
    strides: Tensor
    bins: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        centres, strides = [], []
        for stride in STRIDES:
            y, x = torch.meshgrid(*(torch.arange(SIDE // stride) + 0.5,) * 2, indexing="ij")
            centres.append(torch.stack((x.flatten(), y.flatten())) * stride)
            strides.append(torch.full((x.numel(),), float(stride)))
        self.register_buffer("centres", torch.cat(centres, 1))
        self.register_buffer("strides", torch.cat(strides))
        self.register_buffer("bins", torch.arange(float(BINS)))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        found = torch.cat([torch.cat(level, 1).flatten(2) for level in self.levels(x)], 2)
        boxes, scores = found[:, : 4 * BINS], found[:, 4 * BINS :]
        n, _, count = boxes.shape
        reach = (boxes.view(n, 4, BINS, count).softmax(2) * self.bins[:, None]).sum(2) * self.strides
        before, after = self.centres - reach[:, :2], self.centres + reach[:, 2:]
        return torch.cat(((before + after) / 2, after - before, scores.sigmoid()), 1)


def anchor_free() -> tuple[nn.Module, Tensor]:
    """A network for two classes, and its example input."""
    torch.manual_seed(0)
    return AnchorFree(2), torch.randn(1, 3, SIDE, SIDE)


def branched_design() -> Design:
    """Two narrow branches in the backbone's last segments, and the towers of the heads divided between two processors."""
    network, example = anchor_free()
    plan = blueprint(network.eval(), example)
    body = []
    for number in range(len(plan.traced.blocks)):
        segment = Segment(number, number + 1)
        widths = (0.5, 0.25) if 3 <= number < 8 and plan.branchable(segment) else (1.0,)
        body.append(SegmentChoice(segment, tuple(BranchChoice(p, (number,), width) for p, width in enumerate(widths))))
    towers = range(plan.tower_count)
    return make_design(plan, body, head=[HeadChoice(p, tuple(towers[p::2]), 1.0) for p in range(2)])


def decoding() -> tuple[nn.Module, Tensor]:
    """The same network with boxes in the place of distributions."""
    torch.manual_seed(0)
    return Decoding(2), torch.randn(1, 3, SIDE, SIDE)
