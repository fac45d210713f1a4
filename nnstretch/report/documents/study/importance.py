"""Which parameters tell good trials from the others.

PED-ANOVA (Watanabe et al., arXiv:2304.10255), with conditional parameters as in arXiv:2601.20800: the Pearson divergence
between a parameter's density among the best tenth of the trials and among all. The numbers are those of Optuna's
`PedAnovaImportanceEvaluator`, whose import (SciPy, scikit-learn) and loops over trials take longer than the rest of a report.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nnstretch.report.documents.study.records import TrialRecord

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_BEST = 0.1
"""Share of the trials whose parameters are compared with those of all."""
_STEPS = 50
"""Bins of a number, at most."""
_PRIOR = 1.0
"""Weight of the density without observations."""
_FEWEST = 2
"""Trials with a distribution, without which it does not count."""
_TINY = 1e-12

_Numbers = npt.NDArray[np.float64]
_Indices = npt.NDArray[np.intp]
_Mask = npt.NDArray[np.bool_]


def importances(
    trials: Sequence[TrialRecord], losses: Mapping[str, Sequence[float]]
) -> Mapping[str, Mapping[str, float]]:
    """Objective -> parameter -> share of the importance of all, the largest first.

    Args:
        trials: complete ones.
        losses: objective -> a value per trial, to be minimised.

    Returns:
        Shares that add up to 1; objectives for which trials are too few or all alike are left out.
    """
    if len(trials) < _FEWEST:
        return {}
    groups = {name: _groups(name, trials) for name in dict.fromkeys(n for trial in trials for n in trial.params)}
    found = {}
    for objective, values in losses.items():
        best = _best(np.asarray(values))
        sums = {name: sum(group.importance(best) for group in members) for name, members in groups.items()}
        total = sum(sums.values())
        if total > 0:
            ordered = sorted(sums.items(), key=lambda item: -item[1])
            found[objective] = {name: value / total for name, value in ordered}
    return found


def _best(losses: _Numbers) -> _Mask:
    place = math.ceil(_BEST * len(losses)) - 1
    best: _Mask = losses <= np.partition(losses, place)[place]
    return best


@dataclass(frozen=True, eq=False)
class _Group:
    """Trials in which a parameter has the same distribution.

    Attributes:
        members: their indices.
        bins: of their values.
        count: number of bins.
        density: on the bins, from how often each was seen.
    """

    members: _Indices
    bins: _Indices
    count: int
    density: Callable[[_Indices], _Numbers]

    def importance(self, best: _Mask) -> float:
        """What the group adds to the importance of its parameter, before that is normalised."""
        chosen = best[self.members]
        if not chosen.any():
            return 0.0
        good = self.density(np.bincount(self.bins[chosen], minlength=self.count)) + _TINY
        every = self.density(np.bincount(self.bins, minlength=self.count)) + _TINY
        weight = (chosen.sum() / best.sum()) ** 2 / (len(self.members) / len(best))
        return float(weight * (every @ (good / every - 1) ** 2))


def _groups(name: str, trials: Sequence[TrialRecord]) -> list[_Group]:
    """The trials by the distribution of a parameter, without those that do not have it and distributions of one value."""
    by_distribution: dict[int, list[int]] = defaultdict(list)
    for number, trial in enumerate(trials):
        by_distribution[id(trial.distributions.get(name))].append(number)
    found = []
    for members in by_distribution.values():
        distribution = trials[members[0]].distributions.get(name)
        if distribution is None or distribution.single() or len(members) < _FEWEST:
            continue
        bins, count = _bins([trials[number].params[name] for number in members], distribution)
        density = _categories if hasattr(distribution, "choices") else _kernels
        found.append(_Group(np.array(members), bins, count, density))
    return found


def _bins(values: list[Any], distribution: BaseDistribution) -> tuple[_Indices, int]:
    """The bin of every value, and the number of bins."""
    about: Any = distribution
    if hasattr(about, "choices"):
        at = {_id_of(choice): number for number, choice in enumerate(about.choices)}
        return np.array([at[_id_of(value)] for value in values]), len(about.choices)
    low, high, numbers = about.low, about.high, np.asarray(values, np.float64)
    steps = _STEPS
    if isinstance(low, int) and about.log:
        steps = min(math.ceil(math.log2(high - low + 1)) + 1, steps)
    elif about.step is not None:
        steps = min(round((high - low) / about.step) + 1, steps)
    if about.log:
        low, high, numbers = math.log(low), math.log(high), np.log(numbers)
    places = np.ceil((numbers - low) / ((high - low) / (steps - 1)) - 0.5).astype(np.intp)
    return places.clip(0, steps - 1), steps


def _id_of(choice: Any) -> str:
    """A key of a choice: 1, 1.0, True and "1" are different ones."""
    return f"{type(choice).__name__}:{choice!r}"


def _categories(counts: _Indices) -> _Numbers:
    """The density of categories, from the number of observations of each."""
    seen = np.flatnonzero(counts)
    rows = np.full((len(seen) + 1, len(counts)), _PRIOR / (len(seen) + 1))
    rows[np.arange(len(seen)), seen] += 1
    rows /= rows.sum(axis=1, keepdims=True)
    return _mixed(counts[seen], rows)


def _kernels(counts: _Indices) -> _Numbers:
    """The density on bins, from the number of observations in each: truncated normal kernels with the width of Scott's rule."""
    bins = len(counts)
    seen = np.flatnonzero(counts)
    weights = counts[seen]
    total, sums = weights.sum(), np.cumsum(weights)
    mean = seen @ weights / total
    deviation = math.sqrt((seen - mean) ** 2 @ weights / max(1, total - 1))
    first = np.searchsorted(sums, total // 4, side="left")
    third = min(len(seen) - 1, int(np.searchsorted(sums, total * 3 // 4, side="right")))
    width = max(1.059 * min((seen[third] - seen[first]) / 1.34, deviation) * total**-0.2, 0.5 / 1.64)
    rows = np.vstack([_normal(seen[:, None], width, bins), _normal(np.array([[(bins - 1) / 2]]), bins, bins)])
    return _mixed(weights, rows)


def _normal(centres: npt.NDArray[Any], width: float, bins: int) -> _Numbers:
    """Shares of normal distributions that fall into each bin: centres × bins."""
    edges = (np.arange(bins + 1) - 0.5 - centres) / (width * math.sqrt(2))
    places, at = np.unique(edges, return_inverse=True)
    below = np.array([math.erf(place) for place in places])[at].reshape(edges.shape)
    shares: _Numbers = np.diff(below, axis=1) / (below[:, -1:] - below[:, :1])
    return shares


def _mixed(weights: _Indices, rows: _Numbers) -> _Numbers:
    shares = np.append(weights, _PRIOR)
    mixed: _Numbers = (shares / shares.sum()) @ rows
    return mixed
