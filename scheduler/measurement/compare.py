"""Compares the candidates for one layer: opens them, checks their answers, races them and normalises their times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN
from nnstretch.errors import DeviceError, NNStretchError
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.measurement.caches import cache_sizes, writes_afar
from nnstretch.scheduler.measurement.candidate_set import CandidateSet
from nnstretch.scheduler.measurement.race import Race, RaceRules, interval, typical
from nnstretch.scheduler.measurement.reference_cases import LayerUnderTest, WrongAnswerError
from nnstretch.scheduler.measurement.runner.runner import (
    LoadedLayer,
    Opening,
    Runner,
    RunnerError,
    TimedRun,
    WorkerStartError,
)
from nnstretch.scheduler.measurement.runner.single_layer import SingleLayer, single_layer_plan
from nnstretch.scheduler.measurement.site import ReferenceFrequency
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement
from nnstretch.support.closing import closed_on_failure
from nnstretch.support.interrupts import check_interrupted

_RULES = RaceRules()
_DEVICE_RULES = RaceRules(most=11, narrow=0.02)
"""On a device a run repeats the layer several times, so fewer runs suffice."""
_QUICK_RULES = RaceRules(most=7, hopeless=1.15, separate=4, narrow=0.03, budget=0.3, repeats=3)
_QUICK_DEVICE_RULES = RaceRules(most=5, hopeless=1.15, separate=4, narrow=0.03, budget=0.3, repeats=3)
_FIRST_ROUNDS = 2
"""Rounds that compare the first settings of routines before their other settings are opened."""
_WARMUP = {"warm": 1, "l3": 1, "memory": 0}
"""Rounds that do not count; they bring weights into the caches of the state."""
_STEADY = 0.9
"""Share of the reference frequency below which a race is repeated: other costs change with the frequency."""
_AGAIN = 2
_SHORTEST_RUN = 150e-6
"""Seconds: short layers are repeated until a run takes about this long, so the cost of starting it is small."""
_REPEATS = 16
_MACS_PER_SECOND = 60e9
_BYTES_PER_SECOND = 20e9
_DEVICE_REPEATS = 4
_DEVICE_BYTES = 48 << 20
"""Most bytes of all copies of a layer's weights on a device, from the third copy on."""
_TURNED = 2
"""Repeats on a device write to buffers of this many times the size of the core's own caches."""
_KEPT_BYTES = 1 << 27
"""Most bytes of candidates that stay open between comparisons."""
_OPEN_BYTES = 1 << 30
"""Candidates with more bytes in total are measured in several groups, each together with the best one so far."""


_Finish = Callable[[], tuple[LoadedLayer, float | None]]
"""Waits until a candidate is open and checks its answer; returns its layer and error, None without a check."""
_Made = TypeVar("_Made")


