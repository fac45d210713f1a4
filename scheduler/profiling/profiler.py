"""Profiling: measured costs of routines, each workload once (SoftNeuro, section III-C; ACLTuner, task de-duplication).

All candidates for a layer are measured together, in rounds (`measuring`), in a process of their own (`trials`), with the
layer's weights where a whole network would leave them (`caches`). A routine's answer is checked against ONNX Runtime before its
time counts; one that is wrong, is refused, fails to build or ends its process is remembered with the reason and never chosen.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnstretch.closing import Closing
from nnstretch.devices.engine.binding import engine
from nnstretch.devices.engine.harness import unpack
from nnstretch.devices.processor import Processor
from nnstretch.devices.routine import PLAIN, REORDER, Layout, Parameters, Routine, reorder_layer
from nnstretch.errors import NNStretchError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.compiled import Compiled
from nnstretch.scheduler.costmodel.workload import handover_workload
from nnstretch.scheduler.costs import Candidate, CostModel
from nnstretch.scheduler.draft import Choice, draft
from nnstretch.scheduler.planner import assemble, lane_pool
from nnstretch.scheduler.profiling.caches import cache_sizes, layer_state, network_state
from nnstretch.scheduler.profiling.integrated import Key, Samples
from nnstretch.scheduler.profiling.measuring import Rules, interval, race, typical
from nnstretch.scheduler.profiling.store import CacheState, Measurement, ProfileStore, Row
from nnstretch.scheduler.profiling.trials import Trial, TrialError, Trials
from nnstretch.scheduler.session import Session
from nnstretch.scheduler.single import SingleLayer, packed_inputs, random_inputs, single_layer_plan
from nnstretch.scheduler.units import Unit, UnitGraph

TOLERANCE = 1e-4
"""Error that a routine may have against the reference if nothing else is asked for, relative to the output's range."""

_RULES = Rules()
_WARMUP = {"warm": 1, "l3": 1, "memory": 0}
"""Rounds that bring weights to where they shall lie and do not count."""

_STEADY = 0.95
"""What ran while the core's clock was below this share of the fastest that it has shown is run again."""
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
_OPEN_BYTES = 1 << 30
"""Candidates that take more bytes together are measured in several groups, each with the best one so far."""
_HANDOVER_RUNS = 25
_HANDOVER_BUDGET = 0.03
_QUIET = 0.2
"""Quantile of a round trip's samples that counts as undisturbed: what disturbs one lane holds up both."""

_Key = tuple[str, str, str, tuple[tuple[str, int], ...], CacheState]


