"""Selectors: one file each, behind `nnstretch.scheduler.problem.Selector`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from nnstretch.errors import UsageError
from nnstretch.scheduler.problem import Selector
from nnstretch.scheduler.selectors.a_star import AStar
from nnstretch.scheduler.selectors.dijkstra import Dijkstra
from nnstretch.scheduler.selectors.dprs import Dprs
from nnstretch.scheduler.selectors.elimination import Elimination
from nnstretch.scheduler.selectors.global_search import GlobalSearch
from nnstretch.scheduler.selectors.greedy import Greedy, GreedyWithPenalties
from nnstretch.scheduler.selectors.pbqp import Pbqp
from nnstretch.scheduler.selectors.q_learning import QLearning
from nnstretch.scheduler.selectors.random_search import RandomSearch

_ALL: tuple[type[Selector], ...] = (
    Elimination,
    Dprs,
    GlobalSearch,
    Pbqp,
    Dijkstra,
    AStar,
    QLearning,
    GreedyWithPenalties,
    Greedy,
    RandomSearch,
)
SELECTORS: Mapping[str, Callable[[], Selector]] = MappingProxyType({s.name: s for s in _ALL})
"""Selectors by name, the default first."""


def default_selector() -> Selector:
    """Proves the optimum where it can within seconds; else PBQP's answer, with its gap."""
    return Elimination()


def selector_named(name: str) -> Selector:
    """The selector of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in SELECTORS:
        raise UsageError(f"there is no selector {name!r}; known are {', '.join(SELECTORS)}")
    return SELECTORS[name]()


__all__ = [
    "SELECTORS",
    "AStar",
    "Dijkstra",
    "Dprs",
    "Elimination",
    "GlobalSearch",
    "Greedy",
    "GreedyWithPenalties",
    "Pbqp",
    "QLearning",
    "RandomSearch",
    "default_selector",
    "selector_named",
]
