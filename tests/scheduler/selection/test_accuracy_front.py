"""Fronts of latency, resources and accuracy, on made-up costs and accuracies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.scheduler.selection.accuracy_front import accuracy_front, measured_first
from nnstretch.scheduler.selection.problem import Assignment, Problem

numbers = st.integers(0, 9).map(float)
LAYERS = st.lists(st.tuples(*[numbers] * 5), min_size=1, max_size=5)


def problem_of(layers: list[tuple[float, ...]]) -> Problem:
    """Two choices per layer: seconds of each, bytes of each, and the loss of the second."""
    costs = tuple(np.array(layer[:2]) for layer in layers)
    memory = tuple(np.array(layer[2:4]) for layer in layers)
    loss = tuple(np.array([0.0, layer[4]]) for layer in layers)
    return Problem(costs, {}, {"memory": memory, "loss": loss})


@given(LAYERS, st.booleans())
@settings(max_examples=100, deadline=None)
def test_accuracies_that_are_what_the_order_says(layers: list[tuple[float, ...]], with_memory: bool) -> None:
    """The front is that of all plans."""
    problem, resources = problem_of(layers), ["memory"] if with_memory else []

    def rates(choices: tuple[int, ...]) -> tuple[float, ...]:
        amounts = (problem.amount(name, choices) for name in (*resources, "loss"))
        return (problem.cost(choices), *amounts)

    found = accuracy_front(problem, resources, "loss", lambda a: 90 - problem.amount("loss", a.choices), 10**6)
    every = {rates(choices) for choices in itertools.product((0, 1), repeat=len(layers))}
    wanted = {one for one in every if not any(all(a <= b for a, b in zip(o, one, strict=True)) for o in every - {one})}
    assert {rates(point.choices) for point in found.points} == wanted
    assert len(found.points) == len(wanted)
    assert found.measured == found.candidates
    assert [90 - problem.amount("loss", point.choices) for point in found.points] == list(found.accuracies)
    assert [point.cost for point in found.points] == sorted(point.cost for point in found.points)


@given(LAYERS, st.integers(2, 5), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_any_accuracies(layers: list[tuple[float, ...]], most: int, seed: int) -> None:
    """Every point was measured; none beats another; the best measured accuracy is there."""
    generator, known = np.random.default_rng(seed), dict[tuple[int, ...], float]()

    def accuracy(answer: Assignment) -> float:
        return known.setdefault(answer.choices, float(generator.integers(50, 90)))

    found = accuracy_front(problem_of(layers), ["memory"], "loss", accuracy, most)
    assert found.measured == len(known) == min(most, found.candidates)
    assert [known[point.choices] for point in found.points] == list(found.accuracies)
    assert max(found.accuracies) == max(known.values())
    rows = [(p.cost, p.amounts["memory"], -a) for p, a in zip(found.points, found.accuracies, strict=True)]
    for one, other in itertools.permutations(rows, 2):
        assert not all(a <= b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("costs", "most", "wanted"),
    [
        ([1, 1.1, 1.2, 2, 3], 5, [1, 1.1, 1.2, 2, 3]),
        ([1, 1.1, 1.2, 2, 3], 4, [1, 1.1, 1.2, 3]),
        ([1, 1.05, 1.1, 1.2, 1.25, 9], 4, [1, 1.1, 1.25, 9]),
        ([1, 1.1, 1.2, 1.25], 3, [1, 1.2, 1.25]),
        ([1, 2, 3, 4], 2, [1, 4]),
        ([1, 1.1, 2], 2, [1, 2]),
    ],
)
def test_plans_up_to_a_quarter_slower_come_first(costs: list[float], most: int, wanted: list[float]) -> None:
    points = [Assignment((number,), cost, True, 0.0) for number, cost in enumerate(costs)]
    assert [point.cost for point in measured_first(points, most)] == wanted
