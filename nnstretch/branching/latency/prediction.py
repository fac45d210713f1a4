"""Latency predictions: what the search asks predictors and runners of designs, and the predicted parts of a design."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.graph.layer import Layer, TensorType


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
        merging: of merging the branches' outputs; of a branched head: of the meeting point and the rest of the head.
        split: indices of the processors over which the layers of a single branch are split; its seconds then include the
            transfers between layers. Empty if they stay on one.
    """

    transfer: float
    branches: tuple[BranchPrediction, ...]
    merging: float = 0.0
    split: tuple[int, ...] = ()

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
    """Predicted seconds of a network: its segments in sequence, then the head."""

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
    return {
        "transfer_ms": 1e3 * part.transfer,
        "branches": branches,
        "merging_ms": 1e3 * part.merging,
        "split": [names[processor] for processor in part.split],
    }


@dataclass(frozen=True)
class MeasuredDesign:
    """Measured latency of a branched network, normalised to the processors' reference frequency.

    Attributes:
        seconds: of one run.
        branches: busy seconds of every branch, by segment; last those of a branched head.
        relative_speeds: every processor's speed during the measurement, over its usual speed.
    """

    seconds: float
    branches: tuple[tuple[float, ...], ...]
    relative_speeds: tuple[float, ...] = ()


class DesignRunner(Protocol):
    """Runs branched networks on the processors."""

    def __call__(self, network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
        """Measures a network.

        Args:
            network: the network.
            tuned: tune routines for the network first, as its compilation does, which takes longer; else use the
                routines of the layers' predictions.
        """


class PlacedPredictor(Protocol):
    """Predicts the original network without branches."""

    def __call__(self) -> float:
        """Seconds with layers placed on the processors and split by the scheduler; `inf` if that cannot be predicted."""


class PlanRunner(Protocol):
    """Runs the original network without branches, tuned."""

    def __call__(self, processor: int | None, pool: str, /) -> float:
        """Seconds of one run, normalised as those of designs; `inf` if the network cannot be exported.

        Args:
            processor: index of the processor that computes everything; None: the scheduler places and splits layers.
            pool: name of the processor of all cores that computes everything; "" for others.
        """


@dataclass(frozen=True)
class Pool:
    """One processor that is made of all CPU cores on which several processors compute.

    Attributes:
        name: as users write it.
        predictor: of this processor, whose number is 0.
        shares: number of a group of cores among the several processors -> its share of all cores.
    """

    name: str
    predictor: LatencyPredictor
    shares: Mapping[int, float]


class LatencyPredictor(Protocol):
    """Predicts latencies. Processors are numbered from 0; the input of a network lies where processor 0 reads it."""

    def seconds(self, layers: list[Layer], processor: int, /) -> float:
        """Seconds of these layers in sequence, each by the processor's fastest routine; `inf` if it lacks one.

        Layers of equal `workload` take equal time.
        """

    def fused_seconds(self, pair: Layer, processor: int, /) -> float:
        """Seconds of the routine for `pair`, a fusion group of two layers; `inf` if the processor has none."""

    def confirm(self, layers: list[Layer], processor: int, /) -> bool:
        """Measures the layers that `seconds` only estimates; returns whether a prediction changed."""

    def meeting_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int], /) -> float:
        """Communication cost in seconds until all `readers` can read `tensor` (`N,C,H,W`), without waiting for branches.

        Each of `writers` has computed a part of it. Different processors only are transferred between.
        """

    def fetch_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int], /) -> float:
        """Part of `meeting_seconds`: the seconds in which the next layers read `tensor` from other processors' caches."""

    def contention_factor(self, processor: int, others: frozenset[int], /) -> float:
        """Time of a processor while `others` work, over its time alone: they may share memory, caches or power."""
