"""Random selection problems, and their solution by brute force: all assignments at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from nnstretch.scheduler.selection.problem import Costs, Problem, loosened

SHAPES = ("chain", "residual", "dense", "wild", "tree")


@st.composite
def problems(draw: st.DrawFn, *, most: int = 6, resources: int = 0) -> Problem:
    """Graphs of several shapes with several inputs and outputs, few or many choices, ties, zeros and forbidden pairs."""
    nodes = draw(st.integers(1, most))
    sizes = draw(st.lists(st.integers(1, 4), min_size=nodes, max_size=nodes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    highest = draw(st.sampled_from((1, 3, 20, 10**6)))
    forbidden = draw(st.sampled_from((0.0, 0.0, 0.1, 0.4)))
    unit = draw(st.sampled_from((1.0, 1e-6)))  # layers take microseconds: no absolute tolerance may hide them

    def numbers(*shape: int) -> Costs:
        found = rng.integers(0, highest, shape, endpoint=True).astype(float)
        return unit * (found + rng.random(shape) if draw(st.booleans()) else found)

    def forbidding(table: Costs) -> Costs:
        return np.where(rng.random(table.shape) < forbidden, np.inf, table)

    pairs = draw(edges_of(nodes))
    edges = {(u, v): forbidding(numbers(sizes[u], sizes[v])) for u, v in pairs}
    amounts = {f"resource{r}": tuple(numbers(s) for s in sizes) for r in range(resources)}
    limits = {name: draw(st.sampled_from((0.2, 0.5, 0.8, 1.0))) * _most(a) for name, a in amounts.items()}
    return Problem(tuple(numbers(s) for s in sizes), edges, amounts, limits, seed=draw(st.integers(0, 3)))


@st.composite
def edges_of(draw: st.DrawFn, nodes: int) -> list[tuple[int, int]]:
    """Edges of a graph of some shape."""
    shape = draw(st.sampled_from(SHAPES))
    chain = [(i, i + 1) for i in range(nodes - 1)]
    pairs = list(itertools.combinations(range(nodes), 2))
    if shape == "chain" or not pairs:
        return chain
    if shape == "residual":
        return sorted({*chain, *((i, i + 2) for i in range(nodes - 2))})
    if shape == "dense":
        return pairs
    if shape == "tree":
        return [(draw(st.integers(0, v - 1)), v) for v in range(1, nodes)]
    return sorted(draw(st.lists(st.sampled_from(pairs), unique=True)))


def _most(amounts: tuple[Costs, ...]) -> float:
    return sum(float(a.max()) for a in amounts)


def legal(problem: Problem) -> list[tuple[int, ...]]:
    """All assignments of finite cost within the limits, in ascending order."""
    found: list[tuple[int, ...]] = list(map(tuple, np.argwhere(np.isfinite(_costs(problem))).tolist()))
    return found


def best_cost(problem: Problem) -> float | None:
    """The cost of the best legal assignment, None if there is none."""
    best = float(_costs(problem).min())
    return best if np.isfinite(best) else None


def legal_values(problem: Problem, resources: Sequence[str]) -> Costs:
    """A row per legal assignment, in the order of `legal`: its cost, then its amount of each resource."""
    costs = _costs(problem)
    tables = [costs, *(_totals(problem, problem.amounts[name]) for name in resources)]
    return np.stack([table[np.isfinite(costs)] for table in tables], axis=1)


def _costs(problem: Problem) -> Costs:
    """The cost of every assignment, one axis per node; infinite beyond the limits."""
    totals = _totals(problem, problem.costs)
    for (u, v), matrix in problem.edges.items():
        totals = totals + _spread(problem, matrix if u < v else matrix.T, u, v)
    for name, limit in problem.limits.items():
        totals = np.where(_totals(problem, problem.amounts[name]) <= loosened(limit), totals, np.inf)
    return totals


def _totals(problem: Problem, tables: Sequence[Costs]) -> Costs:
    """The sum of one number per node, for every assignment."""
    return sum((_spread(problem, table, node) for node, table in enumerate(tables)), np.zeros(problem.sizes))


def _spread(problem: Problem, table: Costs, *nodes: int) -> Costs:
    """A table over some nodes, ascending, with an axis for every node."""
    return table.reshape([size if node in nodes else 1 for node, size in enumerate(problem.sizes)])


def network(rng: np.random.Generator, edges: list[tuple[int, int]], nodes: int, choices: int) -> Problem:
    """A problem with full random costs on given edges."""
    matrices = {e: rng.random((choices, choices)) for e in edges}
    return Problem(tuple(rng.random(choices) for _ in range(nodes)), matrices)
