"""Profiling: measured costs of routines, each workload once (SoftNeuro, section III-C; ACLTuner, task de-duplication).

All candidates for a layer are measured together, in rounds (`measuring`), in a process of their own (`trials`), with the
layer's weights where a whole network would leave them (`caches`). A routine's answer is checked against ONNX Runtime before its
time counts; one that is wrong, is refused, fails to build or ends its process is remembered with the reason and never chosen.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Parameters, Routine, reorder_layer
from nnstretch.devices.engine.binding.library import engine
from nnstretch.errors import FeedError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.costs import Candidate, CostModel, Settings, usual_settings
from nnstretch.scheduler.costmodel.workload import transfer_workload
from nnstretch.scheduler.measurement.caches import layer_state, network_state
from nnstretch.scheduler.measurement.integrated import Key, Samples
from nnstretch.scheduler.measurement.racing.compare import Clock, Entrants, Examples, Task, compare, too_wrong
from nnstretch.scheduler.measurement.racing.race import interval, typical
from nnstretch.scheduler.measurement.runner.runner import Runner
from nnstretch.scheduler.measurement.runner.transfers import round_trip
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement, Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.support.closing import Closing

TOLERANCE = 1e-4
"""Error that a routine may have against the reference if nothing else is asked for, relative to the output's range."""

_RUNGS = (1 << 10, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23)
"""Bytes of the tensors whose transfers are measured; others are taken to lie between."""
_READINGS, _BETWEEN_READINGS = 10, 0.02  # of a clock, and seconds
_SLOWED = 0.95
"""Of its usual clock: below it, a core that runs a whole network is slowed."""

_Key = tuple[str, str, str, tuple[tuple[str, int], ...], CacheState]


