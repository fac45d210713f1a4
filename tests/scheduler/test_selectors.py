"""Selectors against brute force on random problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.scheduler.problem import Problem, Selector
from nnstretch.scheduler.selectors import Elimination

SELECTORS: list[Selector] = [Elimination()]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Small random graphs with random costs, some choices forbidden by infinite edges now and then."""
    nodes = draw(st.integers(1, 6))
    sizes = [draw(st.integers(1, 4)) for _ in range(nodes)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pairs = list(itertools.combinations(range(nodes), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    edges = {(u, v): rng.integers(0, 20, (sizes[u], sizes[v])).astype(float) for u, v in chosen}
    return Problem(tuple(rng.integers(0, 20, s).astype(float) for s in sizes), edges)


def brute_force(problem: Problem) -> float:
    return min(problem.cost(c) for c in itertools.product(*(range(len(c)) for c in problem.costs)))


@pytest.mark.parametrize("selector", SELECTORS, ids=lambda s: s.name)
@given(problem=problems())
@settings(max_examples=400, deadline=None)
def test_optimum_and_honest_cost(selector: Selector, problem: Problem) -> None:
    answer = selector.select(problem)
    assert answer.optimal
    assert answer.gap == 0
    assert answer.cost == pytest.approx(problem.cost(answer.choices))
    assert answer.cost == pytest.approx(brute_force(problem))


@given(problem=problems())
@settings(max_examples=200, deadline=None)
def test_cut_tables_stay_legal_and_bound_the_gap(problem: Problem) -> None:
    answer = Elimination(limit=4).select(problem)
    best = brute_force(problem)
    assert len(answer.choices) == len(problem.costs)
    assert answer.cost >= best - 1e-9
    assert answer.cost - answer.gap * answer.cost <= best + 1e-9
    if answer.optimal:
        assert answer.cost == pytest.approx(best)


def test_long_chain_with_residual_edges() -> None:
    rng = np.random.default_rng(0)
    nodes, choices = 500, 16
    edges = {(i, i + 1): rng.random((choices, choices)) for i in range(nodes - 1)}
    edges |= {(i, i + 3): rng.random((choices, choices)) for i in range(0, nodes - 3, 3)}
    problem = Problem(tuple(rng.random(choices) for _ in range(nodes)), edges)
    answer = Elimination().select(problem)
    assert answer.optimal
    assert answer.cost == pytest.approx(problem.cost(answer.choices))


def test_same_problem_same_answer() -> None:
    problem = Problem((np.zeros(3), np.zeros(3)), {(0, 1): np.zeros((3, 3))})
    assert Elimination().select(problem) == Elimination().select(problem)
