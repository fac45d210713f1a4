"""The fastest hybrid within a limit of accuracy, on made-up costs and accuracies."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.processors import build_processors
from nnstretch.errors import SelectionError
from nnstretch.passes import optimize
from nnstretch.scheduler.planner import choice_space
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.accuracy import ROUNDING, fastest_accurate, rounding_errors
from nnstretch.scheduler.selection.hybrid import HybridAnswer, best_of, choice_dtype, dtypes_of_units
from nnstretch.scheduler.selection.problem import Assignment, Problem
from tests.kits.graphs.quantized_networks import QuantizedNetwork
from tests.kits.made_up_costs import Work

FLOAT32, INT8 = 0, 1
REFERENCE = 90.0

numbers = st.integers(0, 9).map(float)


def problem_of(costs: list[tuple[float, float]], losses: list[float], conversion: float) -> Problem:
    """A chain of layers with (float32, int8) seconds, and the points that each loses in int8."""
    edge = np.array([[0.0, conversion], [conversion, 0.0]])
    edges = {(i, i + 1): edge for i in range(len(costs) - 1)}
    amounts = {ROUNDING: tuple(np.array([0.0, loss]) for loss in losses)}
    return Problem(tuple(np.array(pair) for pair in costs), edges, amounts)


def answers(problem: Problem) -> HybridAnswer:
    types = {name: [np.arange(2) == dtype] * len(problem.costs) for name, dtype in (("float32", 0), ("int8", 1))}
    return best_of(problem, default_selector(), types)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=6), numbers, st.integers(0, 20))
@settings(max_examples=150, deadline=None)
def test_losses_that_add_up(layers: list[tuple[float, float, float]], conversion: float, points: int) -> None:
    """Where accuracies are what the order assumes, the answer is the best of all mixtures."""
    problem = problem_of([(a, b) for a, b, _ in layers], [loss for _, _, loss in layers], conversion)

    def accuracy(answer: Assignment) -> float:
        return REFERENCE - problem.amount(ROUNDING, answer.choices)

    found = fastest_accurate(problem, answers(problem), accuracy, points)
    every = itertools.product((FLOAT32, INT8), repeat=len(layers))
    wanted = min(problem.cost(c) for c in every if problem.amount(ROUNDING, c) <= points)
    assert found.answer.cost == pytest.approx(wanted)
    assert found.accuracy == accuracy(found.answer)
    assert found.reference == REFERENCE
    assert (1 - found.answer.gap) * found.answer.cost <= wanted + 1e-9


@given(
    st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=6),
    numbers,
    st.integers(0, 20),
    st.integers(0, 999),
)
@settings(max_examples=100, deadline=None)
def test_any_accuracies(layers: list[tuple[float, float, float]], conversion: float, points: int, seed: int) -> None:
    """The answer's own accuracy was measured and is within the limit, and it is no slower than float32."""
    problem = problem_of([(a, b) for a, b, _ in layers], [loss for _, _, loss in layers], conversion)
    generator = np.random.default_rng(seed)
    known: dict[tuple[int, ...], float] = {(FLOAT32,) * len(layers): REFERENCE}

    def accuracy(answer: Assignment) -> float:
        return known.setdefault(answer.choices, REFERENCE - float(generator.integers(-3, 30)))

    everything = answers(problem)
    reference = known.get(everything.restricted["float32"].choices, REFERENCE)
    found = fastest_accurate(problem, everything, accuracy, points)
    assert found.accuracy == known[found.answer.choices] >= reference - points
    assert found.answer.cost <= everything.restricted["float32"].cost
    assert found.measured <= 3 + len(layers)
    assert ROUNDING not in found.answer.amounts or found.answer is everything.best


def test_without_a_network_in_float32_there_is_nothing_to_compare_with() -> None:
    problem = problem_of([(1.0, 2.0)], [1.0], 0.0)
    tight = replace(problem, amounts={"memory": (np.array([4.0, 1.0]),)}, limits={"memory": 2.0})
    with pytest.raises(SelectionError, match="float32"):
        fastest_accurate(tight, answers(tight), lambda _: REFERENCE, 1.0)


def test_each_layer_is_rounded_alone_whatever_the_limits_are() -> None:
    """One layer in int8, and all others in float32, although no plan is within the limit of memory."""
    found = build_processors(CompileOptions("cpu:0", dtype="hybrid"))
    space = choice_space(optimize(QuantizedNetwork(7, 4).graph()), found.named, found.host, Work())
    amounts = {"memory": tuple(np.ones(len(choices)) for choices in space.choices)}
    limited = replace(space, problem=replace(space.problem, amounts=amounts, limits={"memory": 0.0}))
    both = [
        len({choice_dtype(unit.layer, choice) for choice in choices}) > 1
        for unit, choices in zip(space.graph.units, space.choices, strict=True)
    ]

    def rounded(answer: Assignment) -> float:
        """Which of the layers that may be in float32 are in int8, as bits."""
        types = [dtype for _, dtype in dtypes_of_units(space, answer)]
        return float(sum(1 << n for n, dtype in enumerate(types) if both[n] and dtype == "int8"))

    assert sum(both) > 1
    assert rounding_errors(limited, rounded) == [float(mixed << n) for n, mixed in enumerate(both)]
