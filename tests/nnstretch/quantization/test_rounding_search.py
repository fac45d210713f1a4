"""The search for roundings: against all roundings of small layers, and where moments say little or nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nnstretch.quantization.rounding_search import Floats, Problem, search


def made_up(rng: np.random.Generator, groups: int, count: int, outputs: int, places: int) -> tuple[Problem, Floats]:
    """Correlated inputs with a mean, and weights of a few steps; the second result are the inputs behind int8 layers."""
    mix = rng.standard_normal((groups, count, count)) / np.sqrt(count)
    exact = np.maximum(mix @ rng.standard_normal((groups, count, places)) + 0.5, 0)
    near = exact + 0.02 * rng.standard_normal(exact.shape)
    weights = 8 * rng.standard_normal((groups, count, outputs))
    turned = np.swapaxes(near, 1, 2)
    problem = Problem(weights, np.floor(weights), np.ceil(weights), near @ turned, near @ np.swapaxes(exact, 1, 2))
    return problem, np.stack([exact, near])


def output_errors(problem: Problem, inputs: Floats, integers: Floats) -> Floats:
    """Squared errors of the outputs, computed from the inputs themselves: groups × outputs."""
    exact, near = inputs
    outputs = [np.swapaxes(w, 1, 2) @ x for w, x in ((problem.weights, exact), (integers, near))]
    return np.asarray(((outputs[0] - outputs[1]) ** 2).sum(axis=2))


@pytest.mark.parametrize("seed", range(4))
def test_against_all_roundings(seed: int) -> None:
    """Between nearest and best, the result is close to best; never behind nearest, for any channel."""
    problem, inputs = made_up(np.random.default_rng(seed), groups=6, count=9, outputs=2, places=200)
    nearest = np.rint(problem.weights)
    found = search(problem, nearest)
    assert np.isin(found - problem.low, (0, 1)).all()
    up = np.array(list(itertools.product((0, 1), repeat=9)), np.float64).T
    best = np.stack(
        [
            output_errors(problem, inputs, problem.low + choice[:, None] * (problem.high - problem.low))
            for choice in up.T
        ]
    ).min(axis=0)
    errors, before = output_errors(problem, inputs, found), output_errors(problem, inputs, nearest)
    assert (errors <= before * (1 + 1e-9)).all()
    assert (errors >= best * (1 - 1e-9)).all()
    assert (before - errors).sum() > 0.75 * (before - best).sum() > 0


def test_no_single_weight_improves_the_result() -> None:
    """More inputs than a block of the search has."""
    problem, inputs = made_up(np.random.default_rng(5), groups=1, count=150, outputs=3, places=400)
    found = search(problem, np.rint(problem.weights))
    errors = output_errors(problem, inputs, found)
    assert (errors < 0.8 * output_errors(problem, inputs, np.rint(problem.weights))).all()
    for k in range(150):
        other = found.copy()
        other[:, k] = problem.low[:, k] + problem.high[:, k] - found[:, k]
        assert (output_errors(problem, inputs, other) >= errors * (1 - 1e-9)).all()


def test_singular_moments() -> None:
    """Fewer places than inputs, equal inputs, and inputs of 0: finite integers, no worse than the nearest."""
    rng = np.random.default_rng(6)
    problem, inputs = made_up(rng, groups=4, count=9, outputs=3, places=2)
    inputs[:, 1] = inputs[:, 1, :1]  # all inputs of a group are equal
    inputs[:, 2] = 1.0
    inputs[:, 3] = 0.0
    exact, near = inputs
    turned = np.swapaxes(near, 1, 2)
    problem = Problem(problem.weights, problem.low, problem.high, near @ turned, near @ np.swapaxes(exact, 1, 2))
    nearest = np.rint(problem.weights)
    found = search(problem, nearest)
    assert np.isin(found - problem.low, (0, 1)).all()
    after, before = output_errors(problem, inputs, found), output_errors(problem, inputs, nearest)
    assert (after <= before + 1e-9).all()
    assert after[2].sum() < before[2].sum(), "only the sum of the weights counts"
    np.testing.assert_array_equal(found[3], nearest[3])


def test_weights_without_a_choice_stay() -> None:
    problem, _ = made_up(np.random.default_rng(7), groups=1, count=9, outputs=4, places=100)
    nearest = np.rint(problem.weights)
    fixed = Problem(problem.weights, nearest, nearest, problem.hessian, problem.cross)
    np.testing.assert_array_equal(search(fixed, nearest), nearest)
