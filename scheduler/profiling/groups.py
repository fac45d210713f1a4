"""Candidates for one layer, measured against each other: their answers checked, and their times taken in one race."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnstretch.devices.engine.harness import unpack
from nnstretch.devices.processor import Processor
from nnstretch.devices.routine import PLAIN, REORDER, Layout
from nnstretch.errors import NNStretchError
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costs import Candidate
from nnstretch.scheduler.profiling.caches import cache_sizes
from nnstretch.scheduler.profiling.clock import CoreClock
from nnstretch.scheduler.profiling.measuring import Rules, interval, race, typical
from nnstretch.scheduler.profiling.store import CacheState, Measurement
from nnstretch.scheduler.profiling.trials import Trial, TrialError, Trials
from nnstretch.scheduler.single import SingleLayer, packed_inputs, random_inputs, single_layer_plan

_RULES = Rules()
_WARMUP = {"warm": 1, "l3": 1, "memory": 0}
"""Rounds that bring weights to where they shall lie and do not count."""

_AGAIN = 2
_SHORTEST_RUN = 150e-6
"""Seconds: a layer is repeated until a run takes about so long, so that beginning and ending it weigh little."""
_REPEATS = 16
_MACS_PER_SECOND = 60e9
_BYTES_PER_SECOND = 20e9
_DEVICE_COPIES = 8
_DEVICE_REPEATS = 32
_DEVICE_SHORT_MACS = 30_000_000
"""A layer of fewer is repeated on a device, where launching and awaiting a run take long."""


@dataclass(frozen=True, eq=False)
class Example:
    """What a layer's candidates compute: random inputs, and ONNX Runtime's answers.

    There are none for a change of layout, which is not checked.
    """

    layer: Layer
    inputs: Sequence[np.ndarray]
    reference: Sequence[np.ndarray] | None
    _packed: dict[tuple[Layout, ...], tuple[np.ndarray, ...]] = field(default_factory=dict)

    def packed(self, candidate: Candidate) -> tuple[np.ndarray, ...]:
        """The inputs as a candidate reads them: the same arrays for all that want the same layouts."""
        layouts, _ = candidate.routine.layouts(self.layer, candidate.parameters)
        if layouts not in self._packed:
            self._packed[layouts] = packed_inputs(self.layer, self.inputs, layouts)
        return self._packed[layouts]


class Examples:
    """Examples of layers. Weights differ between equal workloads, so only the last layer's is kept."""

    def __init__(self) -> None:
        self._last: Example | None = None

    def of(self, layer: Layer) -> Example:
        """The layer's example; the same as before while it is asked for the same layer."""
        if self._last is None or self._last.layer is not layer:
            inputs = random_inputs(layer)
            self._last = Example(layer, inputs, None if layer.op == REORDER else _answers(layer, inputs))
        return self._last


