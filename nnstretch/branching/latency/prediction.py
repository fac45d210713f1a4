"""Predicted latency of a design, part by part: transfers, branches, waiting and merging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BranchPrediction:
    """Predicted seconds of one branch.

    Attributes:
        processor: index of its processor.
        alone: while no other processor works.
        contended: while the processors of the other branches work, too.
    """

    processor: int
    alone: float
    contended: float


@dataclass(frozen=True)
class SegmentPrediction:
    """Predicted seconds of one segment.

    Attributes:
        transfer: until its processors can read the segment's input.
        branches: they start together; a single one means that the segment is not branched.
        merging: of merging the branches' outputs.
    """

    transfer: float
    branches: tuple[BranchPrediction, ...]
    merging: float = 0.0

    @property
    def computing(self) -> float:
        """Seconds until the slowest branch has finished."""
        return max(branch.contended for branch in self.branches)

    @property
    def seconds(self) -> float:
        """Seconds of the whole segment."""
        return self.transfer + self.computing + self.merging

    def waiting(self, branch: BranchPrediction) -> float:
        """Seconds that a branch waits for the slowest one."""
        return self.computing - branch.contended


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a network: its segments in sequence, then the head on one processor."""

    segments: tuple[SegmentPrediction, ...]
    head: SegmentPrediction

    @property
    def parts(self) -> tuple[SegmentPrediction, ...]:
        """The segments and the head."""
        return (*self.segments, self.head)

    @property
    def seconds(self) -> float:
        """Latency from input to output."""
        return sum(part.seconds for part in self.parts)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Milliseconds of all parts, with the names of processors."""
        *segments, head = (_part_object(part, names) for part in self.parts)
        return {"segments": segments, "head": head}


@dataclass(frozen=True)
class BlockCost:
    """An original block: name, MACs, milliseconds on each processor, and whether it can be branched."""

    name: str
    macs: int
    ms: tuple[float, ...]
    branchable: bool


@dataclass(frozen=True)
class FrontPoint:
    """Predicted milliseconds and MACs of a network on the front of latency and MACs."""

    ms: float
    macs: int


def _part_object(part: SegmentPrediction, names: Sequence[str]) -> Mapping[str, Any]:
    branches = [
        {
            "processor": names[branch.processor],
            "alone_ms": 1e3 * branch.alone,
            "contended_ms": 1e3 * branch.contended,
            "waiting_ms": 1e3 * part.waiting(branch),
        }
        for branch in part.branches
    ]
    return {"transfer_ms": 1e3 * part.transfer, "branches": branches, "merging_ms": 1e3 * part.merging}
