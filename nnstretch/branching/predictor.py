"""What a search wants to know about latencies."""

from __future__ import annotations

from typing import Protocol

from nnstretch.graph.layer import Layer, TensorType


class LatencyPredictor(Protocol):
    """Predicts how long processors take. Processors are numbered from 0."""

    def seconds(self, layers: list[Layer], processor: int, /) -> float:
        """Seconds that a processor takes for these layers, one after the other, at its best; ``inf`` if it cannot.

        Layers of equal `workload` take equal time, so one has to be measured once.
        """

    def meeting_seconds(self, tensor: TensorType, /) -> float:
        """Seconds that processors need to meet at a tensor that each of them has computed a part of, beyond waiting."""
