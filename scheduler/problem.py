"""Routine selection as pure data: which choice for every layer minimises the sum of layer and edge costs.

SoftNeuro, section IV, and NeoCPU, section 3.3, ask the same question: every layer has a few choices with known costs, and
neighbours whose choices do not fit together pay for an adapt layer between them. A problem knows no device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Problem:
    """Costs of choices.

    Attributes:
        costs: for each node the cost of each of its choices, seconds; at least one choice per node.
        edges: (u, v) with u < v -> cost matrix of shape (choices of u, choices of v), seconds.
    """

    costs: tuple[Costs, ...]
    edges: Mapping[tuple[int, int], Costs]

    def cost(self, choices: tuple[int, ...]) -> float:
        """Total cost of an assignment, seconds."""
        nodes = sum(float(c[i]) for c, i in zip(self.costs, choices, strict=True))
        return nodes + sum(float(m[choices[u], choices[v]]) for (u, v), m in self.edges.items())


@dataclass(frozen=True)
class Assignment:
    """The chosen index for each node, its total cost in seconds, and a bound on how far it is from the best.

    `gap` is (cost - lower bound) / cost; 0 and `optimal` for a proven optimum.
    """

    choices: tuple[int, ...]
    cost: float
    optimal: bool
    gap: float


class Selector(ABC):
    """A way to solve problems: the same problem always gets the same answer."""

    name: str

    @abstractmethod
    def select(self, problem: Problem) -> Assignment:
        """An assignment with one legal choice for every node."""
