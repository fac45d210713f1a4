"""Selectors by name. To add one, write a module with a `Selector` and add it to `SELECTORS`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from nnstretch.scheduler.selection.problem import Selector

SELECTORS: Mapping[str, str] = MappingProxyType(
    {
        "elimination": "exact.elimination:Elimination",
        "dprs": "baselines.dynamic_programming:Dprs",
        "global-search": "baselines.dynamic_programming:GlobalSearch",
        "pbqp": "baselines.pbqp:Pbqp",
        "dijkstra": "exact.best_first:Dijkstra",
        "a-star": "exact.best_first:AStar",
        "q-learning": "baselines.q_learning:QLearning",
        "greedy-penalties": "baselines.greedy:GreedyWithPenalties",
        "greedy": "baselines.greedy:Greedy",
        "random": "baselines.random_search:RandomSearch",
    }
)
"""name -> module and class, the default first. Modules load on first use, which keeps the command line's start fast."""


def default_selector() -> Selector:
    """The default selector: proves the optimum within seconds, or returns PBQP's answer with its gap."""
    return selector_named(next(iter(SELECTORS)))


def selector_named(name: str) -> Selector:
    """The selector of that name.

    Raises:
        UsageError: there is none.
    """
    return selector_class(name)()


def selector_class(name: str) -> type[Selector]:
    """The class of the selector of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in SELECTORS:
        raise UsageError(f"there is no selector {name!r}; known are {', '.join(SELECTORS)}")
    module, _, attribute = SELECTORS[name].partition(":")
    found: type[Selector] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found
