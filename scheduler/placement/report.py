"""How an automatic placement came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PlacementReport:
    """Predicted seconds of a network on several processors together, and on each alone.

    Attributes:
        together: of the best placement found.
        bound: of the times of whole layers: no placement of these takes less.
        alone: of everything on one processor, by the processor's name.
        pays: whether the placement was taken; else everything runs on the fastest processor.
        splits: layers that are split between processors, by name, with the channels that each of these makes.
    """

    together: float
    bound: float
    alone: Mapping[str, float]
    pays: bool
    splits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def fastest(self) -> str:
        """The fastest single processor."""
        return min(self.alone, key=lambda name: self.alone[name])

    @property
    def seconds(self) -> float:
        """Of what was taken."""
        return self.together if self.pays else self.alone[self.fastest]
