"""Conformance of selectors: checks that every selector passes on every problem.

`every` has an instance of each selector in `nnstretch.scheduler.selection.SELECTORS`; an entry there covers a new selector.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from nnstretch.errors import SelectionError
from nnstretch.scheduler.selection import SELECTORS, selector_class
from nnstretch.scheduler.selection.base import ExactSearcher
from nnstretch.scheduler.selection.problem import Problem, Selector
from tests.kits.selection.selection_problems import best_cost, network

QUICK = {"episodes": 12}
"""Constructor arguments of searches that draw many assignments, to keep tests short."""
CRAMPED = {"limit": 4, "most": 3}
"""Constructor arguments that make exact searches give up on most problems."""


def made(name: str, arguments: dict[str, int]) -> Selector | None:
    """The selector of that name with those of the arguments that its constructor takes; None if it takes none."""
    make = selector_class(name)
    known = {key: value for key, value in arguments.items() if key in inspect.signature(make).parameters}
    return make(**known) if known else None


def every() -> list[Selector]:
    """An instance of each selector."""
    return [made(name, QUICK) or selector_class(name)() for name in SELECTORS]


def exact() -> list[Selector]:
    """Selectors that prove the optimum of small problems."""
    return [selector for selector in every() if isinstance(selector, ExactSearcher)]


def cramped() -> list[Selector]:
    """Exact selectors that are too limited for most problems."""
    return [selector for name in SELECTORS if (selector := made(name, CRAMPED)) is not None]


def check_optimum(problem: Problem, *selectors: Selector) -> None:
    """Exact selectors find and prove the optimum of brute force."""
    best = best_cost(problem)
    for selector in selectors:
        if best is None:
            with pytest.raises(SelectionError):
                selector.select(problem)
            continue
        answer = selector.select(problem)
        assert answer.optimal, selector.name
        assert answer.gap == 0, selector.name
        assert answer.cost == pytest.approx(best, rel=1e-9, abs=1e-12), selector.name


def check_answer(selector: Selector, problem: Problem) -> None:
    """An answer is legal, within the limits, the same every time, and its gap contains the optimum of brute force."""
    best = best_cost(problem)
    if best is None:
        with pytest.raises(SelectionError):
            selector.select(problem)
        return
    answer = selector.select(problem)
    assert len(answer.choices) == len(problem.costs)
    assert np.isfinite(answer.cost)
    assert problem.keeps_limits(answer.choices)
    assert answer.cost == problem.cost(answer.choices)
    assert answer.amounts == {r: problem.amount(r, answer.choices) for r in problem.amounts}
    assert 0 <= answer.gap <= 1
    assert answer.cost * (1 - answer.gap) <= best * (1 + 1e-9) + 1e-12
    assert answer.optimal == (answer.gap == 0)
    if answer.optimal:
        assert answer.cost == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert selector.select(problem) == answer


def seeded_problem() -> Problem:
    """A network with many assignments of similar cost, so that draws decide."""
    edges = [(i, i + 1) for i in range(19)] + [(i, i + 3) for i in range(0, 17, 3)]
    drawn = network(np.random.default_rng(11), edges, 20, 4)
    return Problem(drawn.costs, drawn.edges, seed=7)


def answers() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each selector's choices for the seeded problem."""
    for selector in every():
        yield selector.name, selector.select(seeded_problem()).choices


def check_same_in_another_process() -> None:
    """Equal seeds give equal answers in another process, with other hashes."""
    code = (
        "import json; from tests.kits.selection.selector_conformance import answers; print(json.dumps(dict(answers())))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    assert {name: tuple(choices) for name, choices in json.loads(found.stdout).items()} == dict(answers())
