"""Latencies of layers on processors that are not here: what was measured there, and what is learned from that."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Parameters
from nnstretch.errors import DeviceError, MissingExtraError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.contention import ContentionFactors
from nnstretch.scheduler.costmodel.costs import Candidate, CostModel
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.predictor import default_candidates
from nnstretch.scheduler.costmodel.trees import Errors, Spread
from nnstretch.scheduler.costmodel.workload import transfer_bytes
from nnstretch.scheduler.lowering.views import becomes_view
from nnstretch.scheduler.measurement.store.store import ProfileStore

_ADVICE = "run `nnstretch stretch` there on a network or two with these processors, and export the profiles again"


class StoredTransfers(CostModel):
    """What it takes to hand a tensor to a device and back, by a straight line through what was measured of other tensors."""

    measured = True

    def __init__(self, store: ProfileStore, processors: Sequence[Processor], host: Processor) -> None:
        """Transfers between `host` and the first of `processors` that is a device, if one is.

        Raises:
            DeviceError: nothing was measured of them.
        """
        self._base, self._per_byte = 0.0, 0.0
        device = next((p for p in processors if p.backend.own_memory), None)
        if device is not None:
            points = _transfers(store, device.fingerprint, host.fingerprint)
            if not points:
                raise DeviceError(
                    f"the profiles have no transfers between {host.name} and {device.name}, so that meeting points cannot be "
                    f"predicted: {_ADVICE}"
                )
            self._base, self._per_byte = _line(points)

    def seconds(self, *_: object) -> float | None:
        """Nothing else is known."""
        return None

    def transfer(self, tensor: TensorType) -> float:
        return self._base + self._per_byte * PLAIN.bytes(tensor)


def _transfers(store: ProfileStore, device: str, host: str) -> list[tuple[int, float]]:
    """Bytes and seconds of the transfers that were measured."""
    points = []
    for row in store.rows(device):
        size = transfer_bytes(row.workload)
        if size is not None and row.routine == host and row.measurement.seconds is not None:
            points.append((size, row.measurement.seconds))
    return points


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds of no bytes and of every byte, neither negative."""
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
class _Known:
    """What is known of a layer on a processor: seconds, what a guess misses by, and whether it is one."""

    seconds: float
    error: Spread | None = None


