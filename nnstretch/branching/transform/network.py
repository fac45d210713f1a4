"""Branched networks as torch modules."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from nnstretch.branching.design.design import Design, Merge
from nnstretch.frontends.torch_module import export
from nnstretch.graph.metadata import PLACEMENT_KEY, module_path


class Branch(nn.Module):
    """A scaled copy of a segment's blocks.

    torch's exporter does not record the calls of the generated module. With a module of its own around it,
    every node of an exported branch has the branch in its module path, plain functions such as sums included.

    Attributes:
        layers: the generated module; its layers have their original names.
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, *skips: Tensor) -> Tensor:
        """From the segment's `N,C,H,W` input and skip inputs to the branch's share of the output."""
        y: Tensor = self.layers(x, *skips)
        return y


class BranchedSegment(nn.Module):
    """Branches with a common input whose outputs are concatenated along the channels, in order, or summed.

    Attributes:
        branches: `Branch` modules from `N,C,H,W` to their share of the next segment's channels, or to all of
            them.
        merge: how branches are merged.
    """

    def __init__(self, branches: list[Branch], merge: Merge = Merge.CONCAT) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.merge = merge

    def forward(self, x: Tensor, *skips: Tensor) -> Tensor:
        """The meeting point's tensor: the concatenation or the sum of the branches' outputs."""
        written: list[Tensor] = [branch(x, *skips) for branch in self.branches]
        if len(written) == 1:
            return written[0]
        return functools.reduce(operator.add, written) if self.merge is Merge.ADD else torch.cat(written, dim=1)


class BranchedNetwork(nn.Module):
    """A network whose segments have branches. Branch `i` of segment `s` is `segments.<s>.branches.<i>`.

    Attributes:
        segments: one `BranchedSegment` per segment.
        head: from the last meeting point to the network's output.
        design: the design that it was built from.
        skips: skip inputs of every segment and of the head, as numbers of meeting points: 0 is the network's
            input and `i` the output of segment `i - 1`.
        origins: for every meeting point, the original channel that each of its channels stands for.
    """

    def __init__(
        self,
        segments: list[BranchedSegment],
        head: nn.Module,
        design: Design,
        skips: Sequence[tuple[int, ...]] | None = None,
        origins: Sequence[tuple[int, ...]] = (),
    ) -> None:
        super().__init__()
        self.segments = nn.ModuleList(segments)
        self.head = head
        self.design = design
        self.skips = tuple(skips) if skips is not None else ((),) * (len(segments) + 1)
        self.origins = tuple(origins)

    def forward(self, x: Tensor) -> Any:
        """From `N,C,H,W` images to what the original network returns, in the same structure and shapes."""
        wanted = {number for skips in self.skips for number in skips}
        kept = {0: x}
        for number, segment in enumerate(self.segments):
            x = segment(x, *(kept[skip] for skip in self.skips[number]))
            if number + 1 in wanted:
                kept[number + 1] = x
        return self.head(x, *(kept[skip] for skip in self.skips[-1]))

    @property
    def placement(self) -> dict[str, int]:
        """Path of every branch -> index of its processor; empty without branched segments, which the scheduler places."""
        if not self.design.meeting_points:
            return {}
        return {
            f"segments.{number}.branches.{i}": branch.processor
            for number, segment in enumerate(self.design.segments)
            for i, branch in enumerate(segment.branches)
        }


def export_module(module: nn.Module, example_input: Tensor | tuple[Tensor, ...]) -> ir.Model:
    """A module as an ONNX graph that is not fused; nodes of a branched network name their processors.

    Raises:
        ModelError: torch cannot export it.
    """
    if isinstance(module, BranchedNetwork) and isinstance(example_input, Tensor):
        return export_branched(module, example_input)
    return export(module, example_input)


def export_branched(network: BranchedNetwork, example_input: Tensor) -> ir.Model:
    """`network` in evaluation mode as an ONNX graph; the metadata of every node in a branch names its processor.

    The metadata is stored in the ONNX file. Nodes of meeting points and of the head have none: any processor
    may run them.

    Args:
        network: a branched network; its training flags are kept.
        example_input: an `N,C,H,W` batch that it accepts; the graph is for this shape.

    Raises:
        ModelError: torch cannot export the network.
    """
    model = export(network, example_input)
    placement = network.placement
    for node in model.graph:
        # The first four parts of the path name the branch: segments.<s>.branches.<i>.
        processor = placement.get(".".join(module_path(node).split(".")[:4]))
        if processor is not None:
            node.metadata_props[PLACEMENT_KEY] = str(processor)
    return model
