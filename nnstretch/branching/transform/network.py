"""Branched networks as torch modules."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
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
        """From the `N,C,H,W` input and skip inputs of a segment to the branch's share of the output; a tuple in a head."""
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


class HeadBranches(nn.Module):
    """Branches of a head: some of its towers each, which do not depend on each other.

    Attributes:
        branches: `Branch` modules that return the results of their towers as a tuple.
        reads: numbers of the tensors that each branch reads.
    """

    def __init__(self, branches: list[Branch], reads: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.reads = tuple(map(tuple, reads))

    def forward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """From the tensors at meeting points to the results of all branches, in order."""
        results: list[Tensor] = []
        for branch, reads in zip(self.branches, self.reads, strict=True):
            results += branch(*(tensors[number] for number in reads))
        return results


@dataclass(frozen=True)
class Head:
    """What follows the last meeting point of a body.

    Attributes:
        layers: the whole head, or what is left of it beside its branches.
        reads: numbers of the tensors that it reads: first the meeting points, then the results of the branches.
        branches: of the head; None if it is whole.
    """

    layers: nn.Module
    reads: Sequence[int]
    branches: HeadBranches | None = None


class BranchedNetwork(nn.Module):
    """A network whose segments have branches. Branch `i` of segment `s` is `segments.<s>.branches.<i>`.

    Attributes:
        segments: one `BranchedSegment` per segment, then the branches of the head, if it has any (`HeadBranches`).
        head: from the last meeting point, or from the results of the head's branches, to the network's output.
        design: the design that it was built from.
        skips: skip inputs of every segment, as numbers of meeting points: 0 is the network's input and `i` the output of
            segment `i - 1`.
        head_reads: what the head reads (`Head.reads`).
        origins: for every meeting point, the original channel that each of its channels stands for.
        input_name: what the original network calls the images.
    """

    def __init__(
        self,
        segments: list[BranchedSegment],
        head: Head,
        design: Design,
        skips: Sequence[tuple[int, ...]] | None = None,
        origins: Sequence[tuple[int, ...]] = (),
        input_name: str = "x",
    ) -> None:
        super().__init__()
        self.segments = nn.ModuleList([*segments, *([head.branches] if head.branches is not None else [])])
        self.head = head.layers
        self.design = design
        self.skips = tuple(skips) if skips is not None else ((),) * len(segments)
        self.head_reads = tuple(head.reads)
        self.origins = tuple(origins)
        self.input_name = input_name

    @property
    def body(self) -> list[BranchedSegment]:
        """The segments of the body, without the branches of the head."""
        return [segment for segment in self.segments if isinstance(segment, BranchedSegment)]

    def forward(self, x: Tensor) -> Any:
        """From `N,C,H,W` images to what the original network returns, in the same structure and shapes."""
        tensors = [x]
        for number, segment in enumerate(self.segments):
            if isinstance(segment, HeadBranches):
                tensors += segment(tensors)
            else:
                tensors.append(segment(tensors[-1], *(tensors[skip] for skip in self.skips[number])))
        return self.head(*(tensors[number] for number in self.head_reads))

    @property
    def placement(self) -> dict[str, int]:
        """Path of every branch -> index of its processor; empty without branched segments, which the scheduler places."""
        if not self.design.meeting_points:
            return {}
        return {
            f"segments.{number}.branches.{i}": branch.processor
            for number, branches in enumerate(self.design.branches)
            for i, branch in enumerate(branches)
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
    model = export(network, example_input, input_names=[network.input_name])
    placement = network.placement
    for node in model.graph:
        # The first four parts of the path name the branch: segments.<s>.branches.<i>.
        processor = placement.get(".".join(module_path(node).split(".")[:4]))
        if processor is not None:
            node.metadata_props[PLACEMENT_KEY] = str(processor)
    return model