class OpenCandidates:
    """Candidates for one layer that are open in a runner.

    Small ones stay open until those of another layer are opened: searches compare a layer's candidates step by step.

    Attributes:
        runner: runs them.
        layers: the open ones, with their errors, by routine and parameters.
        bytes: of all of them.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.layers: dict[Hashable, tuple[LoadedLayer, float | None]] = {}
        self.bytes = 0
        self._clears = runner.clears
        self._test: LayerUnderTest | None = None

    def turn_to(self, test: LayerUnderTest) -> None:
        """Closes the candidates of other layers."""
        before, self._test = self._test, test
        if self._clears != self.runner.clears:  # others use the runner, too
            self.layers, self.bytes, self._clears = {}, 0, self.runner.clears
        if before is None or (before.case, before.processor, before.state, before.tolerance) != (
            *(test.case, test.processor, test.state, test.tolerance),
        ):
            self.close_all()

    def get(self, candidate: Candidate) -> tuple[LoadedLayer, float | None] | None:
        """A candidate that is open and works."""
        found = self.layers.get(_identity(candidate))
        return None if found is None or found[0].failure is not None else found

    def keep(self, candidate: Candidate, opened: tuple[LoadedLayer, float | None]) -> None:
        """Adds an open candidate."""
        self.layers[_identity(candidate)] = opened

    def close_large(self) -> None:
        """Closes all candidates if they take much memory."""
        if self.bytes > _KEPT_BYTES:
            self.close_all()

    def close_all(self) -> None:
        """Closes all candidates."""
        if self.layers or self.bytes:
            self.runner.clear()
            self.layers, self.bytes, self._clears = {}, 0, self.runner.clears


def _identity(candidate: Candidate) -> Hashable:
    return id(candidate.routine), tuple(sorted(candidate.parameters.items()))


class LostDeviceError(DeviceError):
    """A device stopped working while layers were measured on it.

    Attributes:
        measured: measurements that were finished before, by the candidates' numbers.
    """

    def __init__(self, message: str, measured: Mapping[int, Measurement]) -> None:
        super().__init__(message)
        self.measured = dict(measured)


def compare(
    candidates: CandidateSet,
    test: LayerUnderTest,
    opened: OpenCandidates,
    host: Processor,
    reference: ReferenceFrequency,
    *,
    quick: bool = False,
) -> dict[int, Measurement]:
    """Measures the unknown candidates that are not eliminated, in groups that fit in memory.

    Args:
        candidates: receive their seconds.
        test: what they compute.
        opened: those that are open.
        host: copies a device's results out for the check.
        reference: frequency that times are normalised to.
        quick: about half as many runs.

    Returns:
        Measurements by the candidates' numbers.

    Raises:
        LostDeviceError: the processor is a device that no longer works. What failed on it counts as not measured.
    """
    found: dict[int, Measurement] = {}
    opened.turn_to(test)
    while candidates.worth_measuring({}):
        with closed_on_failure(opened.close_all):
            try:
                made = _Group(candidates, test, opened, host, reference, quick=quick).run()
            except LostDeviceError as lost:
                lost.measured = found | lost.measured
                raise
        opened.close_large()
        candidates.seconds.update((number, measurement.seconds) for number, measurement in made.items())
        found.update(made)
    return found


@dataclass(eq=False)
class _Group:
    """Candidates that are open at the same time and race against each other and the incumbent.

    The incumbent is the fastest known candidate. Times of the others are scaled by its known time over its time in this race.
    """

    candidates: CandidateSet
    test: LayerUnderTest
    opened: OpenCandidates
    host: Processor
    reference: ReferenceFrequency
    quick: bool
    _open: dict[int, tuple[LoadedLayer, float | None]] = field(default_factory=dict)  # number -> layer, error
    _failed: dict[int, Measurement] = field(default_factory=dict)
    _readings: list[float] = field(default_factory=list)
    _restarts: int = 0

    def __post_init__(self) -> None:
        self._restarts = self.opened.runner.restarts

    def run(self) -> dict[int, Measurement]:
        """Measures as many candidates as fit in memory, at least one."""
        incumbent = self.candidates.best
        if incumbent is not None:
            self._open_all([incumbent])
        samples = self._first_race()
        for _ in range(_AGAIN):
            if self.reference.ratio(self._median_reading()) >= _STEADY:
                break
            samples = self._race(self._open).run()
        scale = self._scale({number: typical(times) for number, times in samples.items() if times})
        found = dict(self._failed)
        for number, (layer, error) in self._open.items():
            state, values = self.test.state, tuple(float(seconds * scale) for seconds in samples[number])
            found[number] = (
                Measurement(None, failure=layer.failure, state=state)
                if layer.failure is not None
                else Measurement(typical(values), values, None, interval(values), error, state, self.reference.gflops)
            )
        found = {number: measurement for number, measurement in found.items() if number != incumbent}
        self._check_device({number: made for number, made in found.items() if made.failure is None})
        return found

    def _check_device(self, measured: Mapping[int, Measurement]) -> None:
        """Tests the device if the runner's worker was replaced since the last call.

        Raises:
            LostDeviceError: it no longer works; `measured` are the measurements that were finished.
        """
        restarts, processor = self.opened.runner.restarts, self.test.processor
        if restarts == self._restarts:
            return
        self._restarts = restarts
        if processor.backend.own_memory and (why_lost := processor.why_lost()):
            raise LostDeviceError(
                f"{processor.name} was lost while layers were measured on it: {why_lost}; check the device and run this "
                "again, which goes on with what is measured already, or leave it out of the processors",
                measured,
            )

    def _first_race(self) -> dict[int, list[float]]:
        """Samples of all candidates. Heads of families run a few rounds before the others are opened."""
        heads = self.candidates.unknown_heads()
        self._open_all(heads)
        race = self._race(self._open)
        preliminary: Mapping[int, float] = {}
        if set(self.candidates.worth_measuring({})) - set(heads):
            preliminary = race.first_rounds(_FIRST_ROUNDS)
        scale = self._scale(preliminary)
        worth = self.candidates.worth_measuring({number: scale * seconds for number, seconds in preliminary.items()})
        for number in self._open_all(worth):
            race.enter(number)
        return race.run()

    def _scale(self, times: Mapping[int, float]) -> float:
        """The incumbent's known time over its time in this race."""
        best = self.candidates.best
        known = None if best is None else self.candidates.seconds[best]
        return 1.0 if best is None or known is None or best not in times else known / times[best]

    def _race(self, numbers: Iterable[int]) -> Race:
        """A race of open candidates, with weights in the caches of the state."""

        def timed(order: Sequence[int]) -> list[float | None]:
            layers = [self._open[number][0] for number in order]
            runs = self.opened.runner.time(layers, self.test.state)
            return [
                None if run is None else self._normalised(run) / layer.single.repeats
                for run, layer in zip(runs, layers, strict=True)
            ]

        on_device = self.test.processor.backend.own_memory
        rules = (_QUICK_RULES, _QUICK_DEVICE_RULES) if self.quick else (_RULES, _DEVICE_RULES)
        race = Race(timed, rules[on_device])
        for number in numbers:
            race.enter(number)
        for _ in range(_WARMUP[self.test.state]):
            timed(list(numbers))
        return race

    def _normalised(self, run: TimedRun) -> float:
        """Seconds of a run at the reference frequency."""
        if run.clock is not None:
            self._readings.append(run.clock)
        return run.seconds * self.reference.ratio(run.clock)

    def _median_reading(self) -> float | None:
        """Median GFLOP/s of the cores in the runs since the last call; None if unknown."""
        readings, self._readings = self._readings, []
        return statistics.median(readings) if readings else None

    def _open_all(self, numbers: Sequence[int]) -> list[int]:
        """Opens as many as fit in memory, at least one besides the incumbent; the numbers of those with a right answer.

        The runner opens a candidate while the next one is prepared.
        """
        opened: list[int] = []
        begun: list[tuple[int, _Finish]] = []  # one at most
        for number in numbers:
            if number in self._open or number in self._failed:
                continue
            others = {*self._open, *self._failed, *(other for other, _ in begun)} - {self.candidates.best}
            candidate = self.candidates.candidates[number]
            if (known := self.opened.get(candidate)) is not None:
                self._open[number] = known
                opened.append(number)
                continue
            if others and self.opened.bytes >= _OPEN_BYTES:
                break
            following = self._attempted(number, partial(self._begin, candidate))
            opened += self._finished(begun)
            begun = [] if following is None else [(number, following)]
        return opened + self._finished(begun)

    def _finished(self, begun: Sequence[tuple[int, _Finish]]) -> list[int]:
        """Takes candidates over that the runner was opening; the numbers of those with a right answer."""
        for number, finish in begun:
            made = self._attempted(number, finish)
            if made is not None:
                self._open[number] = made
                self.opened.keep(self.candidates.candidates[number], made)
        return [number for number, _ in begun if number in self._open]

    def _attempted(self, number: int, work: Callable[[], _Made]) -> _Made | None:
        """What `work` makes of a candidate; None if the candidate fails, for the reason in `_failed`."""
        try:
            return work()
        except WorkerStartError:  # says nothing of the candidate
            raise
        except (NNStretchError, RunnerError) as error:
            check_interrupted()
            self._check_device({})
            self._failed[number] = Measurement(None, failure=str(error), state=self.test.state)
        except WrongAnswerError as error:
            self._failed[number] = error.measurement(self.test.state)
        return None

    def _begin(self, candidate: Candidate) -> _Finish:
        """Has the runner open a candidate; one of a device whose memory is not the host's is checked before."""
        test = self.test
        lowering = candidate.routine.lower(test.layer, candidate.parameters)
        single = SingleLayer(test.processor, candidate.routine, test.layer, candidate.parameters, lowering)
        repeats = repeats_of(single, test.state)
        checked = test.case.reference is not None
        on_device = test.processor.backend.own_memory
        turns = _turns(single, repeats, test.state) if on_device else 1
        timed = replace(single, host=self.host if on_device else None, repeats=repeats, turns=turns)
        if not on_device or test.processor.in_host_memory:
            opening = self._opening(timed, checked)

            def finish() -> tuple[LoadedLayer, float | None]:
                layer, outputs = opening.result()
                return layer, test.error_of(candidate, outputs) if checked else None

            return finish
        error = None
        if checked:  # in a plan of its own: copies of the outputs must not be timed
            _, outputs = self._opening(replace(single, host=self.host, shown=True), True).result()
            error = test.error_of(candidate, outputs)
        device_opening = self._opening(timed, False)
        return lambda: (device_opening.result()[0], error)

    def _opening(self, single: SingleLayer, outputs: bool) -> Opening:
        plan = single_layer_plan(single, self.test.case.packed(Candidate(single.routine, single.parameters)))
        self.opened.bytes += plan.bytes
        return self.opened.runner.begin_open(plan, outputs)


def repeats_of(single: SingleLayer, state: CacheState) -> int:
    """How often a layer is computed in a timed run (see `SingleLayer`); once if its output must be in no cache."""
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
    """Number of buffers that a device's repeats use in rotation, so that large ones leave the core's own caches.

    If the output must be in no cache, every repeat has its own. Small buffers stay in the caches as in a
    network, which needs few at a time and reuses their memory.
    """
    layer, own = single.layer, cache_sizes().own
    if state == "memory" and writes_afar(layer):
        return repeats
    inputs = [layer.type_of(index) for index in layer.activations]
    moved = sum(PLAIN.bytes(t) for t in (*inputs, *layer.outputs))
    return 1 if state == "warm" or moved <= own else min(repeats, 1 + _TURNED * own // moved)
