"""The fidelity ladder: which designs are evaluated more thoroughly.

Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter Tuning", arXiv:1810.05934): a trial
goes on to the next fidelity if it is among the best 1/eta of the trials that have reached its own. Trials are ranked by
non-dominated fronts and, within a front, by crowding distance (NSGA-II). An objective that a fidelity does not know does not
count there; the MACs stand for the accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nnstretch.sweeps.objectives import Fidelity, Objective, Values

_Numbers = npt.NDArray[np.float64]


def rungs(last: Fidelity, needs_runs: bool) -> tuple[Fidelity, ...]:
    """The fidelities that a trial passes, cheapest first.

    Args:
        last: the fidelity of the study's values.
        needs_runs: whether designs run on processors; otherwise latencies are predicted at every fidelity.
    """
    return tuple(f for f in Fidelity if f <= last and (needs_runs or f is not Fidelity.MEASURED))


def losses(values: Sequence[Values], objectives: Sequence[Objective]) -> _Numbers:
    """What is to be minimised: a row per trial, a column per objective that all of them know."""
    columns = []
    for objective in objectives:
        name = objective.name
        if name == "accuracy" and not all(name in found for found in values):
            name = "macs"
        if all(name in found for found in values):
            sign = -1.0 if objective.maximised else 1.0
            columns.append([sign * found[name] for found in values])
    return np.array(columns, dtype=np.float64).reshape(len(columns), len(values)).T


def ranks(points: _Numbers) -> npt.NDArray[np.int64]:
    """Place of every point, 0 for the best: by front, then by crowding distance."""
    fronts = front_numbers(points)
    crowding = np.zeros(len(points))
    for number in range(int(fronts.max(initial=-1)) + 1):
        members = np.flatnonzero(fronts == number)
        crowding[members] = _crowding_distances(points[members])
    order = np.lexsort((np.arange(len(points)), -crowding, fronts))
    places = np.empty(len(points), dtype=np.int64)
    places[order] = np.arange(len(points))
    return places


def front_numbers(points: _Numbers) -> npt.NDArray[np.int64]:
    """Number of the non-dominated front of every point, from 0; equal points are in one front."""
    numbers = np.full(len(points), -1, dtype=np.int64)
    number = 0
    while (left := np.flatnonzero(numbers < 0)).size:
        rest = points[left]
        no_worse = (rest[:, None, :] <= rest[None, :, :]).all(axis=2)
        better = (rest[:, None, :] < rest[None, :, :]).any(axis=2)
        dominated = (no_worse & better).any(axis=0)
        numbers[left[~dominated]] = number
        number += 1
    return numbers


def _crowding_distances(points: _Numbers) -> _Numbers:
    """Sum over the objectives of the distance between a point's neighbours; infinite at both ends."""
    distances = np.zeros(len(points))
    for column in points.T:
        order = np.argsort(column, kind="stable")
        span = column[order[-1]] - column[order[0]]
        distances[order[[0, -1]]] = np.inf
        if span > 0:
            distances[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / span
    return distances


def is_promoted(own: Values, others: Sequence[Values], objectives: Sequence[Objective], reduction: int) -> bool:
    """Whether a trial goes on to the next fidelity.

    Args:
        own: its values.
        others: values of the other trials that have reached its fidelity.
        objectives: of the study.
        reduction: eta; the first trial always goes on.
    """
    points = losses([own, *others], objectives)
    return bool(ranks(points)[0] < max(1, len(points) // reduction))


def hypervolume(points: _Numbers, reference: Sequence[float]) -> float:
    """Volume between the front of some points, to be minimised, and a reference point that is worse than all of them."""
    inside = points[(points < np.asarray(reference)).all(axis=1)]
    if not len(inside):
        return 0.0
    if points.shape[1] == 1:
        return float(reference[0] - inside[:, 0].min())
    inside = inside[np.argsort(inside[:, -1], kind="stable")]
    ends = [*inside[1:, -1], reference[-1]]
    slices = ((end - point[-1]) for point, end in zip(inside, ends, strict=True))
    parts = [d * hypervolume(inside[: i + 1, :-1], reference[:-1]) for i, d in enumerate(slices) if d > 0]
    return float(sum(parts))
