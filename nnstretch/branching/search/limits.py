"""What designs must meet: latency as a hard constraint, capacity in hard bounds, and the usual bounds of families."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from nnstretch.branching.tracing.operators import Role, is_product, role_of
from nnstretch.branching.tracing.trace import TracedNetwork
from nnstretch.errors import DesignError


class Family(Enum):
    """Networks that bear scaling alike, with the least depth and width that NN-Stretch's published networks have."""

    PLAIN = ("plain", 0.5, 0.4)
    RESIDUAL = ("residual", 0.5, 0.25)
    BOTTLENECK = ("bottleneck", 0.33, 0.35)
    GROUPED = ("grouped", 0.35, 0.3)
    INVERTED = ("inverted", 0.5, 0.5)

    @property
    def label(self) -> str:
        """Its name."""
        return self.value[0]

    @property
    def depth(self) -> float:
        """Share of a segment's blocks that a branch keeps, at least."""
        return self.value[1]

    @property
    def width(self) -> float:
        """Width ratio of a branch, at least."""
        return self.value[2]


def family_of(traced: TracedNetwork) -> Family:
    """The family of a network, told by its layers."""
    roles = [role_of(node) for block in traced.blocks for node in block.nodes]
    if Role.DEPTHWISE in roles:
        return Family.INVERTED
    if Role.GROUPED in roles:
        return Family.GROUPED
    sums = [
        block
        for block in traced.blocks
        if any(role_of(node) is Role.BINARY and not is_product(node) for node in block.nodes)
    ]
    if not sums:
        return Family.PLAIN
    convolutions = sum(role_of(node) is Role.CONV for block in sums for node in block.nodes)
    return Family.BOTTLENECK if convolutions >= 3 * len(sums) else Family.RESIDUAL


@dataclass(frozen=True)
class SearchLimits:
    """Constraints of a search.

    Attributes:
        alpha: seconds of a meeting point over those of the original segment on its fastest processor, at most.
        beta: seconds of a branch on its processor over those of the original segment on its fastest one, at most.
        min_depth: share of a segment's blocks that a branch keeps, at least; None: what is usual for the network's family.
        min_width: width ratio of a branch, at least; None: what is usual for the family.
        min_macs: MACs of a segment's branches over the original segment's, at least.
        max_segment: MACs of a branched segment of several blocks over the whole network's, at most, so that branches read
            each other's features again and again instead of being networks of their own.
        target_ms: of the designs that are predicted to take at most so long, those with the most MACs are wanted; None: the
            fastest are.
    """

    alpha: float = 0.3
    beta: float = 0.8
    min_depth: float | None = None
    min_width: float | None = None
    min_macs: float = 0.8
    max_segment: float = 0.4
    target_ms: float | None = None

    def check(self) -> None:
        """Refuses limits that no design can meet.

        Raises:
            DesignError: a number is out of range.
        """
        for name in ("alpha", "beta", "target_ms"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise DesignError(f"{name} is {value}; give a number above 0")
        for name in ("min_depth", "min_width", "max_segment"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1.0:
                raise DesignError(f"{name} is {value}; give a ratio above 0 and up to 1")
        if not 0.0 <= self.min_macs < math.inf:
            raise DesignError(f"min_macs is {self.min_macs}; give a ratio from 0 on")

    def for_family(self, family: Family) -> SearchLimits:
        """The limits with the family's bounds where none were given."""
        return replace(
            self,
            min_depth=family.depth if self.min_depth is None else self.min_depth,
            min_width=family.width if self.min_width is None else self.min_width,
        )
