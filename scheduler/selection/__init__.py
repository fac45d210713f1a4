"""Selectors: one file each, behind `nnstretch.scheduler.selection.problem.Selector`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from nnstretch.errors import UsageError
from nnstretch.scheduler.selection.baselines.dijkstra import Dijkstra
from nnstretch.scheduler.selection.baselines.dprs import Dprs
from nnstretch.scheduler.selection.baselines.global_search import GlobalSearch
from nnstretch.scheduler.selection.baselines.greedy import Greedy, GreedyWithPenalties
from nnstretch.scheduler.selection.baselines.q_learning import QLearning
from nnstretch.scheduler.selection.baselines.random_search import RandomSearch
from nnstretch.scheduler.selection.exact.a_star import AStar
from nnstretch.scheduler.selection.exact.elimination import Elimination
from nnstretch.scheduler.selection.exact.pbqp import Pbqp
from nnstretch.scheduler.selection.problem import Selector

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
