"""Interfaces of the search to latency predictors and to runners of designs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.graph.layer import Layer, TensorType


@dataclass(frozen=True)
class MeasuredDesign:
    """Measured latency of a branched network, normalised to the processors' reference frequency.

    Attributes:
        seconds: of one run.
        branches: busy seconds of every branch, by segment.
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
            tuned: with routines tuned for it, as when it is compiled, which takes longer; else with the
                routines by which its layers were predicted.
        """


class LatencyPredictor(Protocol):
    """Predicts latencies. Processors are numbered from 0; the input of a network lies where processor 0 reads it."""

    def seconds(self, layers: list[Layer], processor: int, /) -> float:
        """Seconds that a processor takes for these layers in sequence, at its best; ``inf`` if it cannot run them.

        Layers of equal `workload` take equal time.
        """

    def fused_seconds(self, pair: Layer, processor: int, /) -> float:
        """Seconds of a routine that computes a fusion group of two layers, `pair`; ``inf`` if there is none."""

    def confirm(self, layers: list[Layer], processor: int, /) -> bool:
        """Measures those of these layers that `seconds` only estimates; returns whether a prediction changed."""

    def meeting_seconds(self, tensor: TensorType, /) -> float:
        """Communication cost of a meeting point, without waiting.

        Seconds that processors need to join at a tensor that each of them computed a part of.
        """

    def fetch_seconds(self, tensor: TensorType, /) -> float:
        """The part of `meeting_seconds` in which the next layers read `tensor` from other processors' caches."""

    def contention_factor(self, processor: int, others: frozenset[int], /) -> float:
        """Contention factor of a processor while `others` work: they may share memory, caches or power."""
