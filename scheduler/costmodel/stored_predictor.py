"""Latency prediction for remote processors, from measurements that were made there."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Parameters
from nnstretch.errors import DeviceError, MissingExtraError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.costs import Candidate, ContentionFactors, CostModel, hops, undelayed
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.predictor import default_candidates
from nnstretch.scheduler.costmodel.trees import Errors, Spread
from nnstretch.scheduler.costmodel.workload import transfer_bytes
from nnstretch.scheduler.lowering.views import is_view
from nnstretch.scheduler.measurement.store.store import ProfileStore

_ADVICE = "run `nnstretch stretch` there on a network or two with these processors, and export the profiles again"


class StoredTransfers(CostModel):
    """Transfer times of processors: of devices by linear regression over those measured, of cores interpolated between them."""

    measured = True

    def __init__(self, store: ProfileStore, processors: Sequence[Processor], host: Processor) -> None:
        """Transfers between `host` and each of `processors`. Those to other cores are free if none was measured.

        Raises:
            DeviceError: there are no measured transfers of a device.
        """
        self._host = host
        self._points: dict[str, list[tuple[int, float]]] = {}
        self._lines: dict[str, tuple[float, float]] = {}
        for processor in processors:
            sized = [(transfer_bytes(row.workload), row) for row in store.rows(processor.fingerprint)]
            points = [
                (size, row.measurement.seconds)
                for size, row in sized
                if size is not None and row.routine == host.fingerprint and row.measurement.seconds is not None
            ]
            if not points and processor.backend.own_memory:
                raise DeviceError(
                    f"the profiles have no transfers between {host.name} and {processor.name}, so that meeting points "
                    f"cannot be predicted: {_ADVICE}"
                )
            self._points[processor.name] = sorted(points)
            self._lines[processor.name] = _line(points) if points else (0.0, 0.0)

    def seconds(self, *_: object) -> float | None:
        """Always unknown."""
        return None

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return sum(self._hop(processor, PLAIN.bytes(tensor)) for processor in hops(one, other, self._host))

    def _hop(self, processor: Processor, size: int) -> float:
        base, per_byte = self._lines[processor.name]
        points = self._points[processor.name]
        if not processor.backend.serves_caller or not points:
            return base + per_byte * size
        sizes, seconds = np.array(points, np.float64).T
        between = np.interp(size, sizes, np.maximum.accumulate(seconds)) * max(1.0, size / sizes[-1])
        return undelayed(processor, float(between), size)


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds at 0 bytes, and seconds per byte; neither is negative."""
    sizes, seconds = np.array(points, np.float64).T
    if len(set(sizes.tolist())) < 2:
        return float(np.median(seconds)), 0.0
    slope, base = np.polyfit(sizes, seconds, 1)
    if slope < 0.0:
        return float(np.median(seconds)), 0.0
    if base < 0.0:
        return 0.0, float(np.median(seconds / sizes))
    return float(base), float(slope)


@dataclass(frozen=True)
class _LayerLatency:
    """Seconds of a layer on a processor, and the error of a prediction; None if it was measured."""

    seconds: float
    error: Spread | None = None


