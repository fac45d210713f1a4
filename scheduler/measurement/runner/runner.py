"""Runner: runs single layers in a worker process and times them.

A candidate may crash the worker, hang, or take all memory. It then counts as failed, with the reason, and the other layers are
opened again in a new worker; so they are after a device failed in a run, which may have invalidated all that the worker has
there. The worker starts on first use and ends with the process that started it.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnstretch.devices.base.routine import PLAIN
from nnstretch.errors import DeviceError
from nnstretch.scheduler.measurement.caches import cache_sizes
from nnstretch.scheduler.measurement.runner.executor import PAGE, RUNNING
from nnstretch.scheduler.measurement.runner.single_layer import SinglePlan
from nnstretch.scheduler.measurement.store.rows import CacheState
from nnstretch.support.closing import Closing
from nnstretch.support.worker_process import StartProcess, WorkerError, WorkerProcess, start_here

WORKER = (sys.executable, "-P", "-m", "nnstretch.scheduler.measurement.runner.worker")
"""Command of the worker process."""

_START_TICKS = 60
_RUN_TICKS = 60
_MOST_UNEXPLAINED_ENDS = 3
"""Ends of the worker in a row, none of which an open layer explains, after which all layers count as failed."""


class WorkerStartError(DeviceError):
    """The worker cannot be started, whatever it is to measure."""


class RunnerError(Exception):
    """A layer failed. The message is the reason."""


@dataclass(eq=False)
class LoadedLayer:
    """A layer that is open in the worker.

    Attributes:
        single: its plan.
        number: its number in the worker.
        request: the request that opens it, also in a new worker.
        failure: the reason why it is no longer open, or None.
    """

    single: SinglePlan
    number: int
    request: Mapping[str, Any]
    failure: str | None = None


@dataclass(frozen=True)
class TimedRun:
    """One run of a layer.

    Attributes:
        seconds: its time.
        clock: GFLOP/s of the core just before the run (`Engine.clock_gflops`); None if unknown.
    """

    seconds: float
    clock: float | None


@dataclass(frozen=True, eq=False)
class Opening:
    """A layer that the worker opens while the caller prepares the next one.

    Attributes:
        runner: the runner.
        layer: the layer.
        outputs: as stored, which the worker writes; empty if none were asked for.
    """

    runner: Runner
    layer: LoadedLayer
    outputs: list[np.ndarray]

    def result(self) -> tuple[LoadedLayer, list[np.ndarray]]:
        """The open layer and its outputs.

        Raises:
            RunnerError: the layer failed; the message is the reason.
            DeviceError: the worker cannot be started.
        """
        self.runner.await_opening(self)
        if self.layer.failure is not None:
            raise RunnerError(self.layer.failure)
        return self.layer, self.outputs


class Runner(Closing):
    """Opens, times and closes single layers in one worker process. A context manager; not thread-safe.

    Attributes:
        clears: how often all layers were closed.
        restarts: how often the worker was replaced, because a layer ended it or its device failed.
    """

    def __init__(
        self, command: Sequence[str] = WORKER, patience: int = _RUN_TICKS, start: StartProcess = start_here
    ) -> None:
        """Starts no worker yet.

        Args:
            command: command of the worker, without its argument.
            patience: longest time in which the worker works on one layer, seconds, without those in which this process did not
                run either.
            start: starts the worker, on this machine or on a target.
        """
        self.clears = 0
        self.restarts = 0
        self._command = tuple(command)
        self._patience = patience
        self._start_process = start
        self._process: WorkerProcess | None = None
        self._is_ready = False
        self._memory = os.memfd_create("nnstretch-layers")
        os.ftruncate(self._memory, PAGE)
        self._end = PAGE
        self._open: dict[int, LoadedLayer] = {}
        # id of an array -> the array, whose reference keeps the id unique, and its offset
        self._inputs: dict[int, tuple[np.ndarray, int]] = {}
        self._bases: dict[Hashable, int] = {}  # recipe of constants -> their offset
        self._count = 0
        self._opening: Opening | None = None  # whose answer is still to come
        self._unexplained_ends = 0
        self._finalizer = weakref.finalize(self, os.close, self._memory)

    def start(self) -> None:
        """Starts the worker if it does not run; it gets ready in the background.

        Raises:
            DeviceError: the worker cannot be started.
        """
        if self._process is not None and not self._process.ended:
            return
        self._drop_worker()
        arguments = {"parent": os.getpid(), "memory": self._memory, "own_cache": cache_sizes().own}
        command = [*self._command, json.dumps(arguments)]
        try:
            # Without patience: the worker holds no state to save.
            self._process = WorkerProcess(command, pass_fds=(self._memory,), patience=0, start=self._start_process)
        except OSError as error:
            raise WorkerStartError(
                f"cannot start the measurement worker ({error.strerror}); free memory, or plan without tuning"
            ) from error

    def open(self, single: SinglePlan, outputs: bool = False) -> tuple[LoadedLayer, list[np.ndarray]]:
        """Opens a layer and runs it once.

        Args:
            single: its plan.
            outputs: return the outputs.

        Returns:
            The layer, and its outputs as stored (empty without `outputs`).

        Raises:
            RunnerError: the layer failed; the message is the reason.
            DeviceError: the worker cannot be started.
        """
        return self.begin_open(single, outputs).result()

    def begin_open(self, single: SinglePlan, outputs: bool = False) -> Opening:
        """Lets the worker open a layer as `open` does; waits for the layer before it, not for this one.

        Raises:
            DeviceError: the worker cannot be started.
        """
        sizes = [PLAIN.bytes(t) for t in single.results] if outputs else []
        base = self._base(single)
        inputs = [self._input(array) for array in single.inputs]
        answers = self._allocate(sum(sizes))
        request = {
            "do": "open",
            "layer": self._count,
            "plan": single.plan.to_json(indent=None),
            "inputs": inputs,
            "base": [base, single.base_bytes],
            "weights": single.weights,
            "repeats": single.repeats,
            "outputs": [answers, sum(sizes)] if sizes else None,
            "models": {name: self._model(model) for name, model in single.models.items()},
        }
        layer = LoadedLayer(single, self._count, request)
        self._count += 1
        made = self._map(answers, sum(sizes))
        parts = np.split(made, np.cumsum(sizes)[:-1]) if sizes else []
        found = [p.view(t.element.storage) for p, t in zip(parts, single.results, strict=False)]
        opening = Opening(self, layer, found)
        self.await_opening()
        with self._recovering(layer):
            self.start()
            assert self._process is not None
            self._send(self._process, request)
            self._opening = opening
        return opening

    def await_opening(self, opening: Opening | None = None) -> None:
        """Waits until a layer is open or has failed; until that of the last `begin_open` if none is named.

        Raises:
            DeviceError: the worker cannot be started again after the layer ended it.
        """
        last = self._opening
        if last is None or opening not in (None, last):
            return
        self._opening = None
        assert self._process is not None
        with self._recovering(last.layer):
            answer = self._receive(self._process)
            _check(last.layer, answer)
            if _broke_device(last.layer, answer):
                raise WorkerError(str(answer["error"]))
        if last.layer.failure is None:
            self._open[last.layer.number] = last.layer

    def time(self, layers: Sequence[LoadedLayer], state: CacheState) -> list[TimedRun | None]:
        """One run of each layer, one after another; None for a layer that failed (see `LoadedLayer.failure`)."""
        times: dict[int, TimedRun] = {}
        while left := [layer for layer in layers if layer.failure is None and layer.number not in times]:
            numbers = [layer.number for layer in left]
            try:
                answer = self._ask({"do": "time", "layers": numbers, "state": state})
            except WorkerError as error:
                culprit, reason = self._running(), str(error)
                self._recover(error)
            else:
                if "seconds" in answer:
                    found = map(TimedRun, answer["seconds"], answer["clocks"])
                    times.update(zip(numbers, found, strict=True))
                    continue
                culprit, reason = answer["layer"], str(answer["error"])
                failed = self._open.get(culprit)
                self._fail(culprit, reason)
                if failed is not None and _broke_device(failed, answer):
                    self._recover(WorkerError(reason))
            self._count_end(culprit, left, reason)
        return [times.get(layer.number) for layer in layers]

    def clear(self) -> None:
        """Closes all layers and frees their memory."""
        self.await_opening()
        self.clears += 1
        self._open = {}
        self._inputs = {}
        self._bases = {}
        if self._process is not None:
            try:
                self._exchange(self._process, {"do": "clear"})
            except WorkerError:
                self._drop_worker()
        os.ftruncate(self._memory, PAGE)
        self._end = PAGE

    def close(self) -> None:
        """Ends the worker; layers cannot be used afterwards."""
        self._drop_worker()
        self._finalizer()

    # -- shared memory -------------------------------------------------------------------------------------------

    def _allocate(self, size: int) -> int:
        """Offset of `size` new bytes of the shared file."""
        offset = self._end
        self._end += -(-size // PAGE) * PAGE
        os.ftruncate(self._memory, self._end)
        return offset

    def _base(self, single: SinglePlan) -> int:
        """Offset of the constants with one copy of the weights; layers with equal ones share them."""
        recipe = single.recipe()
        if recipe is not None and recipe in self._bases:
            return self._bases[recipe]
        base = self._allocate(single.base_bytes)
        single.write_base(self._map(base, single.base_bytes))
        if recipe is not None:
            self._bases[recipe] = base
        return base

    def _input(self, array: np.ndarray) -> tuple[int, int]:
        """Offset and bytes of an input; layers with the same array share it."""
        known = self._inputs.get(id(array))
        if known is None:
            offset = self._allocate(array.nbytes)
            self._map(offset, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
            known = self._inputs[id(array)] = array, offset
        return known[1], array.nbytes

    def _model(self, model: bytes) -> tuple[int, int]:
        """Offset and bytes of an external engine's model."""
        offset = self._allocate(len(model))
        self._map(offset, len(model))[:] = np.frombuffer(model, np.uint8)
        return offset, len(model)

    def _map(self, offset: int, size: int) -> np.ndarray:
        if not size:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self._memory, size, offset=offset), np.uint8)

    def _running(self) -> int:
        return int(RUNNING.unpack(os.pread(self._memory, RUNNING.size, 0))[0])

    # -- the worker ----------------------------------------------------------------------------------------------

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.await_opening()
        self.start()
        assert self._process is not None
        return self._exchange(self._process, request)

    def _exchange(self, process: WorkerProcess, request: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's answer to a request.

        Raises:
            WorkerError: there is no answer; the process has ended or was killed.
            DeviceError: the process did not get ready.
        """
        self._send(process, request)
        return self._receive(process)

    def _send(self, process: WorkerProcess, request: Mapping[str, Any]) -> None:
        """Sends a request once the worker is ready.

        Raises:
            WorkerError: the process has ended.
            DeviceError: the process did not get ready.
        """
        if not self._is_ready:
            try:
                self._is_ready = bool(process.receive(_START_TICKS)[0]["ready"])
            except WorkerError as error:
                raise WorkerStartError(
                    f"the measurement worker did not start: {error}; correct that, or plan without tuning"
                ) from error
        process.send(request)

    def _receive(self, process: WorkerProcess) -> dict[str, Any]:
        """The answer to the last request.

        Raises:
            WorkerError: there is none; the process has ended or was killed.
        """
        try:
            return process.receive(self._patience, self._running)[0]
        except KeyboardInterrupt:
            process.kill()  # its late answer would count as that to the next request
            raise

    @contextmanager
    def _recovering(self, layer: LoadedLayer) -> Iterator[None]:
        """Lets a layer fail if the worker ends in the block, and opens the others in a new one."""
        try:
            yield
        except WorkerError as error:
            layer.failure = str(error)
            self._recover(error)

    def _fail(self, number: int, reason: str) -> None:
        layer = self._open.pop(number, None)
        if layer is not None:
            layer.failure = layer.failure or reason

    def _count_end(self, culprit: int, left: Sequence[LoadedLayer], reason: str) -> None:
        """Lets all of `left` fail if the worker ends repeatedly and none of them is the culprit."""
        self._unexplained_ends = 0 if any(layer.number == culprit for layer in left) else self._unexplained_ends + 1
        if self._unexplained_ends >= _MOST_UNEXPLAINED_ENDS:
            for layer in left:
                self._fail(layer.number, reason)

    def _recover(self, error: WorkerError) -> None:
        """Opens all layers in a new worker, without the one that ended the old worker.

        A layer that ends the new worker, or breaks its device, fails as well, and the rest is opened in another one.
        """
        culprit, reason = self._running(), str(error)
        while True:
            self.restarts += 1
            self._fail(culprit, reason)
            self._drop_worker()
            os.pwrite(self._memory, RUNNING.pack(-1), 0)
            broken = self._open_again()
            if broken is None:
                return
            culprit, reason = broken

    def _open_again(self) -> tuple[int, str] | None:
        """Opens all layers in the present worker; returns the one after which it is of no use, and why, if there is one.

        Raises:
            DeviceError: the worker cannot be started.
        """
        for number, layer in list(self._open.items()):
            try:
                answer = self._ask(layer.request)
            except WorkerError as error:
                return number, str(error)
            _check(layer, answer)
            if _broke_device(layer, answer):
                return number, str(answer["error"])
            if layer.failure is not None:
                self._fail(number, layer.failure)
        return None

    def _drop_worker(self) -> None:
        self._opening = None
        if self._process is not None:
            self._process.close()
            self._process, self._is_ready = None, False


def _check(layer: LoadedLayer, answer: Mapping[str, Any]) -> None:
    """Lets a layer fail if the answer to a request about it says so."""
    if "error" in answer:
        layer.failure = str(answer["error"])


def _broke_device(layer: LoadedLayer, answer: Mapping[str, Any]) -> bool:
    """Whether an answer says that a run of a layer failed on a device, whose context may be of no use any more."""
    return bool(answer.get("processor")) and layer.single.plan.queues[-1].backend.own_memory


class SharedRunner(Runner):
    """A runner that several profilers use one after another: they close their layers, and `end` ends the worker.

    A worker that stays keeps its OpenCL programs, which take long to build.
    """

    def close(self) -> None:
        """Closes all layers."""
        self.clear()

    def end(self) -> None:
        """Ends the worker; layers cannot be used afterwards."""
        super().close()
