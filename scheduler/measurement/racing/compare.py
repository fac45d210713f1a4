"""Comparing the candidates for one layer: who is run against whom, and what is made of their samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, REORDER, Layout
from nnstretch.errors import NNStretchError
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.measurement.caches import cache_sizes, writes_afar
from nnstretch.scheduler.measurement.racing.race import Race, Rules, interval, typical
from nnstretch.scheduler.measurement.runner.runner import LoadedLayer, Runner, RunnerError, Timed
from nnstretch.scheduler.measurement.runner.single_layer import (
    SingleLayer,
    packed_inputs,
    random_inputs,
    single_layer_plan,
)
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement

_RULES = Rules()
_DEVICE_RULES = Rules(most=11, narrow=0.02)
"""On a device, where a run repeats a layer several times, fewer runs tell as much."""
_HEAT = 2
"""Rounds by which the first settings of routines are compared before others of theirs are opened."""
_OUT_OF_REACH = 1.6
"""A routine whose first setting takes so many times as long as another's first wins with none of its settings."""
_WARMUP = {"warm": 1, "l3": 1, "memory": 0}
"""Rounds that bring weights to where they shall lie and do not count."""
_STEADY = 0.9
"""What ran while the core's clock was below this share of what it usually shows is run again: other things change with it."""
_AGAIN = 2
_SHORTEST_RUN = 150e-6
"""Seconds: a layer is repeated until a run takes about so long, so that beginning and ending it weigh little."""
_REPEATS = 16
_MACS_PER_SECOND = 60e9
_BYTES_PER_SECOND = 20e9
_DEVICE_REPEATS = 4
_DEVICE_BYTES = 48 << 20
"""Copies of a layer's weights on a device take so many bytes at most, if they are more than two."""
_TURNED = 2
"""What repeats on a device write goes through so many times as many bytes as the core's own caches have."""
_OPEN_BYTES = 1 << 30
"""Candidates that take more bytes together are measured in several groups, each with the best one so far."""


@dataclass(frozen=True)
class Clock:
    """The clock that times on a processor are told at.

    Clocks step by several percent within tenths of seconds, most of all where a machine is shared, and all layers go along. So
    a run is told to have taken what it would have taken at one clock, which stays the same for all that a store holds.

    Attributes:
        usual: what its first core usually computes, GFLOP/s (`Engine.clock_gflops`); None if nobody knows.
    """

    usual: float | None

    def ratio(self, reading: float | None) -> float:
        """How many times as fast as usual a core computes by a reading; 1 if there is none."""
        return 1.0 if reading is None or self.usual is None else reading / self.usual


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


class _WrongAnswerError(RunnerError):
    """A routine's `error` exceeds the tolerance."""

    def __init__(self, error: float, tolerance: float) -> None:
        super().__init__(too_wrong(error, tolerance))
        self.error = error


def too_wrong(error: float, tolerance: float) -> str:
    """Why an answer with this error does not count."""
    return f"wrong answer: relative error {error:.1e} exceeds {tolerance:.0e}"


@dataclass(frozen=True, eq=False)
class Task:
    """A layer on a processor, with all that its candidates share.

    Attributes:
        processor: on which.
        example: what is computed.
        state: where the network leaves the weights.
        tolerance: error that an answer may have, relative to the output's range.
    """

    processor: Processor
    example: Example
    state: CacheState
    tolerance: float

    @property
    def layer(self) -> Layer:
        """The layer."""
        return self.example.layer


class Entrants:
    """The candidates for a layer, with the seconds of those that are known.

    The candidates of one routine that read and write the same layouts are a family, whose first one is its head: it has the
    setting that the routine recommends most. If that is far behind the head of a family with the same layouts, the others are
    not worth measuring.
    """

    def __init__(self, layer: Layer, candidates: Sequence[Candidate], *, exhaustive: bool) -> None:
        """Knows no seconds yet.

        Args:
            layer: what all candidates compute.
            candidates: in the order in which routines recommend their settings.
            exhaustive: all are worth measuring.
        """
        self.candidates = candidates
        self.seconds: dict[int, float | None] = {}
        self._layouts = [c.routine.layouts(layer, c.parameters) for c in candidates]
        families = [(id(c.routine), *layouts) for c, layouts in zip(candidates, self._layouts, strict=True)]
        heads: dict[object, int] = {}
        for number, family in enumerate(families):
            heads.setdefault(family, number)
        self._head = list(range(len(candidates))) if exhaustive else [heads[family] for family in families]

    @property
    def best(self) -> int | None:
        """The fastest that is known, if one is."""
        return min((n for n, s in self.seconds.items() if s is not None), key=self._known, default=None)

    def unknown_heads(self) -> list[int]:
        """Heads of families to be measured before others of theirs."""
        return [n for n, head in enumerate(self._head) if n == head and n not in self.seconds]

    def worth(self, heat: Mapping[int, float]) -> list[int]:
        """The unknown ones that are worth measuring.

        Args:
            heat: seconds of heads by a few runs.
        """
        times = {**heat, **{n: s for n, s in self.seconds.items() if s is not None}}
        least: dict[object, float] = {}
        for head in set(self._head):
            layouts = self._layouts[head]
            least[layouts] = min(least.get(layouts, math.inf), times.get(head, math.inf))

        def in_reach(number: int) -> bool:
            head = self._head[number]
            return number == head or times.get(head, 0.0) <= _OUT_OF_REACH * least[self._layouts[head]]

        return [n for n in range(len(self.candidates)) if n not in self.seconds and in_reach(n)]

    def _known(self, number: int) -> float:
        return self.seconds[number] or 0.0