@dataclass(eq=False)
class StoredPredictor:
    """Predicts seconds on processors whose measurements are in a store; a `LatencyPredictor`.

    A layer's time is that of its fastest routine: measured, or predicted by trees that were trained on the processor's
    measurements.

    Attributes:
        processors: numbered in this order.
        store: measurements.
        learned: learned costs from these measurements.
        transfers: costs of transfers.
        measured_contention: group of processors -> the contention factor of each; None if not measured.
        unknown_contention_factors: names of groups of processors without measured contention factors, which count as 1.
    """

    processors: Sequence[Processor]
    store: ProfileStore
    learned: LearnedCosts
    transfers: CostModel
    measured_contention: Callable[[tuple[int, ...]], Sequence[float] | None]
    unknown_contention_factors: set[tuple[str, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._contention_factors = ContentionFactors(self._contention)
        self._layers: dict[tuple[int, str], _LayerLatency] = {}
        self._settings: dict[str, Mapping[tuple[str, str], Sequence[Parameters]]] = {}

    def in_network(self, working_set: int) -> StoredPredictor:
        """A predictor for the layers of one network that touches `working_set` bytes in a run."""
        predictor = copy.copy(self)
        predictor.learned = self.learned.in_network(working_set)
        predictor._layers = {}
        return predictor

    def seconds(self, layers: Sequence[Layer], processor: int) -> float:
        """Predicted seconds of `layers`, one after another, on the processor of that number; `inf` if it cannot.

        Raises:
            DeviceError: there are too few measurements similar to a layer.
            MissingExtraError: a layer was not measured, and xgboost is not installed.
        """
        return sum(self._known(layer, processor).seconds for layer in layers)

    def fused_seconds(self, pair: Layer, processor: int) -> float:
        """Always `inf`: pairs are predicted layer by layer."""
        return math.inf

    def guess(self, layer: Layer, processor: int) -> Spread | None:
        """Cross-validated error of a layer's prediction; None if it was measured."""
        return self._known(layer, processor).error

    def confirm(self, layers: Sequence[Layer], processor: int) -> bool:
        """Always False: nothing can be measured here."""
        return False

    def meeting_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        """Predicted seconds until `readers` can read `tensor` after each of `writers` made a part of it: the slowest pair's."""
        pairs = [(self.processors[w], self.processors[r]) for w in writers for r in readers if w != r]
        return max((self.transfers.transfer(one, other, tensor) for one, other in pairs), default=0.0)

    def fetch_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        """Always 0: only whole transfers are measured."""
        return 0.0

    def contention_factor(self, processor: int, others: frozenset[int]) -> float:
        """Contention factor of a processor while others work."""
        return self._contention_factors.of(processor, others)

    def error(self, processor: int) -> Errors | None:
        """Cross-validated errors of predictions on a processor; None if there are too few samples."""
        return self.learned.errors(self.processors[processor])

    def _contention(self, group: tuple[int, ...]) -> Sequence[float]:
        """Measured contention factors; 1 for a group without, which is recorded."""
        found = self.measured_contention(group)
        if found is None:
            self.unknown_contention_factors.add(tuple(self.processors[number].name for number in group))
            return [1.0] * len(group)
        return found

    def _known(self, layer: Layer, number: int) -> _LayerLatency:
        key = (number, layer.workload)
        if key not in self._layers:
            self._layers[key] = self._find(layer, number)
        return self._layers[key]

    def _find(self, layer: Layer, number: int) -> _LayerLatency:
        processor = self.processors[number]
        if is_view(layer, processor.blocked):
            return _LayerLatency(0.0)
        candidates = default_candidates(layer, processor)
        if not candidates:
            return _LayerLatency(math.inf)
        measured = self._measured(layer, processor, candidates)
        guessed = self._guessed(layer, processor, [c for c in candidates if str(c.routine.descriptor) not in measured])
        known = [_LayerLatency(seconds) for seconds in measured.values()] + guessed
        if not known:
            raise DeviceError(
                f"too little like {describe_layer(layer)} was measured on {processor.name} to predict it: {_ADVICE}"
            )
        return min(known, key=lambda one: one.seconds)

    def _measured(self, layer: Layer, processor: Processor, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Least seconds of every measured routine over all parameters; `inf` if it failed."""
        seconds: dict[str, float] = {}
        for candidate in candidates:
            routine = str(candidate.routine.descriptor)
            settings = [candidate.parameters, *self._fastest(processor).get((layer.workload, routine), ())]
            found = [self.learned.stored(processor, candidate.routine, layer, setting) for setting in settings]
            times = [math.inf if one.seconds is None else one.seconds for one in found if one is not None]
            if times:
                seconds[routine] = min(times)
        return seconds

    def _guessed(self, layer: Layer, processor: Processor, candidates: Sequence[Candidate]) -> list[_LayerLatency]:
        """Predictions of routines, without those that are unknown."""
        try:
            guesses = [
                (self.learned.predicted(processor, c.routine, layer, c.parameters), str(c.routine.descriptor))
                for c in candidates
            ]
            errors = self.learned.errors(processor) if any(seconds is not None for seconds, _ in guesses) else None
        except MissingExtraError as error:
            raise MissingExtraError(
                f"{describe_layer(layer)} was not measured on {processor.name}, and guessing it from others needs xgboost; "
                "install nnstretch[tune]"
            ) from error
        if errors is None:
            return []
        return [_LayerLatency(s, errors.routines.get(routine, errors.all)) for s, routine in guesses if s is not None]

    def _fastest(self, processor: Processor) -> Mapping[tuple[str, str], Sequence[Parameters]]:
        """Fastest parameters by workload and routine."""
        if processor.fingerprint not in self._settings:
            self._settings[processor.fingerprint] = self.store.fastest(processor.fingerprint)
        return self._settings[processor.fingerprint]


def describe_layer(layer: Layer) -> str:
    """A short description of a layer: operator and shapes."""
    return f"{layer.op} of {layer.inputs[0]} to {layer.outputs[0]}"
