"""Hybrid selection on made-up costs: none slower than the network in one type, and the best of all mixtures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nnstretch.errors import SelectionError
from nnstretch.scheduler.selection import default_selector, selector_named
from nnstretch.scheduler.selection.hybrid import best_of, only
from nnstretch.scheduler.selection.problem import Assignment, Problem, Selector
from nnstretch.scheduler.selection.resources import MEMORY
from tests.kits.selection.selection_problems import best_cost, legal, problems

FLOAT32, INT8 = 0, 1


def layers(costs: list[tuple[float, float]], quantise: float, dequantise: float) -> Problem:
    """A chain of layers with (float32, int8) seconds and conversions between them; the caller has floats."""
    nodes = np.array(costs, float)
    nodes[0, INT8] += quantise
    nodes[-1, INT8] += dequantise
    edge = np.array([[0.0, quantise], [dequantise, 0.0]])
    return Problem(tuple(nodes), {(i, i + 1): edge for i in range(len(costs) - 1)})


def types_of(problem: Problem) -> dict[str, list[np.ndarray]]:
    return {
        name: [np.arange(size) == dtype for size in problem.sizes]
        for name, dtype in (("float32", FLOAT32), ("int8", INT8))
    }


def test_layers_take_the_faster_type_where_conversions_are_cheap() -> None:
    """As in SoftNeuro's table III: Winograd in float32, dense layers in int8, and a pool in int8 between float layers."""
    problem = layers([(2, 5), (2, 5), (3, 1), (2, 5), (9, 3), (9, 3)], 0.5, 0.25)
    found = best_of(problem, default_selector(), types_of(problem))
    assert found.best.choices == (FLOAT32, FLOAT32, INT8, FLOAT32, INT8, INT8)
    assert found.best.cost == 2 + 2 + 0.5 + 1 + 0.25 + 2 + 0.5 + 3 + 3 + 0.25
    assert {name: answer.cost for name, answer in found.restricted.items()} == {"float32": 27.0, "int8": 22.75}


@pytest.mark.parametrize(("price", "wanted"), [(0.0, (FLOAT32, INT8, FLOAT32)), (9.0, (FLOAT32,) * 3)])
def test_conversions_have_a_price(price: float, wanted: tuple[int, ...]) -> None:
    problem = layers([(1, 2), (3, 1), (1, 2)], price, price)
    assert best_of(problem, default_selector(), types_of(problem)).best.choices == wanted


seconds = st.integers(0, 9).map(float)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=7), seconds, seconds)
@settings(max_examples=100, deadline=None)
def test_none_is_slower_than_one_type(costs: list[tuple[float, float]], quantise: float, dequantise: float) -> None:
    problem = layers(costs, quantise, dequantise)
    found = best_of(problem, default_selector(), types_of(problem))
    floats, integers = (sum(column) for column in zip(*costs, strict=True))
    assert found.restricted["float32"].cost == pytest.approx(floats)
    assert found.restricted["int8"].cost == pytest.approx(integers + quantise + dequantise)
    assert found.best.cost == pytest.approx(best_cost(problem))
    assert found.best.optimal


@pytest.mark.parametrize("selector", ["elimination", "greedy", "random", "pbqp"])
@given(problem=problems(resources=1), data=st.data())
@settings(max_examples=60, deadline=None)
def test_restrictions_of_any_problem(selector: str, problem: Problem, data: st.DataObject) -> None:
    """The best is no slower than any restricted answer, also by heuristics and within limits, and never claims too much."""
    masks = [np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n))) for n in problem.sizes]
    allowed = [mask if mask.any() else ~mask for mask in masks]
    optimum = best_cost(problem)
    assume(optimum is not None)
    assert optimum is not None
    found = best_of(problem, selector_named(selector), {"some": allowed})
    assert found.best.choices in legal(problem)
    assert found.best.cost == pytest.approx(problem.cost(found.best.choices))
    assert optimum <= found.best.cost * (1 + 1e-9) + 1e-9
    assert (1 - found.best.gap) * found.best.cost <= optimum + 1e-6
    inside = best_cost(only(problem, allowed))
    assert ("some" in found.restricted) == (inside is not None)
    for answer in found.restricted.values():
        assert all(mask[choice] for mask, choice in zip(allowed, answer.choices, strict=True))
        assert found.best.cost <= answer.cost


class _LeastMemory(Selector):
    """Compares bytes, and finds none but the fastest answer of the problem that it gets."""

    name = "least-memory"
    resources = (MEMORY,)

    def select(self, problem: Problem) -> Assignment:
        return default_selector().select(problem)

    def aim(self, answer: Assignment) -> float:
        return answer.amounts[MEMORY]


def test_the_best_is_that_of_the_selectors_own_aim() -> None:
    problem = layers([(3, 1), (3, 1)], 0.0, 0.0)
    few, many = np.array([1.0, 2.0]), np.array([2.0, 1.0])  # bytes in float32 and in int8
    for amounts, wanted in ((few, (FLOAT32, FLOAT32)), (many, (INT8, INT8))):
        limited = replace(problem, amounts={MEMORY: (amounts, amounts)})
        found = best_of(limited, _LeastMemory(), types_of(limited))
        assert found.best.choices == wanted
        assert found.best.amounts == {MEMORY: 2.0}
    assert best_of(problem, default_selector(), types_of(problem)).best.choices == (INT8, INT8)


def test_a_problem_without_answers() -> None:
    problem = Problem((np.array([np.inf, np.inf]),), {})
    with pytest.raises(SelectionError):
        best_of(problem, default_selector(), types_of(problem))