def _answers(layer: Layer, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    from nnstretch.graph.reference import run_layer

    return run_layer(layer, *inputs)


class _WrongAnswerError(TrialError):
    """A routine's `error` exceeds the tolerance."""

    def __init__(self, error: float, tolerance: float) -> None:
        super().__init__(too_wrong(error, tolerance))
        self.error = error


def too_wrong(error: float, tolerance: float) -> str:
    """The failure of a routine whose error exceeds the tolerance."""
    return f"wrong answer: relative error {error:.1e} exceeds {tolerance:.0e}"


@dataclass(frozen=True, eq=False)
class Task:
    """A layer on a processor, with all that its candidates share."""

    processor: Processor
    example: Example
    state: CacheState
    tolerance: float

    @property
    def layer(self) -> Layer:
        """The layer."""
        return self.example.layer


@dataclass(eq=False)
class Group:
    """Candidates for one layer that are measured against each other."""

    trials: Trials
    task: Task
    host: Processor
    clock: CoreClock
    bytes: int = 0
    _open: dict[int, tuple[Trial, float | None]] = field(default_factory=dict)  # number -> trial, error
    _failed: dict[int, Measurement] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether there is nobody yet but the incumbent."""
        return not (self._open.keys() | self._failed.keys()) - {-1}

    def add(self, number: int, candidate: Candidate) -> None:
        """Opens a candidate and checks its answer."""
        try:
            self._open[number] = self._checked(candidate)
        except (NNStretchError, TrialError) as error:
            wrong = error.error if isinstance(error, _WrongAnswerError) and math.isfinite(error.error) else None
            self._failed[number] = Measurement(None, failure=str(error), error=wrong, state=self.task.state)

    def run(self, known: float | None) -> dict[int, Measurement]:
        """Measures all that are open. `known` is what the incumbent (number -1) took when it was measured."""
        task = self.task
        samples = self._race()
        clock = self.clock.read(self.trials.clock)
        for _ in range(_AGAIN):
            if not self.clock.slow(clock):
                break
            samples = self._race()
            clock = self.clock.read(self.trials.clock)
        scale = known / typical(samples[-1]) if known is not None and samples.get(-1) else 1.0
        found = dict(self._failed)
        for number, (trial, error) in self._open.items():
            found[number] = (
                Measurement(None, failure=trial.failure, state=task.state)
                if trial.failure is not None
                else _measurement(np.array(samples[number]) * scale, error, task.state, clock)
            )
        return found

    def _race(self) -> dict[int, list[float]]:
        """Samples of all that are open, by number."""
        numbers = list(self._open)

        def timed(order: Sequence[int]) -> list[float | None]:
            trials = [self._open[numbers[i]][0] for i in order]
            times = self.trials.time(trials, self.task.state)
            return [None if t is None else t / trial.single.repeats for t, trial in zip(times, trials, strict=True)]

        for _ in range(_WARMUP[self.task.state]):
            timed(range(len(numbers)))
        return dict(zip(numbers, race(timed, len(numbers), _RULES), strict=True))

    def _checked(self, candidate: Candidate) -> tuple[Trial, float | None]:
        task = self.task
        lowering = candidate.routine.lower(task.layer, candidate.parameters)
        single = SingleLayer(task.processor, candidate.routine, task.layer, candidate.parameters, lowering)
        repeats = _repeats(single, task.state)
        checked = task.example.reference is not None
        if task.processor.memory == "host":
            trial, outputs = self._opened(replace(single, repeats=repeats), checked)
            return trial, self._error(candidate, outputs) if checked else None
        error = None
        if checked:  # on a device the copy of the answers must not be part of what is timed
            _, outputs = self._opened(replace(single, host=self.host), True)
            error = self._error(candidate, outputs)
        return self._opened(replace(single, repeats=repeats), False)[0], error

    def _opened(self, single: SingleLayer, outputs: bool) -> tuple[Trial, list[np.ndarray]]:
        plan = single_layer_plan(single, self.task.example.packed(Candidate(single.routine, single.parameters)))
        self.bytes += plan.bytes
        return self.trials.open(plan, outputs)

    def _error(self, candidate: Candidate, stored: Sequence[np.ndarray]) -> float:
        """The largest relative error of a candidate's answers.

        Raises:
            TrialError: it is too large.
        """
        from nnstretch.graph.reference import relative_error

        layer = self.task.layer
        _, layouts = candidate.routine.layouts(layer, candidate.parameters)
        assert self.task.example.reference is not None
        worst = 0.0
        for index, expected in enumerate(self.task.example.reference):
            found = unpack(stored[index], layouts[index], layer.outputs[index].shape)
            error = relative_error(found, expected)
            if not error <= self.task.tolerance:
                raise _WrongAnswerError(error, self.task.tolerance)
            worst = max(worst, error)
        return worst


def _measurement(samples: np.ndarray, error: float | None, state: CacheState, clock: float | None) -> Measurement:
    values = tuple(map(float, samples))
    return Measurement(typical(values), values, None, interval(values), error, state, clock)


def _repeats(single: SingleLayer, state: CacheState) -> int:
    """How often a layer runs in one timed run (see `SingleLayer`)."""
    weights = single.lowering.weight_bytes
    layer = single.layer
    if single.processor.memory == "opencl":
        # Here nothing can push weights out of caches but the next copy.
        copies = -(-2 * cache_sizes().shared // weights) if state == "memory" and weights else 1
        return max(min(copies, _DEVICE_COPIES), _DEVICE_REPEATS if layer.macs < _DEVICE_SHORT_MACS else 1)
    moved = weights + sum(PLAIN.bytes(t) for t in (*layer.inputs, *layer.outputs) if t is not None)
    seconds = layer.macs / (_MACS_PER_SECOND * len(single.processor.spec.cores)) + moved / _BYTES_PER_SECOND
    return min(_REPEATS, max(1, math.ceil(_SHORTEST_RUN / max(seconds, 1e-9))))
