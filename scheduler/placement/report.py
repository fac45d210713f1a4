"""Report of an automatic placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PlacementReport:
    """Predicted seconds of a network on several processors together, and on each alone.

    Attributes:
        together: of the best placement found.
        bound: lower bound of any placement of whole layers.
        alone: of everything on one processor, by the processor's name.
        pays: whether the placement is used; otherwise everything runs on the fastest processor.
        splits: name of a split layer -> processor -> number of channels.
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
        """Predicted seconds of the plan in use."""
        return self.together if self.pays else self.alone[self.fastest]
