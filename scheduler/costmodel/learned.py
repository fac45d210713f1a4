"""Learned costs: stored measurements, and predictions of boosted trees where there are none."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.costs import Candidate, CostModel
from nnstretch.scheduler.costmodel.features import FEATURES_VERSION, Machine
from nnstretch.scheduler.costmodel.trees import CostTrees, Errors, Point, count_stored, cross_validate, stored_samples
from nnstretch.scheduler.measurement.caches import CacheSizes, layer_state, network_state
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.support.settings import cache_dir

_GROWN = 1.2
"""Growth of the number of samples at which trees are trained again."""


_Key = tuple[str, str, str, tuple[tuple[str, int], ...], CacheState]


def _key(processor: Processor, point: Point) -> _Key:
    return processor.fingerprint, point.workload, point.routine, tuple(sorted(point.parameters.items())), point.state


def machine_of(processor: Processor) -> Machine:
    """What a processor contributes to features."""
    return Machine(max(1, len(processor.spec.cores)), processor.blocked.block, processor.spec.ratios)


@dataclass(eq=False)
class LearnedCosts(CostModel):
    """Costs from the profile store, and from trees that are trained on the store's rows of the same processor.

    Measures nothing. Trees are files in the cache directory, one per processor, and are trained again when the number of
    samples has grown by a fifth; until then, new samples widen the range in which they predict.

    Attributes:
        store: measurements to answer and to learn from.
        transfers: costs of transfers between processors, which are not predicted.
        folder: folder of the trees' files; `costmodels` in the cache directory by default.
        caches: cache sizes of the machine that `store` is from; this machine's if None.
        seed: seed of the training.
    """

    measured = True
    store: ProfileStore
    transfers: CostModel
    _: KW_ONLY
    folder: Path | None = None
    caches: CacheSizes | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._trees: dict[str, CostTrees | None] = {}
        self._network: CacheState = "memory"
        self._known: dict[_Key, float | None] = {}
        self._measured: dict[str, set[str]] = {}  # workloads by processor

    def learn(self) -> None:
        """Drops all predictions, and trains again on first use if there are enough new measurements."""
        self._trees.clear()
        self._known.clear()
        self._measured.clear()

    def measured_now(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> None:
        """Drops predictions of candidates that have been measured."""
        if processor.fingerprint in self._measured:
            self._measured[processor.fingerprint].add(layer.workload)
        for candidate in candidates:
            self._known.pop(_key(processor, self._point(layer, candidate)), None)

    def in_network(self, working_set: int) -> LearnedCosts:
        model = copy.copy(self)
        model._network = network_state(working_set, self.caches)
        return model

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        """Measured seconds, or predicted ones; None if the routine failed or there are too few similar measurements."""
        return self.compare(processor, layer, [Candidate(routine, parameters)])[0]

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        return self.compare_all(processor, [(layer, candidate) for candidate in candidates])

    def compare_all(self, processor: Processor, wanted: Sequence[tuple[Layer, Candidate]]) -> list[float | None]:
        """Seconds of candidates for several layers, in one prediction, which takes hardly longer than a single one."""
        points = [self._point(layer, candidate) for layer, candidate in wanted]
        keys = [_key(processor, point) for point in points]
        unknown = {}
        for key, point in zip(keys, points, strict=True):
            if key not in self._known and key not in unknown:
                found = self._found(processor, point)
                if found is None:
                    unknown[key] = point
                else:
                    self._known[key] = found.seconds
        self._known.update(zip(unknown, self._predicted(processor, list(unknown.values())), strict=True))
        return [self._known[key] for key in keys]

    def _found(self, processor: Processor, point: Point) -> Measurement | None:
        """A stored measurement. Most points have none, so the store is asked for measured workloads only."""
        name = processor.fingerprint
        if name not in self._measured:
            self._measured[name] = self.store.workloads(name)
        if point.workload not in self._measured[name]:
            return None
        return self.store.get(name, point.workload, point.routine, point.parameters, point.state)

    def stored(
        self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters
    ) -> Measurement | None:
        """The stored measurement, or None."""
        state = layer_state(layer, self._network, self.caches)
        return self.store.get(processor.fingerprint, layer.workload, str(routine.descriptor), parameters, state)

    def predicted(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        """Predicted seconds, regardless of measurements; None if there are too few similar ones."""
        return self._predicted(processor, [self._point(layer, Candidate(routine, parameters))])[0]

    def _point(self, layer: Layer, candidate: Candidate) -> Point:
        state = layer_state(layer, self._network, self.caches)
        return Point(layer.workload, str(candidate.routine.descriptor), candidate.parameters, state)

    def _predicted(self, processor: Processor, points: Sequence[Point]) -> list[float | None]:
        trees = self.trees(processor) if points else None
        if trees is None:
            return [None] * len(points)
        return [None if math.isnan(seconds) else float(seconds) for seconds in trees.predict(points)]

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return self.transfers.transfer(one, other, tensor)

    def errors(self, processor: Processor) -> Errors | None:
        """Cross-validated errors of predictions on a processor; None if nothing can be predicted there.

        Raises:
            MissingExtraError: xgboost is not installed.
        """
        trees = self.trees(processor)
        if trees is not None and trees.errors is None:
            samples = stored_samples(self.store, processor.fingerprint)
            trees.errors = cross_validate(samples, machine_of(processor), self.seed)
            trees.save(self._path(processor))
        return trees.errors if trees else None

    def trees(self, processor: Processor) -> CostTrees | None:
        """The trees of a processor: those of the cache directory unless the store has grown too much.

        Raises:
            MissingExtraError: xgboost is not installed.
        """
        name = processor.fingerprint
        if name not in self._trees:
            self._trees[name] = self._current(processor)
        return self._trees[name]

    def _current(self, processor: Processor) -> CostTrees | None:
        path, machine = self._path(processor), machine_of(processor)
        kept = CostTrees.load(path, machine)
        count = count_stored(self.store, processor.fingerprint)
        if kept is not None and count < _GROWN * kept.samples:
            return kept.with_more(stored_samples(self.store, processor.fingerprint)) if count > kept.samples else kept
        trained = CostTrees.train(stored_samples(self.store, processor.fingerprint), machine, self.seed)
        if trained is not None:
            trained.save(path)
        return trained

    def _path(self, processor: Processor) -> Path:
        folder = self.folder or cache_dir() / "costmodels"
        folder.mkdir(parents=True, exist_ok=True)
        identity = hashlib.sha256(f"{processor.fingerprint}|{self.seed}".encode()).hexdigest()[:20]
        return folder / f"{identity}-v{FEATURES_VERSION}.json"
