"""Profiling: measured costs of routines, each workload once (SoftNeuro, section III-C; ACLTuner, task de-duplication).

All candidates for a layer race each other on the machine of the processor (`site`): here in a process of their own
(`local_site`), with the layer's weights where a network leaves them (`caches`). A routine's answer is checked against ONNX
Runtime before its time counts. A routine that gives a wrong answer, is refused, fails to build or ends its process is stored
with the reason and never chosen.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Layout, Parameters, Routine, reorder_layer
from nnstretch.errors import ModelError
from nnstretch.graph.dtypes import DEFAULT_DTYPE, element_type
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.costs import Candidate, CostModel, Outcome, Settings, hops, undelayed, usual_settings
from nnstretch.scheduler.costmodel.workload import transfer_workload
from nnstretch.scheduler.measurement.caches import layer_state, network_state
from nnstretch.scheduler.measurement.candidate_set import CandidateSet
from nnstretch.scheduler.measurement.compare import LostDeviceError
from nnstretch.scheduler.measurement.integrated import LayerTimeKey, Samples
from nnstretch.scheduler.measurement.local_site import LocalSite
from nnstretch.scheduler.measurement.race import interval, typical
from nnstretch.scheduler.measurement.reference_cases import LayerUnderTest, ReferenceCases, too_wrong
from nnstretch.scheduler.measurement.site import MeasurementSite, ReferenceFrequency, UnmeasuredError
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement, Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.support.closing import Closing
from nnstretch.support.progress import Progress, silent

TOLERANCE = 1e-4
"""Default of a routine's largest error against the reference, relative to the output's range."""

_RUNGS = (1 << 10, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23)
"""Bytes of the tensors whose transfers are measured; others are interpolated."""
_REPETITIONS = 3
"""Times that disturbed transfers are measured again."""
_DISTURBED, _TRANSFER_NOISE = 2.0, 20e-6
"""A transfer was disturbed that takes more than a multiple of a larger one's seconds, and as many seconds more."""
_READING_SECONDS = 0.2
"""Seconds of readings of a frequency; the core works all the time, so it is at the clock that networks run at."""
_SLOWED = 0.95
"""Share of the reference frequency below which a core counts as slowed."""

_Key = tuple[str, str, str, tuple[tuple[str, int], ...], CacheState]