class StoredPredictor:
    """Predicts seconds on processors whose measurements are in a store; a `LatencyPredictor`.

    A layer takes what its fastest routine took when it was measured, or what trees that were trained on the processor's
    measurements say.
    """

    def __init__(
        self,
        processors: Sequence[Processor],
        store: ProfileStore,
        learned: LearnedCosts,
        transfers: CostModel,
        contention_factors: Callable[[tuple[int, ...]], Sequence[float] | None],
    ) -> None:
        """Asks for nothing yet.

        Args:
            processors: are numbered in this order.
            store: measurements.
            learned: what was learned from them.
            transfers: says what it takes to meet.
            contention_factors: how many times as long each of some processors takes while the others work too; None
            if nobody measured.
        """
        self._processors = tuple(processors)
        self._store = store
        self._learned = learned
        self._transfers = transfers
        self._measured_contention_factors = contention_factors
        self._contention_factors = ContentionFactors(self._contention)
        self._layers: dict[tuple[int, str], _Known] = {}
        self._settings: dict[str, Mapping[tuple[str, str], Sequence[Parameters]]] = {}
        self.unknown_contention_factors: set[tuple[str, ...]] = set()
        """Names of processors of which nobody has measured how much they slow each other down; taken for not at all."""

    def in_network(self, working_set: int) -> StoredPredictor:
        """A predictor for the layers of one network.

        Args:
            working_set: bytes that the network touches in a run, which decides where weights are when a layer begins.
        """
        predictor = copy.copy(self)
        predictor._learned = self._learned.in_network(working_set)
        predictor._layers = {}
        return predictor

    def seconds(self, layers: Sequence[Layer], processor: int) -> float:
        """Predicted seconds of `layers`, one after another, on the processor of that number; `inf` if it cannot.

        Raises:
            DeviceError: too little like a layer was measured.
            MissingExtraError: a layer was not measured, and the library that learns from others is not installed.
        """
        return sum(self._known(layer, processor).seconds for layer in layers)

    def fused_seconds(self, pair: Layer, processor: int) -> float:
        """Pairs are predicted one by one."""
        return math.inf

    def guess(self, layer: Layer, processor: int) -> Spread | None:
        """What the prediction of a layer misses by, by cross-validation; None if it was measured."""
        return self._known(layer, processor).error

    def confirm(self, layers: Sequence[Layer], processor: int) -> bool:
        """There is nothing to find out."""
        return False

    def meeting_seconds(self, tensor: TensorType) -> float:
        """Predicted seconds that branches need to meet at `tensor`, beyond waiting for the slower one."""
        return self._transfers.transfer(tensor)

    def fetch_seconds(self, tensor: TensorType) -> float:
        """Transfers are all that is known."""
        return 0.0

    def contention_factor(self, processor: int, others: frozenset[int]) -> float:
        """How many times as long a processor takes while `others` work too."""
        return self._contention_factors.of(processor, others)

    def error(self, processor: int) -> Errors | None:
        """What predictions of layers that were not measured miss by; None if nothing can be learned."""
        return self._learned.errors(self._processors[processor])

    def _contention(self, group: tuple[int, ...]) -> Sequence[float]:
        """ContentionFactors as measured, and none, which is noted, where nobody has."""
        found = self._measured_contention_factors(group)
        if found is None:
            self.unknown_contention_factors.add(tuple(self._processors[number].name for number in group))
            return [1.0] * len(group)
        return found

    def _known(self, layer: Layer, number: int) -> _Known:
        key = (number, layer.workload)
        if key not in self._layers:
            self._layers[key] = self._find(layer, number)
        return self._layers[key]

    def _find(self, layer: Layer, number: int) -> _Known:
        processor = self._processors[number]
        if becomes_view(layer, (processor.blocked,), (processor.blocked,)):
            return _Known(0.0)
        candidates = default_candidates(layer, processor)
        if not candidates:
            return _Known(math.inf)
        measured = self._measured(layer, processor, candidates)
        guessed = self._guessed(layer, processor, [c for c in candidates if str(c.routine.descriptor) not in measured])
        known = [_Known(seconds) for seconds in measured.values()] + guessed
        if not known:
            raise DeviceError(
                f"too little like {describe_layer(layer)} was measured on {processor.name} to predict it: {_ADVICE}"
            )
        return min(known, key=lambda one: one.seconds)

    def _measured(self, layer: Layer, processor: Processor, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Least seconds of every routine that was measured, with whatever parameters; `inf` if it failed."""
        seconds: dict[str, float] = {}
        for candidate in candidates:
            routine = str(candidate.routine.descriptor)
            settings = [candidate.parameters, *self._fastest(processor).get((layer.workload, routine), ())]
            found = [self._learned.stored(processor, candidate.routine, layer, setting) for setting in settings]
            times = [math.inf if one.seconds is None else one.seconds for one in found if one is not None]
            if times:
                seconds[routine] = min(times)
        return seconds

    def _guessed(self, layer: Layer, processor: Processor, candidates: Sequence[Candidate]) -> list[_Known]:
        """What trees say of routines, as far as they can."""
        try:
            guesses = [
                (self._learned.predicted(processor, c.routine, layer, c.parameters), str(c.routine.descriptor))
                for c in candidates
            ]
            errors = self._learned.errors(processor) if any(seconds is not None for seconds, _ in guesses) else None
        except MissingExtraError as error:
            raise MissingExtraError(
                f"{describe_layer(layer)} was not measured on {processor.name}, and guessing it from others needs xgboost; "
                "install nnstretch[tune]"
            ) from error
        if errors is None:
            return []
        return [_Known(s, errors.routines.get(routine, errors.all)) for s, routine in guesses if s is not None]

    def _fastest(self, processor: Processor) -> Mapping[tuple[str, str], Sequence[Parameters]]:
        """Parameters that were fastest, by workload and routine."""
        if processor.fingerprint not in self._settings:
            self._settings[processor.fingerprint] = self._store.fastest(processor.fingerprint)
        return self._settings[processor.fingerprint]


def describe_layer(layer: Layer) -> str:
    """A layer for people: operator and shapes."""
    return f"{layer.op} of {layer.inputs[0]} to {layer.outputs[0]}"