class Profiler(CostModel, Closing):
    """Measures what the store does not know yet. A context manager: leaving it ends the process that it measures in."""

    measured = True

    def __init__(
        self,
        store: ProfileStore,
        host: Processor,
        *,
        fresh: bool = False,
        trials: Trials | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        """Starts nothing yet.

        Args:
            store: where measurements are looked up and kept.
            host: copies results of devices out for the check.
            fresh: whether what was measured before this moment is to be ignored.
            trials: where candidates run, by default a process of the profiler's own.
            tolerance: error that a routine may have, relative to the output's range.
        """
        self._tolerance = tolerance
        self._store = store
        self._host = host
        self._since = time.time() if fresh else 0.0
        self._trials = trials or Trials()
        self._network: CacheState = "memory"
        self._known: dict[_Key, Measurement] = {}
        self._examples = _Examples()
        self._clocks: dict[str, _Clock] = {}
        self._handovers: dict[tuple[str, TensorType], float] = {}
        self._device: Processor | None = None
        self.measurements = 0

    def watch(self, processors: tuple[Processor, ...]) -> None:
        """Tells which processor handovers are measured with: the first OpenCL device, else what computes by calls, if any."""
        others = sorted((p for p in processors if p.lane != "host"), key=lambda p: p.lane != "opencl")
        self._device = next(iter(others), None)

    def expect(self, working_set: int) -> None:
        """Costs are those of a network that goes through so many bytes of weights and activations in a run."""
        self._network = network_state(working_set)

    def close(self) -> None:
        """Ends the process that candidates run in; the profiler cannot measure afterwards."""
        self._trials.close()

    # -- costs ---------------------------------------------------------------------------------------------------

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self.compare(processor, layer, [Candidate(routine, parameters)])[0]

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        """Seconds of each candidate; those that are not known are measured together, beside the best one known."""
        return [m.seconds for m in self.measure(processor, layer, candidates)]

    def measure(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[Measurement]:
        """As `compare`, with all that is known of each.

        Raises:
            FileError: the store cannot be read or written.
            DeviceError: there can be no process to measure in.
        """
        state = layer_state(layer, self._network)
        keys = [_key(processor, layer, candidate, state) for candidate in candidates]
        for key in keys:
            if key not in self._known and (found := self._stored(key)) is not None:
                self._known[key] = found
        unknown = {k: c for k, c in zip(keys, candidates, strict=True) if k not in self._known}
        if unknown:
            known = {k: c for k, c in zip(keys, candidates, strict=True) if k in self._known}
            best = min(known, key=lambda k: self._known[k].seconds or math.inf, default=None)
            incumbent = None if best is None else known[best]
            made = self._measure_all(processor, layer, list(unknown.values()), incumbent, state)
            found_now = dict(zip(unknown, made, strict=True))
            self._store.put_all(Row(*key[:3], dict(key[3]), m) for key, m in found_now.items())
            self._known.update(found_now)
            self.measurements += len(made)
        return [self._known[key] for key in keys]

    def error(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self.measure(processor, layer, [Candidate(routine, parameters)])[0].error

    def failure(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> str | None:
        """Why a routine that was measured has no time, or None."""
        key = _key(processor, layer, Candidate(routine, parameters), layer_state(layer, self._network))
        found = self._known.get(key) or self._stored(key)
        return found.failure if found else None

    def handover(self, tensor: TensorType) -> float:
        return 0.0 if self._device is None else self.passing(self._host, self._device, tensor)

    def passing(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        """As between the host and a device, if one of the two is one; else as between the host and a group of other cores."""
        device = next((p for p in (one, other) if p.lane != "host"), other if one is self._host else one)
        if tensor.dtype != "float32":  # the host has routines to copy that alone, and bytes are bytes
            tensor = TensorType((-(-PLAIN.bytes(tensor) // 4),))
        key = (device.name, tensor)
        if key not in self._handovers:
            self._handovers[key] = self._measured_handover(device, tensor)
        return self._handovers[key]

    def _stored(self, key: _Key) -> Measurement | None:
        processor, workload, routine, parameters, state = key
        found = self._store.get(processor, workload, routine, dict(parameters), state)
        return self._judged(found) if found is not None and found.when >= self._since else None

    def _judged(self, found: Measurement) -> Measurement | None:
        """What a measurement means under this tolerance, which it may not have been made under; None: measure again."""
        if found.error is None:
            return found
        if found.error > self._tolerance:
            return replace(found, seconds=None, interval=None, failure=_too_wrong(found.error, self._tolerance))
        return found if found.seconds is not None else None

    # -- inside networks -----------------------------------------------------------------------------------------

    def inside(self, key: Key) -> Samples:
        """What a layer took inside a network, seconds; nothing if that is not known."""
        found = self._stored((key.processor, _inside(key), key.routine, key.parameters, "warm"))
        return found.samples if found is not None and found.seconds is not None else ()

    def keep_inside(self, found: Mapping[Key, Samples]) -> None:
        """Keeps what layers took inside a network in place of what was known of that."""
        rows = []
        for key, samples in found.items():
            measurement = Measurement(typical(samples), samples, interval=interval(samples))
            rows.append(Row(key.processor, _inside(key), key.routine, dict(key.parameters), measurement))
        self._store.put_all(rows)

    def forget_inside(self, keys: Sequence[Key]) -> None:
        """Drops what is known of layers inside a network."""
        self._store.remove((key.processor, _inside(key), key.routine, dict(key.parameters)) for key in keys)

    def is_slowed(self) -> bool:
        """Whether the host's first core is far below what it usually shows, just now."""
        clock = self._clock(self._host)
        return clock.slow(clock.read(lambda core: engine().peak_gflops(core, 0)))

    # -- layers --------------------------------------------------------------------------------------------------

    def _measure_all(
        self,
        processor: Processor,
        layer: Layer,
        candidates: Sequence[Candidate],
        incumbent: Candidate | None,
        state: CacheState,
    ) -> list[Measurement]:
        """Measures candidates in groups that fit memory; the best one so far, or `incumbent`, runs again in every group."""
        task = _Task(processor, self._examples.of(layer), state, self._tolerance)
        found: dict[int, Measurement] = {}
        waiting = list(enumerate(candidates))
        best: tuple[Candidate, float] | None = None
        if incumbent is not None:
            seconds = self._known[_key(processor, layer, incumbent, state)].seconds
            best = (incumbent, seconds) if seconds is not None else None
        while waiting:
            group = _Group(self._trials, task, self._host, self._clock(processor))
            try:
                if best is not None:
                    group.add(-1, best[0])
                while waiting and (group.bytes < _OPEN_BYTES or group.empty):
                    group.add(*waiting.pop(0))
                made = group.run(best[1] if best is not None else None)
            finally:
                self._trials.clear()
            made.pop(-1, None)
            found.update(made)
            for number, measurement in made.items():
                if measurement.seconds is not None and (best is None or measurement.seconds < best[1]):
                    best = candidates[number], measurement.seconds
        return [found[number] for number in range(len(candidates))]

    def _clock(self, processor: Processor) -> _Clock:
        return self._clocks.setdefault(processor.name, _Clock(processor))

    # -- handovers -----------------------------------------------------------------------------------------------

    def _measured_handover(self, device: Processor, tensor: TensorType) -> float:
        """Half of what a round trip host -> device -> host takes beyond its three copies.

        Other cores count as a device; a call that copies is a copy, too.
        """
        workload, route = handover_workload(tensor), self._host.fingerprint
        found = self._stored((device.fingerprint, workload, route, (), "warm"))
        if found is None:
            with Session(_round_trip(self._host, device, tensor)) as session:
                samples = session.time({}, warmup=2, runs=_HANDOVER_RUNS, budget=_HANDOVER_BUDGET)
            copies = 2 * self._copy_seconds(self._host, tensor) + self._copy_seconds(device, tensor)
            quiet = float(np.quantile(samples, _QUIET))
            found = Measurement(max(0.0, (quiet - copies) / 2), tuple(map(float, samples)))
            self._store.put(device.fingerprint, workload, route, {}, found)
        return found.seconds or 0.0

    def _copy_seconds(self, processor: Processor, tensor: TensorType) -> float:
        return self.reorder_seconds(processor, tensor, PLAIN, PLAIN) or 0.0


def _inside(key: Key) -> str:
    """The workload that a layer inside a network is kept by."""
    return f"{key.workload} in {key.network}"


def _key(processor: Processor, layer: Layer, candidate: Candidate, state: CacheState) -> _Key:
    parameters = tuple(sorted(candidate.parameters.items()))
    return processor.fingerprint, layer.workload, str(candidate.routine.descriptor), parameters, state


class _Clock:
    """How fast a processor's first core runs, watched so that a drift of its frequency is noticed."""

    def __init__(self, processor: Processor) -> None:
        self._core = next(iter(processor.spec.cores), None)
        self._readings: list[float] = []

    def read(self, gflops: Callable[[int], float | None]) -> float | None:
        """GFLOP/s of this moment: the better of two short measurements, as one may be interrupted; None if unknown."""
        if self._core is None:
            return None
        readings = [gflops(self._core) for _ in range(2)]
        found = max((r for r in readings if r is not None), default=None)
        if found is not None:
            self._readings.append(found)
        return found

    def slow(self, reading: float | None) -> bool:
        """Whether a reading is far below what the core usually shows.

        Not below the most that it has ever shown: a core that shares its execution units with a neighbour's shows that rarely.
        """
        return reading is not None and reading < _STEADY * statistics.median(self._readings)


@dataclass(frozen=True, eq=False)
class _Example:
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


class _Examples:
    """Examples of layers. Weights differ between equal workloads, so only the last layer's is kept."""

    def __init__(self) -> None:
        self._last: _Example | None = None

    def of(self, layer: Layer) -> _Example:
        """The layer's example; the same as before while it is asked for the same layer."""
        if self._last is None or self._last.layer is not layer:
            inputs = random_inputs(layer)
            self._last = _Example(layer, inputs, None if layer.op == REORDER else _answers(layer, inputs))
        return self._last


def _answers(layer: Layer, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    from nnstretch.graph.reference import run_layer

    return run_layer(layer, *inputs)


class _WrongAnswerError(TrialError):
    """A routine's `error` exceeds the tolerance."""

    def __init__(self, error: float, tolerance: float) -> None:
        super().__init__(_too_wrong(error, tolerance))
        self.error = error


def _too_wrong(error: float, tolerance: float) -> str:
    return f"wrong answer: relative error {error:.1e} exceeds {tolerance:.0e}"


@dataclass(frozen=True, eq=False)
class _Task:
    """A layer on a processor, with all that its candidates share."""

    processor: Processor
    example: _Example
    state: CacheState
    tolerance: float

    @property
    def layer(self) -> Layer:
        """The layer."""
        return self.example.layer


@dataclass(eq=False)
class _Group:
    """Candidates for one layer that are measured against each other."""

    trials: Trials
    task: _Task
    host: Processor
    clock: _Clock
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
        from nnstretch.graph.reference import answer_error

        layer = self.task.layer
        _, layouts = candidate.routine.layouts(layer, candidate.parameters)
        assert self.task.example.reference is not None
        worst = 0.0
        for index, expected in enumerate(self.task.example.reference):
            found = unpack(stored[index], layouts[index], layer.outputs[index].shape)
            error = answer_error(layer, index, found, expected)
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


def _round_trip(host: Processor, device: Processor, tensor: TensorType) -> Compiled:
    """A plan that copies zeros on the host, then on the device, then on the host into its output."""
    pool = lane_pool([host, device], host)
    layer = reorder_layer(tensor, PLAIN, PLAIN)
    lanes = (0, 1, 0)
    names = [f"t{i}" for i in range(len(lanes) + 1)]
    units = tuple(Unit(f"copy{i}", layer, (), (names[i],), (names[i + 1],), None) for i in range(len(lanes)))
    graph = UnitGraph(units, dict.fromkeys(names, tensor), (names[0],), (names[-1],))
    plain: tuple[Layout, ...] = (PLAIN,)
    routines = [pool.processors[lane].reorder() for lane in lanes]
    choices = [
        Choice(lane, r, r.parameter_space(layer)[0], plain, plain) for lane, r in zip(lanes, routines, strict=True)
    ]
    steps = draft(graph, choices, pool.lanes, pool.reorders(), device.coherent, lambda *_: None)
    plan, constants = assemble(graph, steps, pool.lanes, host.blocked.block)
    return Compiled(plan, constants, steps.models)
