"""Boosted trees that predict seconds from features, their training samples, and their cross-validated errors.

The trees learn the logarithm of measured over estimated seconds, with an estimate from arithmetic and traffic. So errors are
relative, and short layers count as much as long ones. Objective and shape of the trees are those of ACLTuner's table 6.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.devices.base.routine import Parameters
from nnstretch.errors import MissingExtraError
from nnstretch.scheduler.costmodel.features import FEATURES_VERSION, Machine, columns, features, matrix
from nnstretch.scheduler.costmodel.training_table import (
    Extent,
    Sample,
    Table,
    Values,
    amount,
    estimate,
    extents_of,
    kind_of,
    means_of,
    with_means,
)
from nnstretch.scheduler.costmodel.workload import parse_workload
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.support.settings import atomic_write

_INSIDE = re.compile(r" in [0-9a-f]{16}$")
"""End of the workload of a layer that was timed inside a network."""
_WIDEST = 0.5
"""Largest width of a measurement's interval over its seconds; a wider one shows a disturbance."""


def stored_samples(store: ProfileStore, fingerprint: str) -> list[Sample]:
    """Samples from a processor's measurements, in the order of their keys.

    Excludes failures, times inside networks, and measurements with wide confidence intervals.

    Raises:
        FileError: the store cannot be read.
    """
    rows = [(row, row.measurement) for row in store.rows(fingerprint)]
    return [
        Sample(row.workload, row.routine, row.parameters, found.seconds, found.state)
        for row, found in rows
        if found.seconds and _is_sure(found) and not _INSIDE.search(row.workload)
    ]


def count_stored(store: ProfileStore, fingerprint: str) -> int:
    """Number of `stored_samples`, which takes a fraction of the time.

    Raises:
        FileError: the store cannot be read.
    """
    return store.count_alone(fingerprint, _WIDEST)


def _is_sure(found: Measurement) -> bool:
    low, high = found.interval or (0.0, 0.0)
    return high - low <= _WIDEST * (found.seconds or 0.0)


_ROUNDS = 60
_HYPERPARAMETERS = {
    "objective": "reg:squarederror",
    "learning_rate": 0.2,
    "max_depth": 9,
    "min_child_weight": 2,
    "gamma": 0,
    "reg_alpha": 0,  # the paper's 1 is for seconds; on logarithms it would shrink small leaves to nothing
    "subsample": 0.53,
    "colsample_bytree": 0.8,
    "nthread": 1,
    "verbosity": 0,
}
_FOLDS = 5
_LEAST_SAMPLES = 20
"""Smallest number of samples to train on."""
_BELOW, _ABOVE = 1.0, 2.0
"""Largest log2 distance of an amount from the measured range. Rates of large layers change least."""


@dataclass(frozen=True)
class Spread:
    """Relative errors |predicted / measured - 1| of predictions.

    Attributes:
        median: median error.
        p90: 90th percentile.
        count: number of predictions.
    """

    median: float
    p90: float
    count: int

    @staticmethod
    def of(errors: Sequence[float] | Values) -> Spread:
        """The spread of relative errors, at least one."""
        median, p90 = np.quantile(np.asarray(errors, np.float64), [0.5, 0.9])
        return Spread(float(median), float(p90), len(errors))

    def __str__(self) -> str:
        return f"±{self.median:.1%} (nine of ten within {self.p90:.0%})"


@dataclass(frozen=True)
class Errors:
    """Cross-validated errors: of all samples, by operator, and by routine."""

    all: Spread
    operators: Mapping[str, Spread]
    routines: Mapping[str, Spread]


@dataclass(frozen=True)
class Point:
    """What costs are predicted of: a routine with parameters for a workload (as its text), its weights lying in `state`."""

    workload: str
    routine: str
    parameters: Parameters
    state: CacheState