def compare(entrants: Entrants, task: Task, trials: Runner, host: Processor, clock: Clock) -> dict[int, Measurement]:
    """Measures the unknown ones that are worth it, in groups that fit memory.

    Args:
        entrants: are told their seconds.
        task: what they compute.
        trials: where they run.
        host: copies results of devices out for the check.
        clock: of the processor.

    Returns:
        What was found, by their numbers.
    """
    found: dict[int, Measurement] = {}
    while entrants.worth({}):
        try:
            made = _Group(entrants, task, trials, host, clock).run()
        finally:
            trials.clear()
        entrants.seconds.update((number, measurement.seconds) for number, measurement in made.items())
        found.update(made)
    return found


@dataclass(eq=False)
class _Group:
    """Candidates for one layer that are measured against each other, and against the best one that is known.

    That one is the incumbent: what the others take counts in relation to what it was known to take.
    """

    entrants: Entrants
    task: Task
    trials: Runner
    host: Processor
    clock: Clock
    _bytes: int = 0
    _open: dict[int, tuple[LoadedLayer, float | None]] = field(default_factory=dict)  # number -> trial, error
    _failed: dict[int, Measurement] = field(default_factory=dict)
    _clocks: list[float] = field(default_factory=list)

    def run(self) -> dict[int, Measurement]:
        """Measures as many as fit memory, one at least."""
        incumbent = self.entrants.best
        if incumbent is not None:
            self._open_all([incumbent])
        samples = self._first_race()
        for _ in range(_AGAIN):
            if self.clock.ratio(self._clock_meanwhile()) >= _STEADY:
                break
            samples = self._race(self._open).run()
        scale = self._scale({number: typical(times) for number, times in samples.items() if times})
        found = dict(self._failed)
        for number, (trial, error) in self._open.items():
            found[number] = (
                Measurement(None, failure=trial.failure, state=self.task.state)
                if trial.failure is not None
                else _measurement(np.array(samples[number]) * scale, error, self.task.state, self.clock.usual)
            )
        return {number: measurement for number, measurement in found.items() if number != incumbent}

    def _first_race(self) -> dict[int, list[float]]:
        """Samples of all, heads of families having run a little before the others are opened."""
        heads = self.entrants.unknown_heads()
        self._open_all(heads)
        race = self._race(self._open)
        heat: Mapping[int, float] = {}
        if set(self.entrants.worth({})) - set(heads):
            heat = race.heat(_HEAT)
        scale = self._scale(heat)
        worth = self.entrants.worth({number: scale * seconds for number, seconds in heat.items()})
        for number in self._open_all(worth):
            race.enter(number)
        return race.run()

    def _scale(self, times: Mapping[int, float]) -> float:
        """What the incumbent is known to take over what it took here."""
        best = self.entrants.best
        known = None if best is None else self.entrants.seconds[best]
        return 1.0 if best is None or known is None or best not in times else known / times[best]

    def _race(self, numbers: Iterable[int]) -> Race:
        """A race of some that are open, their weights lying where they shall."""

        def timed(order: Sequence[int]) -> list[float | None]:
            trials = [self._open[number][0] for number in order]
            times = self.trials.time(trials, self.task.state)
            return [
                None if t is None else self._usual(t) / trial.single.repeats
                for t, trial in zip(times, trials, strict=True)
            ]

        race = Race(timed, _DEVICE_RULES if self.task.processor.backend.own_memory else _RULES)
        for number in numbers:
            race.enter(number)
        for _ in range(_WARMUP[self.task.state]):
            timed(list(numbers))
        return race

    def _usual(self, timed: Timed) -> float:
        """Seconds that a run would take at the usual clock."""
        if timed.clock is not None:
            self._clocks.append(timed.clock)
        return timed.seconds * self.clock.ratio(timed.clock)

    def _clock_meanwhile(self) -> float | None:
        """The median of what the clock was beside the runs since it was asked for; None if it is not known."""
        clocks, self._clocks = self._clocks, []
        return statistics.median(clocks) if clocks else None

    def _open_all(self, numbers: Sequence[int]) -> list[int]:
        """Opens as many as there is memory for, one at least besides the incumbent; those that answer rightly."""
        opened = []
        for number in numbers:
            if number in self._open or number in self._failed:
                continue
            others = (self._open.keys() | self._failed.keys()) - {self.entrants.best}
            if others and self._bytes >= _OPEN_BYTES:
                break
            try:
                self._open[number] = self._checked(self.entrants.candidates[number])
                opened.append(number)
            except (NNStretchError, RunnerError) as error:
                wrong = error.error if isinstance(error, _WrongAnswerError) and math.isfinite(error.error) else None
                self._failed[number] = Measurement(None, failure=str(error), error=wrong, state=self.task.state)
        return opened

    def _checked(self, candidate: Candidate) -> tuple[LoadedLayer, float | None]:
        task = self.task
        lowering = candidate.routine.lower(task.layer, candidate.parameters)
        single = SingleLayer(task.processor, candidate.routine, task.layer, candidate.parameters, lowering)
        repeats = _repeats(single, task.state)
        checked = task.example.reference is not None
        if not task.processor.backend.own_memory:
            trial, outputs = self._opened(replace(single, repeats=repeats), checked)
            return trial, self._error(candidate, outputs) if checked else None
        error = None
        if checked:  # on a device the copy of the answers must not be part of what is timed
            _, outputs = self._opened(replace(single, host=self.host, shown=True), True)
            error = self._error(candidate, outputs)
        turns = _turns(single, repeats, task.state)
        return self._opened(replace(single, host=self.host, repeats=repeats, turns=turns), False)[0], error

    def _opened(self, single: SingleLayer, outputs: bool) -> tuple[LoadedLayer, list[np.ndarray]]:
        plan = single_layer_plan(single, self.task.example.packed(Candidate(single.routine, single.parameters)))
        self._bytes += plan.bytes
        return self.trials.open(plan, outputs)

    def _error(self, candidate: Candidate, stored: Sequence[np.ndarray]) -> float:
        """The largest relative error of a candidate's answers.

        Raises:
            RunnerError: it is too large.
        """
        from nnstretch.graph.reference import answer_error

        layer = self.task.layer
        _, layouts = candidate.routine.layouts(layer, candidate.parameters)
        assert self.task.example.reference is not None
        worst = 0.0
        for index, expected in enumerate(self.task.example.reference):
            found = layouts[index].unpack(stored[index], layer.outputs[index])
            error = answer_error(layer, index, found, expected)
            if not error <= self.task.tolerance:
                raise _WrongAnswerError(error, self.task.tolerance)
            worst = max(worst, error)
        return worst


