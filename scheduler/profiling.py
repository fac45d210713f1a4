"""Profiling: measured costs of routines, each workload once (SoftNeuro, section III-B; ACLTuner, task de-duplication).

A routine's answer is checked against ONNX Runtime before its time counts; one that is wrong, is refused or fails to build is
remembered with the reason and never chosen.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from nnstretch.devices.engine.harness import unpack
from nnstretch.devices.processor import Processor
from nnstretch.devices.routine import PLAIN, REORDER, Layout, Parameters, Routine, reorder_layer
from nnstretch.errors import NNStretchError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.compiled import Compiled
from nnstretch.scheduler.costs import CostModel
from nnstretch.scheduler.draft import Choice, draft
from nnstretch.scheduler.planner import assemble, lane_pool
from nnstretch.scheduler.session import Session
from nnstretch.scheduler.single import SingleLayer, random_inputs, single_layer_plan
from nnstretch.scheduler.store import Measurement, ProfileStore
from nnstretch.scheduler.units import Unit, UnitGraph

TOLERANCE = 1e-4
"""Error that a routine may have against the reference, relative to the output's range."""

_RUNS = 25
_BUDGET = 0.03
_HOPELESS = 1.25
"""A routine whose first runs all take so many times as long as the best one's is not timed any further."""
_STEADY = 1.1
"""Samples are enough if their median is within this factor of the least, or after so many rounds."""
_ROUNDS = 3
_REPEATS = 8
_SHORT_MACS = 30_000_000
"""A layer of fewer is repeated on a device, so that launching and awaiting the run weigh little."""
_CACHED_BYTES = 256 << 10
"""Weights of fewer bytes may be in a core's cache when a network comes to them again; larger ones are not."""
_CACHES_BYTES = 64 << 20
"""Copies of weights of so many bytes in all do not fit the caches of any processor that nnstretch was tried on."""