class Profiler(CostModel, Closing):
    """Measures what the store does not know yet. A context manager: leaving it ends the process that it measures in."""

    measured = True

    def __init__(
        self,
        store: ProfileStore,
        host: Processor,
        *,
        processors: Sequence[Processor] = (),
        settings: Settings = usual_settings,
        fresh: bool = False,
        exhaustive: bool = False,
        tolerance: float = TOLERANCE,
        runner: Runner | None = None,
    ) -> None:
        """Starts no process yet.

        Args:
            store: holds all measurements.
            host: CPU that copies a device's results out for the check.
            processors: those that networks run on. `transfer` is measured with the first OpenCL device among them, else with
                the first processor that computes by calls, if there is one.
            settings: parameter settings that selection considers.
            fresh: ignore measurements from before this call.
            exhaustive: `compare` measures every setting. Otherwise it leaves out a routine whose first setting is far behind.
            tolerance: largest error of a routine, relative to the output's range.
            runner: runs the candidates; a process of the profiler's own if None.
        """
        self._tolerance = tolerance
        self._store = store
        self._host = host
        self._since = time.time() if fresh else 0.0
        self._runner = runner or Runner()
        self._settings = settings
        self._exhaustive = exhaustive
        self._processors = tuple(processors)
        devices = sorted((p for p in processors if not p.backend.serves_caller), key=lambda p: not p.backend.own_memory)
        self._device = next(iter(devices), None)
        self._network: CacheState = "memory"
        # Copies of this profiler (`in_network`, `with_settings`) share all that follows.
        self._known: dict[_Key, Measurement] = {}
        self._measured_keys: set[_Key] = set()
        self._examples = Examples()
        self._clocks: dict[str, Clock] = {}
        self._transfers: dict[str, list[float]] = {}  # by device, one for each of _RUNGS

    @property
    def measurements(self) -> int:
        """Number of measurements that were made, in contrast to those found in the store."""
        return len(self._measured_keys)

    def in_network(self, working_set: int) -> Profiler:
        model = copy.copy(self)
        model._network = network_state(working_set)
        return model

    def close(self) -> None:
        """Ends the process that candidates run in; the profiler cannot measure afterwards."""
        self._runner.close()

    # -- costs ---------------------------------------------------------------------------------------------------

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self.compare(processor, layer, [Candidate(routine, parameters)])[0]

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        """Seconds of each candidate; those that are not known are measured together, beside the best one known.

        Unless `exhaustive`, a routine whose first setting among `candidates` is far behind has no others measured; they have no
        seconds.
        """
        state = layer_state(layer, self._network)
        keys = self._measured(processor, layer, candidates, state, exhaustive=self._exhaustive)
        return [self._known[key].seconds if key in self._known else None for key in keys]

    def measure(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[Measurement]:
        """All that is known of each candidate, every one of which is measured if it is not known.

        Raises:
            FileError: the store cannot be read or written.
            DeviceError: there can be no process to measure in.
        """
        state = layer_state(layer, self._network)
        return [self._known[key] for key in self._measured(processor, layer, candidates, state, exhaustive=True)]

    def _measured(
        self,
        processor: Processor,
        layer: Layer,
        candidates: Sequence[Candidate],
        state: CacheState,
        *,
        exhaustive: bool,
    ) -> list[_Key]:
        """The keys of candidates, what can be known of them being known now."""
        keys = [_key(processor, layer, candidate, state) for candidate in candidates]
        for key in keys:
            if key not in self._known and (found := self._stored(key)) is not None:
                self._known[key] = found
        if all(key in self._known for key in keys):
            return keys
        entrants = Entrants(layer, candidates, exhaustive=exhaustive)
        entrants.seconds.update((n, self._known[key].seconds) for n, key in enumerate(keys) if key in self._known)
        task = Task(processor, self._examples.of(layer), state, self._tolerance)
        made = compare(entrants, task, self._runner, self._host, self._clock(processor))
        found_now = {keys[number]: measurement for number, measurement in made.items()}
        self._store.put_all(Row(*key[:3], dict(key[3]), m) for key, m in found_now.items())
        self._known.update(found_now)
        self._measured_keys.update(found_now)
        return keys

    def error(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self.measure(processor, layer, [Candidate(routine, parameters)])[0].error

    def failure(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> str | None:
        """Why a routine that was measured has no time, or None."""
        key = _key(processor, layer, Candidate(routine, parameters), layer_state(layer, self._network))
        found = self._known.get(key) or self._stored(key)
        return found.failure if found else None

    def transfer(self, tensor: TensorType) -> float:
        return 0.0 if self._device is None else self.passing(self._host, self._device, tensor)

    def passing(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        """As between the host and a device, if one of the two is one; else as between the host and a group of other cores."""
        device = next((p for p in (one, other) if not p.backend.serves_caller), other if one is self._host else one)
        if device.name not in self._transfers:
            seconds = [self._measured_transfer(device, TensorType((size // 4,))) for size in _RUNGS]
            # What is left of large tensors' trips beyond the copies is noise rather than less.
            self._transfers[device.name] = np.maximum.accumulate(seconds).tolist()
        return _between(PLAIN.bytes(tensor), self._transfers[device.name])

    def _stored(self, key: _Key) -> Measurement | None:
        processor, workload, routine, parameters, state = key
        found = self._store.get(processor, workload, routine, dict(parameters), state)
        return self._judged(found) if found is not None and found.when >= self._since else None

    def _judged(self, found: Measurement) -> Measurement | None:
        """What a measurement means under this tolerance, which it may not have been made under; None: measure again."""
        if found.error is None:
            return found
        if found.error > self._tolerance:
            return replace(found, seconds=None, interval=None, failure=too_wrong(found.error, self._tolerance))
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
        return self.pace(self._host) < _SLOWED

    def pace(self, processor: Processor) -> float:
        """How many times as fast as usual a processor's first core computes just now; 1 where that cannot be known."""
        return self._clock(processor).ratio(_reading(processor))

    def _clock(self, processor: Processor) -> Clock:
        """The clock that the processor's times are told at."""
        name = processor.fingerprint
        if name not in self._clocks:
            self._clocks[name] = Clock(self._usual(processor))
        return self._clocks[name]

    def _usual(self, processor: Processor) -> float | None:
        """What the store's times are told at; where it has none, the clock of this moment.

        That is put in relation to another processor's, if one is known: times of both are then told at one moment's clocks.
        """
        known = self._store.clocks(processor.fingerprint)
        if known:
            return statistics.median(known)
        other = next((p for p in (self._host, *self._processors) if p is not processor and self._has_clock(p)), None)
        readings = []
        for _ in range(_READINGS):
            reading = _reading(processor)
            if reading is None:
                return None
            readings.append(reading / (1.0 if other is None else self.pace(other)))
            time.sleep(_BETWEEN_READINGS)
        return statistics.median(readings)

    def _has_clock(self, processor: Processor) -> bool:
        name = processor.fingerprint
        return name in self._clocks or bool(self._store.clocks(name))

    # -- transfers -----------------------------------------------------------------------------------------------

    def _measured_transfer(self, device: Processor, tensor: TensorType) -> float:
        """Half of what a round trip host -> device -> host takes beyond its three copies.

        Other cores count as a device; a call that copies is a copy, too.
        """
        workload, route = transfer_workload(tensor), self._host.fingerprint
        found = self._stored((device.fingerprint, workload, route, (), "warm"))
        if found is None:
            seconds, samples = round_trip(self._host, device, tensor)
            copies = 2 * self._copy_seconds(self._host, tensor) + self._copy_seconds(device, tensor)
            found = Measurement(max(0.0, (seconds - copies) / 2), samples)
            self._store.put(device.fingerprint, workload, route, {}, found)
        return found.seconds or 0.0

    def _copy_seconds(self, processor: Processor, tensor: TensorType) -> float:
        """Seconds of a copy as round trips have them, whose tensors are the only ones that go through the caches."""
        layer, routine = reorder_layer(tensor, PLAIN, PLAIN), processor.reorder()
        candidate = Candidate(routine, routine.parameter_space(layer)[0])
        (key,) = self._measured(processor, layer, [candidate], "l3", exhaustive=False)
        return self._known[key].seconds or 0.0


def _reading(processor: Processor) -> float | None:
    """The clock of a processor's first core just now; None if it has none, or none that this process may use."""
    core = next(iter(processor.spec.cores), None)
    try:
        return None if core is None else engine().clock_gflops(core)
    except FeedError:
        return None


def _between(size: int, seconds: Sequence[float]) -> float:
    """Seconds for so many bytes by those of the rungs; beyond the largest, in proportion."""
    return float(np.interp(size, _RUNGS, seconds)) * max(1.0, size / _RUNGS[-1])


def _inside(key: Key) -> str:
    """The workload that a layer inside a network is kept by."""
    return f"{key.workload} in {key.network}"


def _key(processor: Processor, layer: Layer, candidate: Candidate, state: CacheState) -> _Key:
    parameters = tuple(sorted(candidate.parameters.items()))
    return processor.fingerprint, layer.workload, str(candidate.routine.descriptor), parameters, state
