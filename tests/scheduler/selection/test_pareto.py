"""Pareto fronts against brute force, and of problems as large as networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import SelectionError, UsageError
from nnstretch.scheduler.selection.constraints.pareto import ParetoFront, _undominated, pareto
from nnstretch.scheduler.selection.exact.elimination import Elimination
from nnstretch.scheduler.selection.problem import Assignment, Costs, Problem
from tests.kits.selection.selection_problems import legal_values, network, problems


def values(points: Sequence[Assignment], resources: list[str]) -> Costs:
    """A row per point: its cost, then its amounts."""
    return np.array([(point.cost, *(point.amounts[r] for r in resources)) for point in points])


def covering(front: Costs, points: Costs) -> np.ndarray:
    """Points x points of the front: whether the latter is no worse in cost and all amounts, up to rounding."""
    bounds = points + 1e-9 * np.maximum(1.0, np.abs(points))
    return np.asarray((front[None] <= bounds[:, None]).all(axis=2))


@pytest.mark.parametrize("count", [1, 2])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_fronts_are_complete_and_hold_nothing_else(count: int, data: st.DataObject) -> None:
    problem = data.draw(problems(most=5, resources=count))
    resources = [f"resource{i}" for i in range(count)]
    every = legal_values(problem, resources)
    if not len(every):
        with pytest.raises(SelectionError):
            pareto(problem, resources)
        return
    found = pareto(problem, resources)
    assert found.gap == 0
    front = values(found.points, resources)
    assert covering(front, every).any(axis=1).all()
    cheaper = np.column_stack([front[:, 0] * (1 - 1e-6) - 1e-6, front[:, 1:]])
    covered_by = covering(front, cheaper)
    np.fill_diagonal(covered_by, val=False)
    assert not covered_by.any()
    assert front.tolist() == sorted(front.tolist())
    for point in found.points:
        assert problem.keeps_limits(point.choices)
        assert point.cost == problem.cost(point.choices)
    assert found.points[0].cost == pytest.approx(Elimination().select(problem).cost, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("count", [1, 2])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_thinned_fronts_say_how_much_may_be_missing(count: int, data: st.DataObject) -> None:
    problem = data.draw(problems(most=5, resources=count))
    resources = [f"resource{i}" for i in range(count)]
    every = legal_values(problem, resources)
    if not len(every):
        return
    found = pareto(problem, resources, capacity=2)
    assert 0 <= found.gap <= 1
    front = values(found.points, resources)
    affordable = covering(front * [0, *[1] * count], every).any(axis=1)
    assert covering(front * [1 - found.gap, *[1] * count], every[affordable]).any(axis=1).all()
    assert count > 1 or affordable.all()


def test_fronts_of_three_objectives_are_nearly_complete() -> None:
    problem = chain_with_memory(30, 3)
    found = pareto(problem, ["memory", "loss"])
    assert len(found.points) > 100
    assert found.gap < 0.2


def chain_with_memory(nodes: int, choices: int) -> Problem:
    rng = np.random.default_rng(nodes)
    edges = [(i, i + 1) for i in range(nodes - 1)] + [(i, i + 3) for i in range(0, nodes - 3, 3)]
    costs = network(rng, edges, nodes, choices)
    memory = tuple(np.round(1000 * (2 - c) + 200 * rng.random(choices)) for c in costs.costs)
    edges_ = {e: 0.2 * m for e, m in costs.edges.items()}
    return Problem(costs.costs, edges_, {"memory": memory, "loss": tuple(rng.random(choices) for _ in range(nodes))})


def test_a_network_has_a_front() -> None:
    problem = chain_with_memory(60, 3)
    found: ParetoFront = pareto(problem, ["memory"])
    assert found.gap < 0.01
    assert len(found.points) > 20
    assert found.points[0].cost == pytest.approx(Elimination().select(problem).cost)
    least = sum(float(a.min()) for a in problem.amounts["memory"])
    assert found.points[-1].amounts["memory"] == least


def test_limits_pick_points_of_the_front() -> None:
    problem = chain_with_memory(40, 3)
    found = pareto(problem, ["memory"])
    for point in found.points[:: max(1, len(found.points) // 5)]:
        limited = Problem(problem.costs, problem.edges, problem.amounts, {"memory": point.amounts["memory"]})
        answer = Elimination().select(limited)
        assert answer.optimal
        assert answer.cost <= point.cost * (1 + 1e-9)
        assert answer.cost >= point.cost * (1 - found.gap) - 1e-9


def test_two_limits_at_once() -> None:
    problem = chain_with_memory(40, 3)
    free = Elimination().select(problem)
    limits = {r: 0.9 * a for r, a in free.amounts.items()}
    answer = Elimination().select(Problem(problem.costs, problem.edges, problem.amounts, limits))
    assert all(answer.amounts[r] <= limits[r] for r in limits)
    assert answer.cost > free.cost
    assert answer.gap < 0.01


def test_unknown_resources_are_refused() -> None:
    with pytest.raises(UsageError, match=r"amounts \(none\); got power"):
        pareto(Problem((np.zeros(2),), {}), ["power"])
    with pytest.raises(UsageError, match="got none"):
        pareto(Problem((np.zeros(2),), {}), [])


def test_of_points_that_tie_the_undominated_stay() -> None:
    """In any order: a tie in cost, in an amount, and equal points; the one with the first choices stays."""
    points = [
        Assignment((number,), cost, optimal=False, gap=1.0, amounts={"memory": memory, "loss": loss})
        for number, (cost, memory, loss) in enumerate(
            [(2.0, 5.0, 1.0), (1.0, 7.0, 1.0), (1.0, 5.0, 1.0), (1.0, 5.0, 1.0), (2.0, 4.0, 1.0), (2.0, 5.0, 0.5)]
        )
    ]
    for ordered in (points, points[::-1]):
        kept = _undominated(ordered, ["memory", "loss"])
        assert [point.choices for point in kept] == [(2,), (4,), (5,)]
