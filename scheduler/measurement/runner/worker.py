"""The process in which candidates run: `python -m nnstretch.scheduler.measurement.runner.worker`.

It is spoken to over its standard input and output (`nnstretch.scheduler.measurement.runner.runner` is the other side), so that
whatever a candidate does to it, whoever measures lives on. What is large lies in a file that both sides map: its first page
holds the number of the trial that is running, so that it is known which one ended the process; behind it lie the constants of
trials, and the places for their outputs. Requests:

    {"do": "open", "trial": number, "plan": JSON, "inputs": [[offset, bytes], ...], "base": [offset, bytes],
     "weights": [begin, bytes], "repeats": copies, "outputs": [offset, bytes] or null, "models": {name: [offset, bytes]}}
    {"do": "time", "trials": [numbers], "state": cache state}
        -> {"seconds": [of one run of each], "clocks": [GFLOP/s of the core just before, or null]}
    {"do": "clear"}: closes all trials

To "open" is to bind the plan, run it once and leave its outputs. What goes wrong without harm to the process is answered as
{"error": text, "trial": the one that ran}.
The end of the input ends the process.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.support.child_process import die_with_parent

if TYPE_CHECKING:
    import numpy as np

    from nnstretch.scheduler.plan.schema import Plan
    from nnstretch.scheduler.runtime.loading import Loaded

PAGE = mmap.PAGESIZE
RUNNING = struct.Struct("<q")
"""The number of the running trial, at the begin of the shared file; -1 between trials."""

_OUT_OF_MEMORY_FIRST = "1000"  # of oom_score_adj: of all processes this one is to be ended if memory runs out
_FLUSHED_BYTES = 64 << 20
"""Weights of so many bytes push themselves out of the caches."""
_SWEPT_SHARE = 2
"""What is read to push something out of the core's own caches, as a multiple of their size."""


def main() -> int:
    """Answers requests until there are no more."""
    arguments = json.loads(sys.argv[1])
    die_with_parent(arguments["parent"])
    with suppress(OSError):  # a hint, which not every system lets a process give
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY_FIRST)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between frames
    from nnstretch.devices.engine.binding.library import engine
    from nnstretch.errors import NNStretchError
    from nnstretch.scheduler.measurement.runner import single_layer  # noqa: F401 - loaded before the first measurement
    from nnstretch.support.frames import read_frame, write_frame

    engine()
    worker = _Worker(arguments["memory"], arguments["own_cache"])
    write_frame(answers, {"ready": os.getpid()})
    while True:
        try:
            request, _ = read_frame(sys.stdin.buffer)
        except EOFError:
            return 0
        try:
            answer = worker.answer(request)
        except (NNStretchError, MemoryError) as error:
            answer = {"error": str(error) or "out of memory", "trial": worker.running(-1)}
        worker.running(-1)
        write_frame(answers, answer)


