"""Opens and times single layers inside the measurement worker."""

from __future__ import annotations

import itertools
import math
import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.binding.program import aligned_array
from nnstretch.scheduler.measurement.caches import written_afar
from nnstretch.scheduler.measurement.runner.single_layer import copied_weights, output_name
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.loading import Loaded, load_program

PAGE = mmap.PAGESIZE
RUNNING = struct.Struct("<q")
"""Number of the running layer, at the begin of the shared file; -1 if none runs."""

_FLUSHED_BYTES = 64 << 20
"""Weights of this size evict themselves from the caches."""
_AWAKE_SECONDS = 2e-3
"""A core that worked this recently is at its clock."""
_SWEPT_SHARE = 2
"""Bytes that are read to evict everything from the core's own caches, as a multiple of their size."""


@dataclass(eq=False)
class _BoundLayer:
    """A single-layer plan that is ready to run.

    The weights of models that external engines loaded, and what is in a device's own memory, are not known here.

    Attributes:
        op: operator of the layer.
        loaded: the program.
        inputs: arguments of a run.
        outputs: results of a run.
        sources: arrays that a run reads besides weights.
        results: arrays that a run writes and does not read: outputs, or what a device writes into host memory.
        weights: all copies of the weights.
        repeats: how often the layer is computed in a run.
        device_steps: the device's steps in a trace.
        core: the first host core that the layer runs on; None if it runs on none.
        has_models: whether an external engine runs.
    """

    op: str
    loaded: Loaded
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    sources: list[np.ndarray]
    results: list[np.ndarray]
    weights: np.ndarray
    repeats: int
    device_steps: slice
    core: int | None
    has_models: bool

    def time(self) -> float:
        """Seconds of one run.

        On a device, the first repeat counts as the mean of the others: it begins with cold instructions and idle vector units.
        What a trace itself takes does not count.
        Where a driver does not say when commands ran, the host's clock times the whole run.
        """
        self.loaded.activate()
        devices = self.loaded.device_queues
        if not devices or not all(queues.trace_times for queues in devices):
            return self.loaded.program.time(self.inputs, self.outputs, warmup=0, runs=1)[0] * 1e-9
        steps = self.loaded.program.run_traced(self.inputs, self.outputs).steps[self.device_steps]
        first = len(steps) // self.repeats if self.repeats > 1 else 0
        begin = steps[first - 1, 1] if first else steps[0, 0]
        taken = self.loaded.untraced((steps[-1, 1] - begin) * 1e-9, len(steps) - first)
        return float(taken) * self.repeats / max(1, self.repeats - 1)


