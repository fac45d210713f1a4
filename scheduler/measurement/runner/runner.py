"""Runner: single layers that run in a process of their own, seen from whoever measures them.

A candidate may crash its process, hang, or take all memory: it is then said to have failed, with the reason, and the others are
opened again in a new process. The process is started when it is first needed, and ends with whoever started it.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from nnstretch.devices.base.routine import PLAIN
from nnstretch.errors import DeviceError
from nnstretch.scheduler.measurement.caches import cache_sizes
from nnstretch.scheduler.measurement.runner.single_layer import SinglePlan
from nnstretch.scheduler.measurement.runner.worker import PAGE, RUNNING
from nnstretch.scheduler.measurement.store.rows import CacheState
from nnstretch.support.child_process import end_reason
from nnstretch.support.closing import Closing
from nnstretch.support.frames import read_frame, write_frame

WORKER = (sys.executable, "-m", "nnstretch.scheduler.measurement.runner.worker")
"""The command of the process that trials run in."""

_TICK = 1.0  # seconds
_START_TICKS = 60
_RUN_TICKS = 60
_MOST_DEFEATS = 3


class RunnerError(Exception):
    """A trial has failed. The message is the reason."""


@dataclass(eq=False)
class LoadedLayer:
    """A single layer that is open, and all that is needed to open it once more.

    Attributes:
        single: its plan.
        number: by which the process knows it.
        failure: why it is not open any more, or None.
    """

    single: SinglePlan
    number: int
    request: Mapping[str, Any]
    failure: str | None = None


@dataclass(frozen=True)
class Timed:
    """A run of a trial: its seconds, and the GFLOP/s of its core just before (`Engine.clock_gflops`), if it has one."""

    seconds: float
    clock: float | None


class Runner(Closing):
    """Opens, runs and closes trials, all in one process at a time. A context manager; not thread-safe."""

    def __init__(self, command: Sequence[str] = WORKER, patience: int = _RUN_TICKS) -> None:
        """Starts nothing yet.

        Args:
            command: of the process; its argument is added.
            patience: seconds that a trial may take, not counting those in which this process did not run either.
        """
        self._command = tuple(command)
        self._patience = patience
        self._worker: _Worker | None = None
        self._memory = os.memfd_create("nnstretch-trials")
        os.ftruncate(self._memory, PAGE)
        self._end = PAGE
        self._open: dict[int, LoadedLayer] = {}
        self._inputs: dict[
            int, tuple[np.ndarray, int]
        ] = {}  # id -> the array, which keeps the id its own, and its offset
        self._count = 0
        self._defeats = 0
        self._finalizer = weakref.finalize(self, os.close, self._memory)

    def start(self) -> None:
        """Starts the process if it does not run, so that it gets ready while something else is done.

        Raises:
            DeviceError: it cannot be started.
        """
        if self._worker is None or self._worker.ended:
            self._drop_worker()
            self._worker = _Worker(self._command, self._memory)

    def open(self, single: SinglePlan, outputs: bool = False) -> tuple[LoadedLayer, list[np.ndarray]]:
        """Gets a plan ready and runs it once.

        Args:
            single: the plan.
            outputs: whether its outputs are wanted.

        Returns:
            The trial, and its outputs as stored (empty if they are not wanted).

        Raises:
            RunnerError: it failed; the message is the reason.
            DeviceError: the process cannot be started.
        """
        sizes = [PLAIN.bytes(t.type) for t in single.plan.outputs] if outputs else []
        base = self._allocate(single.base_bytes)
        single.write_base(self._map(base, single.base_bytes))
        inputs = [self._input(array) for array in single.inputs]
        answers = self._allocate(sum(sizes))
        request = {
            "do": "open",
            "trial": self._count,
            "plan": single.plan.to_json(),
            "inputs": inputs,
            "base": [base, single.base_bytes],
            "weights": single.weights,
            "repeats": single.repeats,
            "outputs": [answers, sum(sizes)] if sizes else None,
            "models": {name: self._model(model) for name, model in single.models.items()},
        }
        trial = LoadedLayer(single, self._count, request)
        self._count += 1
        self._ask_about(trial, request)
        self._open[trial.number] = trial
        made = self._map(answers, sum(sizes))
        parts = np.split(made, np.cumsum(sizes)[:-1]) if sizes else []
        return trial, [p.view(t.type.dtype) for p, t in zip(parts, single.plan.outputs, strict=False)]

    def time(self, trials: Sequence[LoadedLayer], state: CacheState) -> list[Timed | None]:
        """One run of each, one after another; None for one that has failed (`LoadedLayer.failure` says why)."""
        times: dict[int, Timed] = {}
        while left := [t for t in trials if t.failure is None and t.number not in times]:
            numbers = [t.number for t in left]
            try:
                answer = self._ask({"do": "time", "trials": numbers, "state": state})
            except _WorkerError as error:
                culprit, reason = self._running(), str(error)
                self._recover(error)
            else:
                if "seconds" in answer:
                    found = map(Timed, answer["seconds"], answer["clocks"])
                    times.update(zip(numbers, found, strict=True))
                    continue
                culprit, reason = answer["trial"], str(answer["error"])
                self._fail(culprit, reason)
            self._count_defeat(culprit, left, reason)
        return [times.get(t.number) for t in trials]

    def clear(self) -> None:
        """Closes all trials and frees what they held."""
        self._open = {}
        self._inputs = {}
        if self._worker is not None:
            try:
                self._worker.ask({"do": "clear"}, self._patience)
            except _WorkerError:
                self._drop_worker()
        os.ftruncate(self._memory, PAGE)
        self._end = PAGE

    def close(self) -> None:
        """Ends the process; trials cannot be used afterwards."""
        self._drop_worker()
        self._finalizer()

    # -- shared memory -------------------------------------------------------------------------------------------

    def _allocate(self, size: int) -> int:
        """Offset of `size` more bytes of the shared file."""
        offset = self._end
        self._end += -(-size // PAGE) * PAGE
        os.ftruncate(self._memory, self._end)
        return offset

    def _input(self, array: np.ndarray) -> tuple[int, int]:
        """Offset and bytes of an input; trials that are given the same array share it."""
        known = self._inputs.get(id(array))
        if known is None:
            offset = self._allocate(array.nbytes)
            self._map(offset, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
            known = self._inputs[id(array)] = array, offset
        return known[1], array.nbytes

    def _model(self, model: bytes) -> tuple[int, int]:
        """Offset and bytes of another engine's model."""
        offset = self._allocate(len(model))
        self._map(offset, len(model))[:] = np.frombuffer(model, np.uint8)
        return offset, len(model)

    def _map(self, offset: int, size: int) -> np.ndarray:
        if not size:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self._memory, size, offset=offset), np.uint8)

    def _running(self) -> int:
        return int(RUNNING.unpack(os.pread(self._memory, RUNNING.size, 0))[0])

    # -- the process ---------------------------------------------------------------------------------------------

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.start()
        assert self._worker is not None
        return self._worker.ask(request, self._patience)

    def _ask_about(self, trial: LoadedLayer, request: Mapping[str, Any]) -> None:
        """Asks what concerns one trial alone.

        Raises:
            RunnerError: it was refused, or ended the process.
        """
        try:
            answer = self._ask(request)
        except _WorkerError as error:
            trial.failure = str(error)
            self._recover(error)
            raise RunnerError(str(error)) from error
        if "error" in answer:
            trial.failure = str(answer["error"])
            raise RunnerError(trial.failure)

    def _fail(self, number: int, reason: str) -> None:
        trial = self._open.pop(number, None)
        if trial is not None:
            trial.failure = trial.failure or reason

    def _count_defeat(self, culprit: int, left: Sequence[LoadedLayer], reason: str) -> None:
        """Lets all of `left` fail if the process ends again and again and none of them can be shown to be the reason."""
        self._defeats = 0 if any(t.number == culprit for t in left) else self._defeats + 1
        if self._defeats >= _MOST_DEFEATS:
            for trial in left:
                self._fail(trial.number, reason)

    def _recover(self, error: _WorkerError) -> None:
        """Goes on in a new process without the trial that ended the old one."""
        self._fail(self._running(), str(error))
        self._drop_worker()
        os.pwrite(self._memory, RUNNING.pack(-1), 0)
        for trial in list(self._open.values()):
            try:
                self._ask_about(trial, trial.request)
            except RunnerError as failed:
                self._fail(trial.number, str(failed))

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class _WorkerError(Exception):
    """The process has ended or does not answer. The message is the reason."""


