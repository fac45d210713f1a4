"""The search for the rounding of a layer's weights that changes its outputs least.

Every weight may be rounded down or up. With a layer's exact inputs X and the inputs X̂ that it has behind quantised layers, the
squared error of its outputs is ‖wX − qX̂‖² = qHqᵀ − 2qtᵀ + a constant, where H = X̂X̂ᵀ and t = wXX̂ᵀ: a quadratic binary
problem for every output channel (Nagel et al., "Up or down? Adaptive rounding for post-training quantization", 2020,
equations 20 and 25, without the activation function). The paper relaxes it and descends along gradients. Here columns of the
weights are rounded one after the other, each time with the error spread over the rest (Frantar et al., "GPTQ", 2023,
section 3.3 and algorithm 1, but between the two neighbours of each weight); then coordinate descent changes single weights
while that helps. Both treat all output channels at once and need no random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BLOCK = 128
"""Columns between two updates of all the others."""
_DAMPING = 0.01
"""Share of the mean of H's diagonal that is added to it before it is inverted (GPTQ, section 3.3)."""
_SWEEPS = 6
"""Sweeps of coordinate descent at most; later ones change few weights."""


@dataclass(frozen=True)
class Problem:
    """Weights to round, in steps of their scales, and moments of the layer's inputs.

    Attributes:
        weights: exact, groups × inputs of an output × outputs of a group.
        low: the smaller of the two integers that each weight may become, as floats.
        high: the larger; equal to `low` where a weight has no choice.
        hessian: H = X̂X̂ᵀ, groups × inputs × inputs.
        cross: X̂Xᵀ, of the same shape.
    """

    weights: Floats
    low: Floats
    high: Floats
    hessian: Floats
    cross: Floats


def search(problem: Problem, nearest: Floats) -> Floats:
    """Integers with an error that no change of a single weight reduces.

    Args:
        problem: what is rounded.
        nearest: the integers next to the weights, of their shape; no output channel gets a larger error than with these.

    Returns:
        Integers, as floats, of the shape of the weights.
    """
    target = problem.cross @ problem.weights
    greedy = _greedy(problem, target, nearest)
    better = _costs(problem, target, greedy) < _costs(problem, target, nearest)
    return _descended(problem, target, np.where(better[:, None], greedy, nearest))


def _costs(problem: Problem, target: Floats, integers: Floats) -> Floats:
    """Squared error of every output channel, less a constant: groups × outputs."""
    return np.asarray(((problem.hessian @ integers - 2 * target) * integers).sum(axis=1))


def _greedy(problem: Problem, target: Floats, nearest: Floats) -> Floats:
    """Rounds input by input; those that follow make up for the error as far as they can."""
    count = problem.weights.shape[1]
    damping = _DAMPING * np.einsum("gkk->gk", problem.hessian).mean(axis=1)
    damping[damping <= 0] = 1.0  # inputs of 0 alone: any rounding is as good
    damped = problem.hessian + damping[:, None, None] * np.eye(count)
    inverse = np.linalg.inv(damped)
    factor = np.linalg.cholesky((inverse + np.swapaxes(inverse, 1, 2)) / 2)
    rest = np.asarray(inverse @ (target + damping[:, None, None] * problem.weights))
    found = nearest.copy()
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        errors = np.zeros((len(rest), stop - start, rest.shape[2]))
        for k in range(start, stop):
            found[:, k] = np.clip(np.rint(rest[:, k]), problem.low[:, k], problem.high[:, k])
            error = errors[:, k - start] = (rest[:, k] - found[:, k]) / factor[:, k, k, None]
            rest[:, k:stop] -= factor[:, k:stop, k, None] * error[:, None]
        rest[:, stop:] -= factor[:, stop:, start:stop] @ errors
    return found


def _descended(problem: Problem, target: Floats, start: Floats) -> Floats:
    """Changes single weights as long as that reduces an output channel's error."""
    found, hessian = start.copy(), problem.hessian
    slope = hessian @ found - target
    both = problem.low + problem.high
    for _ in range(_SWEEPS):
        before = found.copy()
        for begin in range(0, found.shape[1], _BLOCK):
            stop = min(begin + _BLOCK, found.shape[1])
            block = slope[:, begin:stop].copy()
            for k in range(begin, stop):
                change = both[:, k] - 2 * found[:, k]
                change[2 * change * block[:, k - begin] + change**2 * hessian[:, k, k, None] >= 0] = 0
                if change.any():
                    found[:, k] += change
                    block += hessian[:, begin:stop, k, None] * change[:, None]
            slope += hessian[:, :, begin:stop] @ (found - before)[:, begin:stop]
        if np.array_equal(found, before):
            break
    return found
