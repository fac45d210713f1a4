"""What a search wants to know about latencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.graph.layer import Layer, TensorType


@dataclass(frozen=True)
class MeasuredDesign:
    """What a branched network takes where its processors are as fast as usual.

    Attributes:
        seconds: of a run.
        branches: seconds that every branch of every segment is busy in it.
        relative_speeds: how many times as fast as usual every processor computed when this was measured.
    """

    seconds: float
    branches: tuple[tuple[float, ...], ...]
    relative_speeds: tuple[float, ...] = ()


class DesignRunner(Protocol):
    """Runs branched networks on the processors."""

    def __call__(self, network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
        """What a network takes.

        Args:
            network: the network.
            tuned: with routines that are tuned for it, as when it is compiled, which takes a while; else with those by which
                its layers were predicted.
        """


class LatencyPredictor(Protocol):
    """Predicts how long processors take. Processors are numbered from 0; the input of a network is where number 0 reads it."""

    def seconds(self, layers: list[Layer], processor: int, /) -> float:
        """Seconds that a processor takes for these layers, one after the other, at its best; ``inf`` if it cannot.

        Layers of equal `workload` take equal time, so one has to be measured once.
        """

    def fused_seconds(self, pair: Layer, processor: int, /) -> float:
        """Seconds of a routine that computes two layers as one, `pair`; ``inf`` if there is none."""

    def confirm(self, layers: list[Layer], processor: int, /) -> bool:
        """Finds out about these layers whatever `seconds` has only guessed, as by measuring; whether that changed anything."""

    def meeting_seconds(self, tensor: TensorType, /) -> float:
        """Seconds that processors need to meet at a tensor that each of them has computed a part of, beyond waiting."""

    def fetch_seconds(self, tensor: TensorType, /) -> float:
        """How many of the `meeting_seconds` first layers spend on fetch `tensor` from other processors' caches."""

    def contention_factor(self, processor: int, others: frozenset[int], /) -> float:
        """How many times as long a processor takes while `others` work too: they may share memory, caches or power."""