@dataclass(eq=False)
class CostTrees:
    """A trained model of one processor.

    Attributes:
        machine: the processor's part of the features.
        names: features, in the order of the trees.
        extents: by operator and routine, the measured ranges of amounts, where there are enough workloads.
        means: by operator and routine, and by these and the cache state, the mean logarithm of measured over estimated seconds,
            where there are too few workloads for trees.
        samples: number of training samples.
        errors: cross-validated errors; None until they are computed.
    """

    machine: Machine
    names: tuple[str, ...]
    extents: Mapping[str, Mapping[str, Extent]]
    means: Mapping[str, float]
    samples: int
    errors: Errors | None
    _booster: Any = field(repr=False)

    @staticmethod
    def train(samples: Sequence[Sample], machine: Machine, seed: int = 0) -> CostTrees | None:
        """Trains trees; equal samples and seeds give equal trees.

        Args:
            samples: measurements of one processor; workloads that are not layers (transfers) are skipped.
            machine: the processor.
            seed: seed of the random rows and columns of each tree.

        Returns:
            None if there are too few samples.

        Raises:
            MissingExtraError: xgboost is not installed.
        """
        table = Table.of(samples, machine)
        if len(table.seconds) < _LEAST_SAMPLES:
            return None
        names = columns(table.features)
        rows = matrix(table.features, names)
        booster = boost(rows, table.labels, seed)
        every = range(len(table.seconds))
        return CostTrees(machine, names, extents_of(table, every), means_of(table, every), len(every), None, booster)

    def with_more(self, samples: Sequence[Sample]) -> CostTrees:
        """The same trees for what `samples` are like, too, which takes a fraction of a training.

        Args:
            samples: those that the trees were trained on, and others since.
        """
        table = Table.of(samples, self.machine)
        every = range(len(table.seconds))
        return replace(self, extents=extents_of(table, every), means=means_of(table, every, self.names))

    def predict(self, points: Sequence[Point]) -> Values:
        """Predicted seconds of every point; NaN outside the measured ranges."""
        seconds = np.full(len(points), math.nan)
        described = [self._describe(point) for point in points]
        known = [i for i, found in enumerate(described) if found is not None]
        found = [row for row in described if row is not None]
        if found:
            answers = self._booster.inplace_predict(matrix(found, self.names), validate_features=False)
            kinds = [
                kind_of(parsed.op, points[i].routine) for i in known if (parsed := parse_workload(points[i].workload))
            ]
            labels = with_means(answers, self.means, kinds, found)
            seconds[known] = np.exp(labels + [math.log(estimate(row)) for row in found])
        return seconds

    def _describe(self, point: Point) -> dict[str, float] | None:
        """Features of a point; None outside the measured ranges."""
        workload = parse_workload(point.workload)
        extents = self.extents.get(kind_of(workload.op, point.routine)) if workload else None
        if workload is None or extents is None:
            return None
        found = features(workload, point.routine, point.parameters, self.machine, point.state)
        near = all(low - _BELOW <= amount(found, name) <= high + _ABOVE for name, (low, high) in extents.items())
        return found if near else None

    def save(self, path: Path) -> None:
        """Writes the trees as xgboost's JSON, with all other fields as an attribute in it.

        Raises:
            FileError: the file cannot be written.
        """
        about = {
            "version": FEATURES_VERSION,
            "machine": asdict(self.machine),
            "names": self.names,
            "extents": self.extents,
            "means": self.means,
            "samples": self.samples,
            "errors": None if self.errors is None else asdict(self.errors),
        }
        self._booster.set_attr(nnstretch=json.dumps(about))
        with atomic_write(path) as file:
            file.write(bytes(self._booster.save_raw("json")))

    @staticmethod
    def load(path: Path, machine: Machine) -> CostTrees | None:
        """Reads a file that `save` wrote; None if it is missing, damaged, of another machine or of other features.

        Raises:
            MissingExtraError: xgboost is not installed.
        """
        xgboost = import_xgboost()
        booster = xgboost.Booster({"nthread": 1})
        try:
            content = path.read_bytes()
            json.loads(content)  # xgboost itself prints a lot if this is not JSON
            booster.load_model(bytearray(content))
            about = json.loads(booster.attr("nnstretch") or "")
            if about["version"] != FEATURES_VERSION or about["machine"] != json.loads(json.dumps(asdict(machine))):
                return None
            names = tuple(map(str, about["names"]))
            if booster.num_features() != len(names):
                return None
            extents = {
                str(kind): {str(name): (float(low), float(high)) for name, (low, high) in ranges.items()}
                for kind, ranges in about["extents"].items()
            }
            means = {str(kind): float(mean) for kind, mean in about["means"].items()}
            return CostTrees(machine, names, extents, means, int(about["samples"]), _errors(about["errors"]), booster)
        except (OSError, KeyError, TypeError, ValueError, AttributeError, xgboost.core.XGBoostError):
            return None


def import_xgboost() -> Any:
    """The xgboost library.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import xgboost
    except ImportError as error:
        raise MissingExtraError(
            "the learned cost model needs xgboost; install nnstretch[tune], or tune without --search learned"
        ) from error
    return xgboost


def boost(rows: NDArray[np.float32], labels: Values, seed: int) -> Any:
    """A booster that predicts `labels` from `rows` of features.

    Raises:
        MissingExtraError: xgboost is not installed.
    """
    xgboost = import_xgboost()
    return xgboost.train({**_HYPERPARAMETERS, "seed": seed}, xgboost.DMatrix(rows, label=labels), _ROUNDS)


def cross_validate(samples: Sequence[Sample], machine: Machine, seed: int = 0) -> Errors | None:
    """Five-fold cross-validated errors, with folds by workload.

    Points that would not be predicted do not count. None if that holds for all points.

    Raises:
        MissingExtraError: xgboost is not installed.
    """
    table = Table.of(samples, machine)
    rows = matrix(table.features, columns(table.features))
    folds = np.array([int(hashlib.sha256(text.encode()).hexdigest(), 16) % _FOLDS for text in table.texts])
    missed = np.full(len(rows), math.nan)
    for fold in sorted(set(folds.tolist())):
        seen = np.flatnonzero(folds != fold)
        predicted, means = extents_of(table, seen.tolist()), means_of(table, seen.tolist())
        asked = [i for i in np.flatnonzero(folds == fold) if table.kinds[i] in predicted]
        if asked and len(seen):
            answers = boost(rows[seen], table.labels[seen], seed).inplace_predict(rows[asked])
            kinds, found = [table.kinds[i] for i in asked], [table.features[i] for i in asked]
            labels = with_means(answers, means, kinds, found)
            missed[asked] = np.abs(np.exp(labels - table.labels[asked]) - 1)
    if np.isnan(missed).all():
        return None
    operators = [workload.op for workload in table.workloads]
    return Errors(Spread.of(missed[~np.isnan(missed)]), _spreads(operators, missed), _spreads(table.routines, missed))


def _spreads(names: Sequence[str], errors: Values) -> dict[str, Spread]:
    labels = np.where(np.isnan(errors), "", names)
    return {str(name): Spread.of(errors[labels == name]) for name in sorted({*labels.tolist()} - {""})}


def _errors(raw: Mapping[str, Any] | None) -> Errors | None:
    if raw is None:
        return None

    def spread(values: Mapping[str, Any]) -> Spread:
        return Spread(float(values["median"]), float(values["p90"]), int(values["count"]))

    by_name = {kind: {str(n): spread(v) for n, v in raw[kind].items()} for kind in ("operators", "routines")}
    return Errors(spread(raw["all"]), by_name["operators"], by_name["routines"])