class Profiler(CostModel, Closing):
    """Costs from the profile store; measures those that it does not have. A context manager that ends the worker process."""

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
        site: MeasurementSite | None = None,
    ) -> None:
        """Starts no process yet.

        Args:
            store: holds all measurements.
            host: CPU that copies a device's results out for the check.
            processors: those that networks run on.
            settings: parameter settings that selection considers.
            fresh: ignore measurements from before this call.
            exhaustive: `compare` measures every setting. Otherwise it leaves out a routine whose first setting is far behind.
            tolerance: largest error of a routine, relative to the output's range.
            site: where candidates are measured, which the profiler closes; this machine if None.
        """
        self._tolerance = tolerance
        self._store = store
        self._host = host
        self._since = time.time() if fresh else 0.0
        self._site = site or LocalSite(host)
        self._settings = settings
        self._exhaustive = exhaustive
        self._processors = tuple(processors)
        self._network: CacheState = "memory"
        self._copies: CostModel | None = None
        # Copies of this profiler (`in_network`, `with_settings`) share all that follows.
        self._known: dict[_Key, Measurement] = {}
        self._measured_keys: set[_Key] = set()
        self._cases = ReferenceCases()
        self._references: dict[str, ReferenceFrequency] = {}
        self._transfers: dict[str, list[float]] = {}  # by device, one for each of _RUNGS

    @property
    def site(self) -> MeasurementSite:
        """Where candidates are measured."""
        return self._site

    @property
    def measurements(self) -> int:
        """Number of measurements that were made, in contrast to those found in the store."""
        return len(self._measured_keys)

    def in_network(self, working_set: int) -> Profiler:
        model = copy.copy(self)
        model._network = network_state(working_set, self._site.caches)
        model._copies = None if self._copies is None else self._copies.in_network(working_set)
        return model

    def with_copies(self, copies: CostModel) -> Profiler:
        """A profiler that asks `copies` for the seconds of layout changes, and measures those that it does not know.

        A network has dozens of them, which take little of its time.
        """
        model = copy.copy(self)
        model._copies = copies
        return model

    def close(self) -> None:
        """Ends what measures; neither the profiler nor a copy can measure afterwards."""
        self._site.close()

    # -- costs ---------------------------------------------------------------------------------------------------

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self.compare(processor, layer, [Candidate(routine, parameters)])[0]

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        """Seconds of each candidate; unknown ones race each other and the best known one.

        Unless the profiler is exhaustive, a routine whose first setting among `candidates` is far behind has its other settings
        eliminated; they have no seconds.
        """
        state = self._state(layer)
        keys = self._measured(processor, layer, candidates, state, exhaustive=self._exhaustive)
        return [self._known[key].seconds if key in self._known else None for key in keys]

    def prepare(
        self, processor: Processor, layers: Sequence[Layer], progress: Progress = silent, *, branched: bool = False
    ) -> None:
        """Prepares to measure layers of a network (`MeasurementSite.prepare`)."""
        self._site.prepare(processor, layers, progress, branched=branched)

    def measure(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[Measurement]:
        """The measurement of each candidate; measures all unknown ones.

        Raises:
            FileError: the store cannot be read or written.
            DeviceError: the measurement worker cannot be started.
        """
        state = self._state(layer)
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
        """Keys of the candidates, after those that are neither known nor eliminated were measured."""
        keys = [_key(processor, layer, candidate, state) for candidate in candidates]
        for key in keys:
            if key not in self._known and (found := self._stored(key)) is not None:
                self._known[key] = found
        if all(key in self._known for key in keys):
            return keys
        unknown = CandidateSet(layer, candidates, exhaustive=exhaustive)
        unknown.seconds.update((n, self._known[key].seconds) for n, key in enumerate(keys) if key in self._known)
        if not self._site.measures:
            if unknown.best is None:
                raise UnmeasuredError(f"{layer.op} of layer {layer.name}")
            return keys
        if not unknown.worth_measuring({}):
            return keys
        try:
            test = LayerUnderTest(processor, self._cases.of(layer), state, self._tolerance)
        except ModelError as error:  # inputs that must be of some form, such as the scales of a Resize
            failed = Measurement(None, failure=str(error), state=state)
            self._known.update((key, failed) for key in keys if key not in self._known)
            return keys
        try:
            made = self._site.compare(unknown, test, self._reference(processor))
        except LostDeviceError as lost:
            self._keep({keys[number]: measurement for number, measurement in lost.measured.items()})
            raise
        self._keep({keys[number]: measurement for number, measurement in made.items()})
        return keys

    def _keep(self, found_now: Mapping[_Key, Measurement]) -> None:
        """Stores new measurements."""
        self._store.put_all(Row(*key[:3], dict(key[3]), m) for key, m in found_now.items())
        self._known.update(found_now)
        self._measured_keys.update(found_now)

    def error(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self.measure(processor, layer, [Candidate(routine, parameters)])[0].error

    def outcome(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> Outcome:
        key = _key(processor, layer, Candidate(routine, parameters), self._state(layer))
        found = self._known.get(key) or self._stored(key)
        return Outcome(found.error, found.failure) if found else Outcome()

    def reorder_seconds(self, processor: Processor, tensor: TensorType, before: Layout, after: Layout) -> float | None:
        known = None if self._copies is None else self._copies.reorder_seconds(processor, tensor, before, after)
        return super().reorder_seconds(processor, tensor, before, after) if known is None else known

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return sum(self._hop(device, tensor) for device in hops(one, other, self._host))

    def _hop(self, device: Processor, tensor: TensorType) -> float:
        """Seconds of a transfer between the host and a device, or other cores."""
        if device.name not in self._transfers:
            self._transfers[device.name] = self._measured_rungs(device)
        # Interpolated between `_RUNGS`, and proportional beyond the largest.
        size = PLAIN.bytes(tensor)
        between = float(np.interp(size, _RUNGS, self._transfers[device.name])) * max(1.0, size / _RUNGS[-1])
        return undelayed(device, between, size)

    def _measured_rungs(self, device: Processor) -> list[float]:
        """Seconds of transfers of `_RUNGS` bytes, not falling with the size.

        What takes much longer than a larger transfer was disturbed, and is measured again: stored, it would stay in the way of
        all later plans.
        """
        tensors = [TensorType((size // element_type(DEFAULT_DTYPE).bytes,)) for size in _RUNGS]
        seconds = [self._measured_transfer(device, tensor) for tensor in tensors]
        for _ in range(_REPETITIONS):
            least_beyond = np.minimum.accumulate(seconds[::-1])[::-1]
            for rung in np.flatnonzero(seconds > _DISTURBED * least_beyond + _TRANSFER_NOISE):
                seconds[rung] = self._measured_transfer(device, tensors[rung], again=True)
        # Times beyond the copies do not fall with the size; a smaller one is noise.
        return [float(one) for one in np.maximum.accumulate(seconds)]

    def _state(self, layer: Layer) -> CacheState:
        """The cache state that a layer is measured in."""
        return layer_state(layer, self._network, self._site.caches)

    def _stored(self, key: _Key) -> Measurement | None:
        processor, workload, routine, parameters, state = key
        found = self._store.get(processor, workload, routine, dict(parameters), state)
        return self._judged(found) if found is not None and found.when >= self._since else None

    def _judged(self, found: Measurement) -> Measurement | None:
        """A measurement under this tolerance, which may differ from its own; None if it must be repeated."""
        if found.error is None:
            return found
        if found.error > self._tolerance:
            return replace(found, seconds=None, interval=None, failure=too_wrong(found.error, self._tolerance))
        return found if found.seconds is not None else None

    # -- inside networks -----------------------------------------------------------------------------------------

    def layer_samples(self, key: LayerTimeKey) -> Samples:
        """Seconds of a layer inside a network; empty if unknown."""
        found = self._stored((key.processor, _workload_in_network(key), key.routine, key.parameters, "warm"))
        return found.samples if found is not None and found.seconds is not None else ()

    def keep_layer_samples(self, found: Mapping[LayerTimeKey, Samples]) -> None:
        """Replaces the seconds of layers inside a network."""
        rows = []
        for key, samples in found.items():
            measurement = Measurement(typical(samples), samples, interval=interval(samples))
            rows.append(Row(key.processor, _workload_in_network(key), key.routine, dict(key.parameters), measurement))
        self._store.put_all(rows)

    def forget_layer_samples(self, keys: Sequence[LayerTimeKey]) -> None:
        """Removes the seconds of layers inside a network."""
        self._store.remove(
            (key.processor, _workload_in_network(key), key.routine, dict(key.parameters)) for key in keys
        )

    def step_seconds(self, compiled: Compiled) -> np.ndarray:
        """Seconds of every step of a plan (rows) in several runs (columns)."""
        return self._site.step_seconds(compiled)

    def is_slowed(self) -> bool:
        return self.pace(self._host) < _SLOWED

    def pace(self, processor: Processor) -> float:
        """Current frequency of a processor's first core over the reference frequency; 1 if unknown."""
        return self._reference(processor).ratio(self._site.frequency(processor))

    def _reference(self, processor: Processor) -> ReferenceFrequency:
        """The frequency that the processor's times are normalised to."""
        name = processor.fingerprint
        if name not in self._references:
            self._references[name] = ReferenceFrequency(self._reference_gflops(processor))
        return self._references[name]

    def _reference_gflops(self, processor: Processor) -> float | None:
        """GFLOP/s that the store's times are normalised to; without any, those of this moment.

        These are divided by the pace of a processor with a known reference, so that both references belong to one moment.
        """
        known = self._store.reference_gflops(processor.fingerprint)
        if known:
            return statistics.median(known)
        other = next(
            (p for p in (self._host, *self._processors) if p is not processor and self._has_reference(p)), None
        )
        readings: list[float] = []
        end = time.monotonic() + _READING_SECONDS
        while not readings or time.monotonic() < end:
            reading = self._site.frequency(processor)
            if reading is None:
                return None
            readings.append(reading / (1.0 if other is None else self.pace(other)))
        return statistics.median(readings)

    def _has_reference(self, processor: Processor) -> bool:
        name = processor.fingerprint
        return name in self._references or bool(self._store.reference_gflops(name))

    # -- transfers -----------------------------------------------------------------------------------------------

    def _measured_transfer(self, device: Processor, tensor: TensorType, *, again: bool = False) -> float:
        """Half the time of a round trip host -> device -> host beyond its three copies.

        Other cores count as a device, and a call that copies counts as a copy.

        Args:
            device: the other end.
            tensor: what is passed.
            again: measures also if a time is stored; the least of both is kept.
        """
        workload, route = transfer_workload(tensor), self._host.fingerprint
        known = self._stored((device.fingerprint, workload, route, (), "warm"))
        if known is not None and not again:
            return known.seconds or 0.0
        seconds, samples = self._site.round_trip(self._host, device, tensor)
        copies = 2 * self._copy_seconds(self._host, tensor) + self._copy_seconds(device, tensor)
        found = Measurement(max(0.0, (seconds - copies) / 2), samples)
        if known is not None and (known.seconds or 0.0) <= (found.seconds or 0.0):
            return known.seconds or 0.0
        self._store.put(device.fingerprint, workload, route, {}, found)
        return found.seconds or 0.0

    def _copy_seconds(self, processor: Processor, tensor: TensorType) -> float:
        """Seconds of a copy inside a round trip, where no other tensor passes through the caches."""
        layer, routine = reorder_layer(tensor, PLAIN, PLAIN), processor.reorder
        candidate = Candidate(routine, routine.default_parameters(layer))
        (key,) = self._measured(processor, layer, [candidate], "l3", exhaustive=False)
        return self._known[key].seconds or 0.0


def _workload_in_network(key: LayerTimeKey) -> str:
    """Store key of a workload inside a network."""
    return f"{key.workload} in {key.network}"


def _key(processor: Processor, layer: Layer, candidate: Candidate, state: CacheState) -> _Key:
    parameters = tuple(sorted(candidate.parameters.items()))
    return processor.fingerprint, layer.workload, str(candidate.routine.descriptor), parameters, state
