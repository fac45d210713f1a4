"""Measurements as a table of features, and what is known of each kind: an operator computed by a routine."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nnstretch.devices.base.routine import Parameters
from nnstretch.scheduler.costmodel.features import Machine, features
from nnstretch.scheduler.costmodel.workload import Workload, parse_workload
from nnstretch.scheduler.measurement.store.rows import CacheState

_PRODUCTS_PER_SECOND = 50e9  # of one core
_BYTES_PER_SECOND = 20e9
_SECONDS_PER_CALL = 2e-7
_LEAST_WORKLOADS = 8
"""Smallest number of an operator's workloads that trees predict a routine from."""
_FEW_WORKLOADS = 4
"""Smallest number from which it is predicted at all, at the mean rate of those that are known."""
_FEW_COPIES = 2
"""The same for operators that multiply nothing, whose time follows their traffic."""
_AMOUNTS = ("log_macs", "log_read", "log_written", "log_weights")
"""Features whose measured ranges limit what is predicted of a kind."""

Values = NDArray[np.float64]
Extent = tuple[float, float]


@dataclass(frozen=True)
class Sample:
    """Seconds of a routine with some parameters on a workload, in a cache state."""

    workload: str
    routine: str
    parameters: Parameters
    seconds: float
    state: CacheState = "warm"


def estimate(found: Mapping[str, float]) -> float:
    """Seconds estimated from arithmetic and traffic, which the trees correct."""
    products, *moved = (
        0.0 if math.isnan(found[name]) else 2.0 ** found[name]
        for name in ("log_products", "log_read", "log_written", "log_prepared")
    )
    return products / (_PRODUCTS_PER_SECOND * found["cores"]) + sum(moved) / _BYTES_PER_SECOND + _SECONDS_PER_CALL


def amount(found: Mapping[str, float], name: str) -> float:
    """A logarithmic amount; 0 for a missing one, next to small amounts."""
    return 0.0 if math.isnan(found[name]) else found[name]


def kind_of(op: str, routine: str) -> str:
    """An operator computed by a routine."""
    return f"{op} by {routine}"


@dataclass(eq=False)
class Table:
    """Samples with their features."""

    texts: list[str]
    workloads: list[Workload]
    routines: list[str]
    features: list[dict[str, float]]
    seconds: Values

    @staticmethod
    def of(samples: Iterable[Sample], machine: Machine) -> Table:
        """The table of a processor's samples, without those of transfers."""
        known = [(s, w) for s in samples if (w := parse_workload(s.workload)) is not None]
        return Table(
            [s.workload for s, _ in known],
            [w for _, w in known],
            [s.routine for s, _ in known],
            [features(w, s.routine, s.parameters, machine, s.state) for s, w in known],
            np.array([s.seconds for s, _ in known], np.float64),
        )

    @cached_property
    def kinds(self) -> list[str]:
        """Operator and routine of every sample."""
        return [kind_of(w.op, routine) for w, routine in zip(self.workloads, self.routines, strict=True)]

    @cached_property
    def labels(self) -> Values:
        """Logarithm of measured over estimated seconds."""
        return np.log(self.seconds / [estimate(found) for found in self.features])


def extents_of(table: Table, rows: Sequence[int]) -> dict[str, dict[str, Extent]]:
    """Measured ranges of amounts in some rows, by operator and routine, where there are enough workloads."""
    extents = {}
    for kind, numbers in _by_kind(table, rows).items():
        if _workloads(table, numbers) >= _fewest(table, numbers):
            amounts = {name: [amount(table.features[i], name) for i in numbers] for name in _AMOUNTS}
            extents[kind] = {name: (min(values), max(values)) for name, values in amounts.items()}
    return extents


def means_of(table: Table, rows: Sequence[int], learned: Collection[str] | None = None) -> dict[str, float]:
    """Mean labels in some rows, as in `CostTrees.means`.

    Args:
        table: samples.
        rows: of the table.
        learned: features of trees that do not know all rows; a kind without a feature has a mean however many there are.
    """
    means = {}
    for kind, numbers in _by_kind(table, rows).items():
        own = {name for name in table.features[numbers[0]] if name.startswith(("op ", "routine "))}
        is_learned = _workloads(table, numbers) >= _LEAST_WORKLOADS and (learned is None or own <= set(learned))
        if _workloads(table, numbers) >= _fewest(table, numbers) and not is_learned:
            means[kind] = float(np.mean(table.labels[numbers]))
            for state in sorted({table.features[i]["state"] for i in numbers}):
                mine = [i for i in numbers if table.features[i]["state"] == state]
                means[_in_state(kind, state)] = float(np.mean(table.labels[mine]))
    return means


def _in_state(kind: str, state: float) -> str:
    return f"{kind} in state {state:g}"


def with_means(
    answers: Values, means: Mapping[str, float], kinds: Sequence[str], found: Sequence[Mapping[str, float]]
) -> Values:
    """The labels that trees answer, or means of their kinds where these have few workloads."""
    known = [
        means.get(_in_state(kind, row["state"]), means.get(kind, math.nan))
        for kind, row in zip(kinds, found, strict=True)
    ]
    return np.where(np.isnan(known), answers, known)


def _by_kind(table: Table, rows: Sequence[int]) -> dict[str, list[int]]:
    """Some rows by operator and routine, in the order of these names."""
    found: dict[str, list[int]] = defaultdict(list)
    for number in rows:
        found[table.kinds[number]].append(number)
    return dict(sorted(found.items()))


def _workloads(table: Table, rows: Sequence[int]) -> int:
    return len({table.texts[i] for i in rows})


def _fewest(table: Table, rows: Sequence[int]) -> int:
    """Number of workloads of a kind from which it is predicted."""
    multiplies = any(amount(table.features[i], "log_macs") > 0 for i in rows)
    return _FEW_WORKLOADS if multiplies else _FEW_COPIES