def _measurement(samples: np.ndarray, error: float | None, state: CacheState, clock: float | None) -> Measurement:
    values = tuple(map(float, samples))
    return Measurement(typical(values), values, None, interval(values), error, state, clock)


def _repeats(single: SingleLayer, state: CacheState) -> int:
    """How often a layer runs in one timed run (see `SingleLayer`): once if what it writes must be found in no cache."""
    weights = single.lowering.weight_bytes
    layer = single.layer
    if single.processor.backend.own_memory:
        return min(_DEVICE_REPEATS, max(2, _DEVICE_BYTES // max(weights, 1)))
    if state == "memory" and writes_afar(layer):
        return 1
    moved = weights + sum(PLAIN.bytes(t) for t in (*layer.inputs, *layer.outputs) if t is not None)
    seconds = layer.macs / (_MACS_PER_SECOND * len(single.processor.spec.cores)) + moved / _BYTES_PER_SECOND
    return min(_REPEATS, max(1, math.ceil(_SHORTEST_RUN / max(seconds, 1e-9))))


def _turns(single: SingleLayer, repeats: int, state: CacheState) -> int:
    """How many buffers a device's repeats take in turn so that large ones are not found in the core's own caches.

    Where what the layer writes must be in no cache, every repeat has its own. Small ones are found there in a network, too:
    few are needed at a time, so they take the same memory again and again.
    """
    layer, own = single.layer, cache_sizes().own
    if state == "memory" and writes_afar(layer):
        return repeats
    inputs = [layer.type_of(index) for index in layer.activations]
    moved = sum(PLAIN.bytes(t) for t in (*inputs, *layer.outputs))
    return 1 if state == "warm" or moved <= own else min(repeats, 1 + _TURNED * own // moved)