class Profiler(CostModel):
    """Measures what the store does not know yet."""

    measured = True

    def __init__(self, store: ProfileStore, host: Processor) -> None:
        """`host` copies results of devices out for the check."""
        self._store = store
        self._host = host
        self._known: dict[tuple[str, str, str, tuple[tuple[str, int], ...]], float | None] = {}
        self._best: dict[tuple[str, str], float] = {}  # (processor, workload) -> seconds of the fastest routine so far
        self._references: dict[str, list[np.ndarray]] = {}
        self._handovers: dict[TensorType, float] = {}
        self._device: Processor | None = None
        self.measurements = 0

    def watch(self, processors: tuple[Processor, ...]) -> None:
        """Tells which device handovers are measured with: the first OpenCL processor, if any."""
        self._device = next((p for p in processors if p.memory == "opencl"), None)

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        key = (processor.fingerprint, layer.workload, str(routine.descriptor), tuple(sorted(parameters.items())))
        if key not in self._known:
            seconds = self._known[key] = self._measurement(processor, routine, layer, parameters).seconds
            if seconds is not None:
                self._best[key[:2]] = min(seconds, self._best.get(key[:2], math.inf))
        return self._known[key]

    def failure(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> str | None:
        """Why a routine that was measured has no time, or None."""
        found = self._store.get(processor.fingerprint, layer.workload, str(routine.descriptor), parameters)
        return found.failure if found else None

    def handover(self, tensor: TensorType) -> float:
        if self._device is None:
            return 0.0
        if tensor not in self._handovers:
            self._handovers[tensor] = self._measured_handover(self._device, tensor)
        return self._handovers[tensor]

    # -- layers --------------------------------------------------------------------------------------------------

    def _measurement(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> Measurement:
        names = (processor.fingerprint, layer.workload, str(routine.descriptor), parameters)
        found = self._store.get(*names)
        if found is None:
            try:
                found = self._measure(processor, routine, layer, parameters)
            except NNStretchError as error:
                found = Measurement(None, failure=str(error))
            self._store.put(*names, found)
            self.measurements += 1
        return found

    def _measure(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> Measurement:
        inputs = random_inputs(layer)
        single = SingleLayer(processor, routine, layer, parameters, routine.lower(layer, parameters))
        if layer.op != REORDER:
            wrong = self._wrong(replace(single, host=self._host), inputs)
            if wrong is not None:
                return Measurement(None, failure=wrong)
        single = replace(single, repeats=_repeats(single))
        best = self._best.get((processor.fingerprint, layer.workload), math.inf)
        samples = _samples(single_layer_plan(single, inputs), best * single.repeats) / single.repeats
        return Measurement(_typical(samples), tuple(float(s) for s in samples))

    def _wrong(self, single: SingleLayer, inputs: list[np.ndarray]) -> str | None:
        """What is wrong with a routine's answer, or None."""
        from nnstretch.graph.reference import relative_error

        layer = single.layer
        _, layouts = single.routine.layouts(layer, single.parameters)
        with Session(single_layer_plan(single, inputs)) as session:
            stored = session.run(None, {})
        for index, expected in enumerate(self._reference(layer, inputs)):
            found = unpack(stored[index], layouts[index], layer.outputs[index].shape)
            error = relative_error(found, expected)
            if not error <= TOLERANCE:
                return f"wrong answer: relative error {error:.1e} exceeds {TOLERANCE:.0e}"
        return None

    def _reference(self, layer: Layer, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """ONNX Runtime's answer; weights differ between equal workloads, so only the last layer's is kept."""
        from nnstretch.graph.reference import run_layer

        key = f"{layer.workload_id}:{id(layer)}"
        if key not in self._references:
            self._references = {key: run_layer(layer, *inputs)}
        return self._references[key]

    # -- handovers -----------------------------------------------------------------------------------------------

    def _measured_handover(self, device: Processor, tensor: TensorType) -> float:
        """Half of what a round trip host -> device -> host takes beyond its three copies."""
        workload = f"handover {tensor}"
        route = self._host.fingerprint
        found = self._store.get(device.fingerprint, workload, route, {})
        if found is None:
            samples = _samples(_round_trip(self._host, device, tensor))
            copies = 2 * self._copy_seconds(self._host, tensor) + self._copy_seconds(device, tensor)
            found = Measurement(max(0.0, (_typical(samples) - copies) / 2), tuple(map(float, samples)))
            self._store.put(device.fingerprint, workload, route, {}, found)
        return found.seconds or 0.0

    def _copy_seconds(self, processor: Processor, tensor: TensorType) -> float:
        layer, routine = reorder_layer(tensor, PLAIN, PLAIN), processor.reorder()
        return self.seconds(processor, routine, layer, routine.parameter_space(layer)[0]) or 0.0


def _repeats(single: SingleLayer) -> int:
    """How often a layer runs in one timed run (see `SingleLayer`)."""
    weights = single.lowering.weight_bytes
    copies = -(-_CACHES_BYTES // weights) if weights > _CACHED_BYTES else 1
    short = single.processor.memory == "opencl" and single.layer.macs < _SHORT_MACS
    return min(_REPEATS, max(copies, _REPEATS if short else 1))


def _samples(compiled: Compiled, best: float = math.inf) -> np.ndarray:
    """Seconds of each of several runs: of more where they differ, of few where `best` is out of reach."""
    with Session(compiled) as session:
        samples = session.time({}, warmup=1, runs=2, budget=_BUDGET)
        for _ in range(_ROUNDS):
            if samples.min() > _HOPELESS * best and len(samples) > 2:
                break
            runs = 3 if samples.min() > _HOPELESS * best else _RUNS
            samples = np.append(samples, session.time({}, warmup=0, runs=runs, budget=_BUDGET))
            if runs == _RUNS and np.median(samples) < _STEADY * samples.min():
                break
        return samples


def _typical(samples: np.ndarray) -> float:
    """The lower quartile: whatever disturbs a measurement makes it longer, never shorter."""
    return float(np.quantile(samples, 0.25))


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
    reorders = {lane: p.reorder() for lane, p in enumerate(pool.processors)}
    steps = draft(graph, choices, pool.lanes, reorders, device.coherent)
    plan, constants = assemble(graph, steps, pool.lanes, host.blocked.block)
    return Compiled(plan, constants)
