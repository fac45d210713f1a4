"""What a design is predicted to take, part by part: who computes when, who waits for whom, and what meeting points cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BranchPrediction:
    """Seconds of one branch.

    Attributes:
        processor: index of the processor that computes it.
        alone: while no other processor works.
        beside: while those of the other branches work too.
    """

    processor: int
    alone: float
    contended: float


@dataclass(frozen=True)
class SegmentPrediction:
    """Seconds of one segment.

    Attributes:
        handing: until its processors can read what was computed before.
        branches: they start together; one branch: not branched.
        joining: of putting the branches' channels together.
    """

    transfer: float
    branches: tuple[BranchPrediction, ...]
    merging: float = 0.0

    @property
    def computing(self) -> float:
        """Seconds until the slowest branch is done."""
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
    """Seconds of a whole network: its segments one after another, then the head on one processor."""

    segments: tuple[SegmentPrediction, ...]
    head: SegmentPrediction

    @property
    def parts(self) -> tuple[SegmentPrediction, ...]:
        """The segments and the head."""
        return (*self.segments, self.head)

    @property
    def seconds(self) -> float:
        """From the input to the output."""
        return sum(part.seconds for part in self.parts)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Milliseconds of all parts, with the processors' names."""
        *segments, head = (_part_object(part, names) for part in self.parts)
        return {"segments": segments, "head": head}


@dataclass(frozen=True)
class BlockCost:
    """A block of the network as it was: its name, MACs, milliseconds on each processor, and whether it can be branched."""

    name: str
    macs: int
    ms: tuple[float, ...]
    branchable: bool


@dataclass(frozen=True)
class FrontPoint:
    """Predicted milliseconds and MACs of a network than which none that was found is as fast and has as many MACs."""

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
