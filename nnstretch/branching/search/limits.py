"""Constraints of a search: latency as a hard constraint, lower bounds of capacity, and each family's default bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from nnstretch.branching.tracing.operators import Role, is_product, role_of
from nnstretch.branching.tracing.trace import TracedNetwork
from nnstretch.errors import DesignError


class Family(Enum):
    """Network families that tolerate similar scaling.

    The defaults are the minima of NN-Stretch's published networks of the family.

    Attributes:
        label: name of the family.
        depth: minimum share of a segment's blocks that a branch keeps.
        width: minimum width ratio of a branch.
    """

    PLAIN = ("plain", 0.5, 0.4)
    RESIDUAL = ("residual", 0.5, 0.25)
    BOTTLENECK = ("bottleneck", 0.33, 0.35)
    GROUPED = ("grouped", 0.35, 0.3)
    INVERTED = ("inverted", 0.5, 0.5)

    def __init__(self, label: str, depth: float, width: float) -> None:
        self.label, self.depth, self.width = label, depth, width


def family_of(traced: TracedNetwork) -> Family:
    """The family of a network, recognised by its layers."""
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
        alpha: maximum ratio of a meeting point's seconds to the original segment's on its fastest processor
            (NN-Stretch).
        beta: maximum ratio of a branch's seconds on its processor to the original segment's on its fastest
            (NN-Stretch).
        min_depth: minimum share of a segment's blocks that a branch keeps; None: the family's default.
        min_width: minimum width ratio of a branch; None: the family's default.
        min_macs: minimum ratio of the MACs of a segment's branches to the original segment's.
        max_segment: maximum share of the network's MACs in a branched segment of several blocks. It makes
            branches exchange features often instead of being networks of their own.
        target_ms: latency target in milliseconds: of the designs that meet it, those with the most MACs are
            returned; None: the fastest designs are returned.
    """

    alpha: float = 0.3
    beta: float = 0.8
    min_depth: float | None = None
    min_width: float | None = None
    min_macs: float = 0.8
    max_segment: float = 0.4
    target_ms: float | None = None

    def check(self) -> None:
        """Checks the ranges of all limits.

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
        """These limits with the family's defaults for bounds that are None."""
        return replace(
            self,
            min_depth=family.depth if self.min_depth is None else self.min_depth,
            min_width=family.width if self.min_width is None else self.min_width,
        )