@dataclass(eq=False)
class _LoadedLayer:
    """A plan that is ready to run: its program, the arrays that it reads and writes, and its weights.

    Where those of models lie that other engines have loaded nobody knows, nor what is in a device's own memory.

    Attributes:
        op: operator of its layer.
        loaded: the program.
        inputs, outputs: of its runs.
        sources: what it reads besides weights.
        results: what nobody reads in a run: its outputs, or what a device writes into memory of the host.
        weights: all copies.
        repeats: of the layer in a run.
        device_steps: those of a device.
        core: where it runs, if that is a core of the host's: the first of several.
        has_models: whether other engines run.
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
        """Seconds of one run; on a device as if each repeat took as long as those behind the first one.

        That one begins with cold instructions, and with vector units that are not awake yet.
        """
        self.loaded.activate()
        if not self.loaded.runtimes:
            return self.loaded.program.time(self.inputs, self.outputs, warmup=0, runs=1)[0] * 1e-9
        steps = self.loaded.program.run_traced(self.inputs, self.outputs).steps[self.device_steps]
        begin = steps[len(steps) // self.repeats - 1, 1] if self.repeats > 1 else steps[0, 0]
        return float(steps[-1, 1] - begin) * 1e-9 * self.repeats / max(1, self.repeats - 1)


class _Worker:
    """All trials that are open.

    Those that read the same input share its memory, and all share that of their outputs, so that it does not matter which one
    ran before.
    """

    def __init__(self, memory: int, own_cache: int) -> None:
        import numpy as np

        self._file = memory
        self._page = mmap.mmap(memory, PAGE)
        self._trials: dict[int, _LoadedLayer] = {}
        self._inputs: dict[int, np.ndarray] = {}  # by offset in the shared file
        self._outputs: list[np.ndarray] = []
        self._swept_all: np.ndarray | None = None
        self._own_cache = own_cache
        self._swept = np.ones(max(1, _SWEPT_SHARE * own_cache // 4), np.float32)

    def running(self, trial: int) -> int:
        """Notes which trial is running, and returns which one did."""
        (before,) = RUNNING.unpack_from(self._page, 0)
        RUNNING.pack_into(self._page, 0, trial)
        return int(before)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Does what a request asks for."""
        do = request["do"]
        if do == "open":
            self.running(request["trial"])
            return self._open(request)
        if do == "time":
            times = [self._time(number, request["state"]) for number in request["trials"]]
            return {"seconds": [seconds for seconds, _ in times], "clocks": [clock for _, clock in times]}
        for trial in self._trials.values():
            trial.loaded.close()
        self._trials, self._inputs, self._outputs = {}, {}, []
        return {}

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from nnstretch.scheduler.measurement.runner.single_layer import copied_weights
        from nnstretch.scheduler.plan.compiled import Compiled
        from nnstretch.scheduler.plan.schema import Plan
        from nnstretch.scheduler.runtime.loading import load_program

        plan = Plan.from_json(request["plan"])
        begin, _ = request["weights"]
        constants = copied_weights(self._map(*request["base"]), request["weights"], request["repeats"])
        models = {name: self._map(*place).tobytes() for name, place in request["models"].items()}
        loaded = load_program(Compiled(plan, constants, models), None)
        outputs, inputs = self._output_arrays(plan), [self._input(*place) for place in request["inputs"]]
        kept = _kept(loaded, constants)
        queue = next((slice(s.first, s.first + s.count) for s in plan.subgraphs if s.queue), slice(None))
        trial = _LoadedLayer(
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
        self._trials[request["trial"]] = trial
        trial.time()
        if request["outputs"]:
            shared = self._map(*request["outputs"])
            offset = 0
            for output in trial.outputs:
                shared[offset : offset + output.nbytes] = output
                offset += output.nbytes
        return {}

    def _input(self, offset: int, size: int) -> np.ndarray:
        """A private copy of an input, in huge pages as a network's tensors are."""
        from nnstretch.devices.engine.binding.program import aligned_array

        if offset not in self._inputs:
            self._inputs[offset] = aligned_array(size)
            self._inputs[offset][:] = self._map(offset, size)
        return self._inputs[offset]

    def _output_arrays(self, plan: Plan) -> list[np.ndarray]:
        import numpy as np

        from nnstretch.devices.engine.binding.program import aligned_array

        sizes = [t.type.elements * np.dtype(t.type.dtype).itemsize for t in plan.outputs]
        for index, size in enumerate(sizes):
            if index == len(self._outputs):
                self._outputs.append(aligned_array(size))
            elif self._outputs[index].nbytes < size:
                self._outputs[index] = aligned_array(size)
        return [whole[:size] for whole, size in zip(self._outputs, sizes, strict=False)]

    def _map(self, offset: int, size: int) -> np.ndarray:
        import numpy as np

        if not size:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self._file, size, offset=offset), np.uint8)

    def _time(self, number: int, state: str) -> tuple[float, float | None]:
        """Seconds of a run, and the clock of its core just before; None if there is none that is known."""
        from nnstretch.devices.engine.binding.library import engine

        trial, clock = self._trials[number], None
        before = os.sched_getaffinity(0)
        if trial.core is not None and trial.core in before:
            os.sched_setaffinity(0, {trial.core})
        try:
            if os.sched_getaffinity(0) == {trial.core}:
                clock = engine().clock_gflops()
            self._prepare(trial, state)
            if trial.loaded.runtimes:  # whose threads need the core, which the one that waits for them must not keep
                os.sched_setaffinity(0, before - {trial.core} or before)
            self.running(number)
            return trial.time(), clock
        finally:
            os.sched_setaffinity(0, before)

    def _prepare(self, trial: _LoadedLayer, state: str) -> None:
        """Brings what a trial reads and writes to where a network in this cache state leaves it.

        There the input has just been written by another layer, and the output goes where nothing has been for a few layers: a
        large one where nothing has been in this run.
        """
        from nnstretch.devices.engine.binding.library import engine
        from nnstretch.scheduler.measurement.caches import written_afar

        if state == "warm":
            return
        if state == "l3":
            self._swept.max()
        else:
            if trial.has_models:
                self._sweep_all()
            elif trial.weights.nbytes < _FLUSHED_BYTES:
                engine().flush(trial.weights)
            for array in trial.results:
                if written_afar(trial.op, array.nbytes, self._own_cache):
                    engine().flush(array)
        for array in trial.sources:
            array |= 0

    def _sweep_all(self) -> None:
        """Reads so much that nothing else stays in any cache."""
        import numpy as np

        if self._swept_all is None:
            self._swept_all = np.ones(_FLUSHED_BYTES // 4, np.float32)
        self._swept_all.max()


def _kept(loaded: Loaded, constants: np.ndarray) -> np.ndarray:
    """The constants where they are read: a device that works in memory of the host's has them copied there."""
    return next((m for (memory, _), m in _host_memories(loaded) if memory == "constant"), constants)


def _device_results(loaded: Loaded, plan: Plan) -> list[np.ndarray]:
    """What a device that works in memory of the host's writes there and nobody reads."""
    arenas = {queue: m for (memory, queue), m in _host_memories(loaded) if memory == "device"}
    read = {number for step in plan.steps for number in step.reads}
    buffers = [plan.buffers[number] for step in plan.steps for number in step.writes if number not in read]
    return [
        arenas[b.index][b.offset : b.offset + b.bytes] for b in buffers if b.memory == "device" and b.index in arenas
    ]


def _host_memories(loaded: Loaded) -> list[tuple[tuple[str, int], np.ndarray]]:
    """Memory of devices that lies in arrays of the host's."""
    import numpy as np

    found = [(key, buffer.hostbuf) for key, buffer in loaded.memories.items()]
    return [(key, host) for key, host in found if isinstance(host, np.ndarray)]


if __name__ == "__main__":
    sys.exit(main())
