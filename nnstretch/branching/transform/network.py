"""Branched networks as torch modules."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nnstretch.branching.design.design import Design, Merge


class Branch(nn.Module):
    """A scaled copy of a segment's blocks.

    A module of its own around the generated one, whose calls torch's exporter does not note: every node that a branch
    exports to has the branch in its module path, sums and other plain functions included.

    Attributes:
        layers: the generated module; its layers have the names they have in the original network.
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, *skips: Tensor) -> Tensor:
        """From what the segment reads to the branch's share of what it writes, all `N x channels x H x W`."""
        y: Tensor = self.layers(x, *skips)
        return y


class BranchedSegment(nn.Module):
    """Branches that read the same tensor and whose outputs are concatenated along the channels, in order, or summed.

    Attributes:
        branches: `Branch` modules from `N x channels x H x W` to their share of the channels that the next segment reads, or to
            all of them.
        merge: how they meet.
    """

    def __init__(self, branches: list[Branch], merge: Merge = Merge.CONCAT) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.merge = merge

    def forward(self, x: Tensor, *skips: Tensor) -> Tensor:
        """The meeting point's tensor: the channels of all branches, or their sum."""
        written: list[Tensor] = [branch(x, *skips) for branch in self.branches]
        if len(written) == 1:
            return written[0]
        return functools.reduce(operator.add, written) if self.merge is Merge.ADD else torch.cat(written, dim=1)


class BranchedNetwork(nn.Module):
    """A network whose segments have branches. Branch `i` of segment `s` is `segments.<s>.branches.<i>`.

    Attributes:
        segments: one `BranchedSegment` per segment.
        head: from the last meeting point to the network's output.
        design: what it was built from.
        skips: for every segment, and then for the head, what it reads beside what comes before it: numbers of meeting points,
            where 0 is the network's input and `i` what segment `i - 1` writes.
    """

    def __init__(
        self,
        segments: list[BranchedSegment],
        head: nn.Module,
        design: Design,
        skips: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__()
        self.segments = nn.ModuleList(segments)
        self.head = head
        self.design = design
        self.skips = tuple(skips) if skips is not None else ((),) * (len(segments) + 1)

    def forward(self, x: Tensor) -> Any:
        """What the original network computes from `N x channels x H x W` images, in structure, shape and meaning."""
        wanted = {number for skips in self.skips for number in skips}
        kept = {0: x}
        for number, segment in enumerate(self.segments):
            x = segment(x, *(kept[skip] for skip in self.skips[number]))
            if number + 1 in wanted:
                kept[number + 1] = x
        return self.head(x, *(kept[skip] for skip in self.skips[-1]))

    @property
    def placement(self) -> dict[str, int]:
        """Path of every branch -> index of the processor that it is made for."""
        return {
            f"segments.{number}.branches.{i}": branch.processor
            for number, segment in enumerate(self.design.segments)
            for i, branch in enumerate(segment.branches)
        }