class _Worker:
    """The process and the two pipes to it."""

    def __init__(self, command: Sequence[str], memory: int) -> None:
        errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        arguments = {"parent": os.getpid(), "memory": memory, "own_cache": cache_sizes().own}
        try:
            # A session of its own: Ctrl-C reaches whoever measures alone, which then ends the process.
            self._process = subprocess.Popen(
                [*command, json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                pass_fds=(memory,),
                start_new_session=True,
            )
        except OSError as error:
            errors.close()
            raise DeviceError(
                f"cannot start a process to measure in ({error.strerror}); make room for it, or plan without tuning"
            ) from error
        self._errors = errors
        self._finalizer = weakref.finalize(self, _end, self._process, errors)
        self._ready = False

    @property
    def ended(self) -> bool:
        """Whether the process does not run any more."""
        return self._process.poll() is not None

    def ask(self, request: Mapping[str, Any], ticks: int) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            _WorkerError: there is none, and the process has ended or was ended for that.
            DeviceError: the process did not get ready.
            KeyboardInterrupt: the process was ended for that too.
        """
        assert self._process.stdin is not None
        self._await_ready()
        try:
            write_frame(self._process.stdin, request)
        except BrokenPipeError as error:
            raise _WorkerError(self._reason()) from error
        try:
            return self._answer(ticks)
        except KeyboardInterrupt:
            self._process.kill()  # its answer must not be taken for that to another request
            self._process.wait()
            raise

    def _await_ready(self) -> None:
        if self._ready:
            return
        try:
            self._ready = bool(self._answer(_START_TICKS)["ready"])
        except _WorkerError as error:
            raise DeviceError(
                f"the process to measure in did not start: {error}; mend that, or plan without tuning"
            ) from error

    def _answer(self, ticks: int) -> dict[str, Any]:
        """The next frame. Waits in ticks, so that the time in which nobody runs (a suspended machine) is not counted."""
        assert self._process.stdout is not None
        for _ in range(ticks):
            if select.select([self._process.stdout], [], [], _TICK)[0]:
                break
        else:
            self._process.kill()
            self._process.wait()
            raise _WorkerError(f"no answer within {ticks} s")
        try:
            return read_frame(self._process.stdout)[0]
        except EOFError as error:
            raise _WorkerError(self._reason()) from error

    def _reason(self) -> str:
        return end_reason(self._process, self._errors)

    def close(self) -> None:
        """Ends the process."""
        self._finalizer()


def _end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """Ends a process at once: it holds nothing that is worth waiting for."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, errors):
        if stream is not None:
            stream.close()
