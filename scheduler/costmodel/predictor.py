"""Latency prediction for the search of branchings: sums of the layers' fastest routines."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.devices.external.engine import ExternalRoutine
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.costs import (
    Candidate,
    Contention,
    ContentionFactors,
    CostModel,
    Settings,
    first_setting,
)
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.trees import Errors
from nnstretch.scheduler.lowering.calls import crossing_seconds, inner_seconds
from nnstretch.scheduler.lowering.views import is_view
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.support.progress import Progress

_FIRST = 40  # measurements before the first training
_HOPEFUL = 1.25  # candidates above this multiple of the fastest prediction are not measured
_EQUAL = 1e-3  # relative difference below which times count as equal
_MORE = 8  # measurements after which what they say of others is learned


@dataclass(eq=False)
class ProfilePredictor:
    """Predicts seconds of consecutive layers on a processor as the sum of their fastest routines.

    Every distinct layer is measured once per processor, with each routine's default parameters, and kept in the profile store.
    With learned costs, only layers without enough similar measurements are measured.

    Attributes:
        processors: numbered in this order.
        profiler: measures layers and transfers.
        contention: contention factors of these processors.
        learned: costs of layers without measurements.
        working_set: bytes that the network of the layers touches in a run, which decides where weights are when a layer
            begins; the cost models' own assumption if None.
    """

    processors: Sequence[Processor]
    profiler: Profiler
    contention: Contention
    learned: LearnedCosts | None = None
    working_set: int | None = None

    def __post_init__(self) -> None:
        if self.working_set is not None:
            self.profiler = self.profiler.in_network(self.working_set)
            self.learned = self.learned and self.learned.in_network(self.working_set)
        self._contention_factors = ContentionFactors(self.contention)
        self._guessed: set[tuple[int, str]] = set()
        self._asked = 0
        self._next = _FIRST
        self._fastest: dict[tuple[int, str], float] = {}
        self._candidates: dict[tuple[int, str], list[Candidate]] = {}
        self._computed: dict[tuple[int, str], bool] = {}  # whether a processor's own routine computes a pair

    @property
    def costs(self) -> CostModel:
        """Costs by which a plan of a network takes the predicted time."""
        return _PredictedCosts(self.profiler, self.learned)

    def pace(self, processor: Processor) -> float:
        """Current frequency of a processor over the reference frequency, which predictions are normalised to."""
        return self.profiler.pace(processor)

    def prepare(self, layers: Sequence[Layer], progress: Progress) -> None:
        """Prepares to measure layers of a network and of its branches (`MeasurementSite.prepare`)."""
        for processor in self.processors:
            if processor.backend.own_memory:
                self.profiler.prepare(processor, layers, progress, branched=True)

    def seconds(self, layers: Sequence[Layer], processor: int) -> float:
        """Predicted seconds of `layers`, one after another, on the processor of that number; `inf` if it cannot."""
        self._foresee([layer for layer in layers if (processor, layer.workload) not in self._fastest], processor)
        return sum(self._layer_seconds(layer, processor) for layer in layers)

    def fused_seconds(self, pair: Layer, processor: int) -> float:
        """Predicted seconds of the processor's fastest own routine for two fused layers; `inf` if it has none."""
        key = (processor, pair.workload)
        if key not in self._computed:
            on = self.processors[processor]
            own = (routine for routine in on.routines if not isinstance(routine, ExternalRoutine))
            self._computed[key] = not on.backend.runs_models and any(routine.supports(pair) for routine in own)
        return self.seconds([pair], processor) if self._computed[key] else math.inf

    def meeting_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        """Predicted seconds until `readers` can read `tensor` after each of `writers` made a part of it.

        The slowest pair counts. A reader fetches the shares of the other writers. Calls read the whole tensor, and each
        writer's call writes its share.
        """
        crossing = [
            max((crossing_seconds(self.processors[n], tensor, self.profiler) for n in some), default=0.0)
            for some in (readers, writers)
        ]
        passing = max((self._passing(tensor, writers, reader) for reader in readers), default=0.0)
        return passing + crossing[0] + crossing[1] / max(1, len(writers))

    def _passing(self, tensor: TensorType, writers: Collection[int], reader: int) -> float:
        """Seconds of the slowest transfer to a reader of the shares that other processors made, which are equally large."""
        others = [writer for writer in writers if writer != reader]
        foreign = TensorType((-(-tensor.elements * len(others) // max(1, len(writers))),), tensor.dtype)
        on = self.processors
        return max((self.profiler.transfer(on[writer], on[reader], foreign) for writer in others), default=0.0)

    def fetch_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        """Seconds of a transfer beyond those of a minimal one, if the processors share memory; otherwise 0."""
        if any(self.processors[n].backend.runs_models or not self.processors[n].coherent for n in (*writers, *readers)):
            return 0.0
        whole, minimal = (self.meeting_seconds(one, writers, readers) for one in (tensor, TensorType((1,))))
        return whole - minimal

    def contention_factor(self, processor: int, others: frozenset[int]) -> float:
        """Contention factor of a processor while others work, measured with typical layers."""
        return self._contention_factors.of(processor, others)

    def error(self, processor: int) -> Errors | None:
        """Cross-validated errors of predictions on a processor; None if all layers are measured.

        Raises:
            MissingExtraError: xgboost is not installed.
        """
        return self.learned.errors(self.processors[processor]) if self.learned else None

    def confirm(self, layers: Sequence[Layer], processor: int) -> bool:
        """Measures layers that were only predicted; returns whether any time has changed."""
        changed = False
        for key, layer in {(processor, layer.workload): layer for layer in layers}.items():
            if key in self._guessed:
                self._guessed.discard(key)
                found = self._measured(layer, processor)
                changed = changed or not math.isclose(found, self._fastest[key], rel_tol=_EQUAL)
                self._fastest[key] = found
        return changed

    def _foresee(self, layers: Sequence[Layer], number: int) -> None:
        """Predicts several layers at once, for the cache of the learned costs."""
        if self.learned is not None and len(layers) > 1:
            wanted = [(layer, candidate) for layer in layers for candidate in self._candidates_for(layer, number)]
            self.learned.compare_all(self.processors[number], wanted)

    def _layer_seconds(self, layer: Layer, number: int) -> float:
        key, processor = (number, layer.workload), self.processors[number]
        if key not in self._fastest:
            if not processor.backend.runs_models and is_view(layer, processor.blocked):
                self._fastest[key] = 0.0
                return 0.0
            guess = self._guess(layer, number)
            if guess is not None:
                self._guessed.add(key)
            self._fastest[key] = self._measured(layer, number) if guess is None else guess
        return self._fastest[key]

    def _measured(self, layer: Layer, number: int) -> float:
        candidates, processor = self._candidates_for(layer, number), self.processors[number]
        guesses = self._guesses(layer, number)
        least = min((g for g in guesses if g is not None), default=math.inf)
        worth = [c for c, g in zip(candidates, guesses, strict=True) if g is None or g <= _HOPEFUL * least]
        self._learn()
        best = min((t for t in self.profiler.compare(processor, layer, worth) if t is not None), default=math.inf)
        if self.learned is not None:
            self.learned.measured_now(processor, layer, worth)
        return inner_seconds(processor, layer, best, self.profiler)

    def _learn(self) -> None:
        """Counts measurements, and learns from them when there are enough new ones."""
        self._asked += 1
        if self.learned is not None and self._asked >= self._next:
            self._next = self._asked + _MORE
            self.learned.learn()

    def _guess(self, layer: Layer, number: int) -> float | None:
        """Seconds by learned costs; None if the layer must be measured."""
        guesses = self._guesses(layer, number)
        known = [seconds for seconds in guesses if seconds is not None]
        if not known or len(known) < len(guesses):
            return None
        return inner_seconds(self.processors[number], layer, min(known), self.profiler)

    def _guesses(self, layer: Layer, number: int) -> list[float | None]:
        """Seconds of every candidate by learned costs; None where unknown."""
        candidates = self._candidates_for(layer, number)
        if self.learned is None:
            return [None] * len(candidates)
        return self.learned.compare(self.processors[number], layer, candidates)

    def _candidates_for(self, layer: Layer, number: int) -> list[Candidate]:
        key = (number, layer.workload)
        if key not in self._candidates:
            self._candidates[key] = default_candidates(layer, self.processors[number])
        return self._candidates[key]


class _PredictedCosts(CostModel):
    """Learned costs of every routine's first setting; measured ones where the learned ones are unknown."""

    measured = True
    _settings: Settings = staticmethod(first_setting)

    def __init__(self, profiler: Profiler, learned: LearnedCosts | None) -> None:
        self._profiler, self._learned = profiler, learned

    def in_network(self, working_set: int) -> _PredictedCosts:
        learned = None if self._learned is None else self._learned.in_network(working_set)
        return _PredictedCosts(self._profiler.in_network(working_set), learned).with_settings(self._settings)

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self.compare(processor, layer, [Candidate(routine, parameters)])[0]

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        guesses = self._learned.compare(processor, layer, candidates) if self._learned is not None else [None]
        known = [guess for guess in guesses if guess is not None]
        if len(known) < len(guesses):
            return self._profiler.compare(processor, layer, candidates)
        # No prediction is below the fastest measurement: the minimum of many predictions is biased.
        assert self._learned is not None
        stored = [self._learned.stored(processor, c.routine, layer, c.parameters) for c in candidates]
        least = min((one.seconds for one in stored if one is not None and one.seconds is not None), default=0.0)
        return [k if s is not None else max(k, least) for k, s in zip(known, stored, strict=True)]

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return self._profiler.transfer(one, other, tensor)


def default_candidates(layer: Layer, processor: Processor) -> list[Candidate]:
    """Every routine with its first parameters."""
    return [
        Candidate(routine, routine.default_parameters(layer))
        for routine in processor.routines
        if routine.supports(layer)
    ]