class Executor:
    """All open layers.

    Layers with the same input share its memory, and all layers share the memory of outputs, so the order of runs has no effect.
    """

    def __init__(self, memory: int, own_cache: int) -> None:
        self._file = memory
        self._page = mmap.mmap(memory, PAGE)
        engine()  # builds it before the first measurement
        self._layers: dict[int, _BoundLayer] = {}
        self._inputs: dict[int, np.ndarray] = {}  # by offset in the shared file
        self._copies: dict[tuple[int, ...], np.ndarray] = {}  # by place in the shared file and number of repeats
        self._outputs: list[np.ndarray] = []
        self._swept_all: np.ndarray | None = None
        self._worked_core: int | None = None
        self._worked_until = -math.inf
        self._own_cache = own_cache
        self._swept = np.ones(max(1, _SWEPT_SHARE * own_cache // 4), np.float32)

    def set_running(self, layer: int) -> int:
        """Writes the number of the running layer to the shared file, and returns the previous one."""
        (before,) = RUNNING.unpack_from(self._page, 0)
        RUNNING.pack_into(self._page, 0, layer)
        return int(before)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request (`nnstretch.scheduler.measurement.runner.worker`)."""
        do = request["do"]
        if do == "open":
            self.set_running(request["layer"])
            return self._open(request)
        if do == "time":
            times = [self._time(number, request["state"]) for number in request["layers"]]
            return {"seconds": [seconds for seconds, _ in times], "clocks": [clock for _, clock in times]}
        for layer in self._layers.values():
            layer.loaded.close()
        self._layers, self._inputs, self._outputs, self._copies = {}, {}, [], {}
        return {}

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        plan = Plan.from_json(request["plan"])
        begin, _ = request["weights"]
        constants = self._constants(request)
        models = {name: self._map(*place).tobytes() for name, place in request["models"].items()}
        loaded = load_program(Compiled(plan, constants, models), None)
        outputs, inputs = self._output_arrays(plan), [self._input(*place) for place in request["inputs"]]
        # The constants in the place that a run reads: a device that works in host memory has a copy there.
        copies = (m for (memory, _), m in loaded.host_arrays.items() if memory == "constant")
        kept = next(copies, constants)
        queue = next((slice(s.first, s.first + s.count) for s in plan.subgraphs if s.queue), slice(None))
        layer = _BoundLayer(
            plan.steps[queue][0].op,
            loaded,
            inputs,
            outputs,
            [*inputs, kept[:begin]],
            [*outputs, *_device_results(loaded, plan)],
            kept[begin:],
            request["repeats"],
            queue,
            plan.queues[-1].cores[0] if plan.queues[-1].cores else None,
            bool(models),
        )
        self._layers[request["layer"]] = layer
        layer.time()
        if request["outputs"]:
            shared = self._map(*request["outputs"])
            offset = 0
            for output in layer.outputs or _device_outputs(loaded, plan):
                shared[offset : offset + output.nbytes] = output
                offset += output.nbytes
        return {}

    def _constants(self, request: Mapping[str, Any]) -> np.ndarray:
        """The constants of a layer; layers that share them in the shared file share the copies."""
        key = (*request["base"], *request["weights"], request["repeats"])
        if key not in self._copies:
            self._copies[key] = copied_weights(self._map(*request["base"]), request["weights"], request["repeats"])
        return self._copies[key]

    def _input(self, offset: int, size: int) -> np.ndarray:
        """A private copy of an input in huge pages, like the tensors of a network."""
        if offset not in self._inputs:
            self._inputs[offset] = aligned_array(size)
            self._inputs[offset][:] = self._map(offset, size)
        return self._inputs[offset]

    def _output_arrays(self, plan: Plan) -> list[np.ndarray]:
        sizes = [t.type.bytes for t in plan.outputs]
        for index, size in enumerate(sizes):
            if index == len(self._outputs):
                self._outputs.append(aligned_array(size))
            elif self._outputs[index].nbytes < size:
                self._outputs[index] = aligned_array(size)
        return [whole[:size] for whole, size in zip(self._outputs, sizes, strict=False)]

    def _map(self, offset: int, size: int) -> np.ndarray:
        if not size:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self._file, size, offset=offset), np.uint8)

    def _time(self, number: int, state: str) -> tuple[float, float | None]:
        """Seconds of a run, and GFLOP/s of its core just before it; None if unknown."""
        layer, clock = self._layers[number], None
        awake = layer.core == self._worked_core and time.monotonic() - self._worked_until < _AWAKE_SECONDS
        before = os.sched_getaffinity(0)
        if layer.core is not None and layer.core in before:
            os.sched_setaffinity(0, {layer.core})
        try:
            self._prepare(layer, state)
            if os.sched_getaffinity(0) == {layer.core}:
                clock = engine().clock_gflops(awake=awake)
            if layer.loaded.device_queues:  # the waiting thread leaves the core to the device's threads
                os.sched_setaffinity(0, before - {layer.core} or before)
            self.set_running(number)
            return layer.time(), clock
        finally:
            self._worked_core, self._worked_until = layer.core, time.monotonic()
            os.sched_setaffinity(0, before)

    def _prepare(self, layer: _BoundLayer, state: str) -> None:
        """Brings the memory of a layer to the caches where a network in this state leaves it.

        In a network, another layer has just written the input. The output goes to memory that the last few layers did not
        touch; a large output to memory that nothing touched in this run.
        """
        if state == "warm":
            return
        if state == "l3":
            self._swept.max()
        else:
            if layer.has_models:
                self._sweep_all()
            elif layer.weights.nbytes < _FLUSHED_BYTES:
                engine().flush(layer.weights)
            for array in layer.results:
                if written_afar(layer.op, array.nbytes, self._own_cache):
                    engine().flush(array)
        for array in layer.sources:
            array |= 0

    def _sweep_all(self) -> None:
        """Evicts everything else from all caches."""
        if self._swept_all is None:
            self._swept_all = np.ones(_FLUSHED_BYTES // 4, np.float32)
        self._swept_all.max()


def _device_outputs(loaded: Loaded, plan: Plan) -> list[np.ndarray]:
    """What the first repeat of a layer has written, in the memory of a device that works in the host's."""
    arenas = {queue: m for (memory, queue), m in loaded.host_arrays.items() if memory == "device"}
    first: dict[str, np.ndarray] = {}
    for b in plan.buffers:
        if b.memory == "device" and b.index in arenas:
            first.setdefault(b.value, arenas[b.index][b.offset : b.offset + b.bytes])
    names = map(output_name, range(len(first)))
    return [first[name] for name in itertools.takewhile(first.__contains__, names)]


def _device_results(loaded: Loaded, plan: Plan) -> list[np.ndarray]:
    """Arrays that a device writes in host memory and no step reads."""
    arenas = {queue: m for (memory, queue), m in loaded.host_arrays.items() if memory == "device"}
    read = {number for step in plan.steps for number in step.reads}
    buffers = [plan.buffers[number] for step in plan.steps for number in step.writes if number not in read]
    return [
        arenas[b.index][b.offset : b.offset + b.bytes] for b in buffers if b.memory == "device" and b.index in arenas
    ]
