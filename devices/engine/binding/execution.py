"""A program inside the engine: its runs, what fails in them, and runs that miss their deadline.

A run with a deadline is made by a thread of the program's own, so that the caller can go away from it. Whatever hangs then, a
device, a call or a kernel, keeps the program, its memory and the run's arrays until it has come back.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nnstretch.devices.engine.binding import library as binding
from nnstretch.devices.engine.binding.library import ERROR_BYTES, Engine
from nnstretch.errors import DeadlineError, DeviceError, NNStretchError, UsageError

CallFunction = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]
"""What a call step calls: (reads, writes), flat uint8 views of its buffers; an empty array where a read is absent."""

Place = tuple[str, str]
"""What the queue of a step and the step are called."""

log = logging.getLogger(__name__)


class Calls:
    """The callback of a program's call steps, and what the first that failed raised.

    Args:
        table: by number of the step: what it calls, and the bytes of its reads and writes.
    """

    def __init__(self, table: dict[int, tuple[CallFunction, list[int], list[int]]]) -> None:
        self._table = table
        self._failure: tuple[int, BaseException] | None = None
        self.callback = binding.Call(self._call) if table else binding.Call()

    def forget(self) -> None:
        """Begins a run: nothing has failed."""
        self._failure = None

    def take_failure(self) -> tuple[int, BaseException] | None:
        """The step that failed first and what it raised, once."""
        failure, self._failure = self._failure, None
        return failure

    def _call(self, step: int, reads: Any, writes: Any) -> int:
        function, read_sizes, write_sizes = self._table[step]
        try:
            function(
                [_view(reads[k], size) for k, size in enumerate(read_sizes)],
                [_view(writes[k], size) for k, size in enumerate(write_sizes)],
            )
        except BaseException as error:  # noqa: BLE001 - C cannot carry it: kept, and raised again from run()
            self._failure = self._failure or (step, error)
            return 1
        return 0


def _view(address: int | None, size: int) -> np.ndarray:
    if not address or not size:
        return np.empty(0, np.uint8)
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)


class RunningProgram:
    """A program that the engine has accepted. Runs take turns.

    Args:
        native: the engine.
        handle: the program in it, which is this object's to destroy.
        feeds: number of inputs and outputs.
        calls: of its call steps.
        places: of its steps.
        keep: what the program points to, kept alive until it is destroyed.
    """

    def __init__(
        self,
        native: Engine,
        handle: ctypes.c_void_p,
        feeds: tuple[int, int],
        calls: Calls,
        places: Sequence[Place],
        keep: object,
    ) -> None:
        self._engine, self._handle, self._calls, self._places, self._keep = native, handle, calls, places, keep
        self._turn = threading.Lock()
        self._process = os.getpid()
        # Filled anew at each run, in its turn.
        self._inputs, self._outputs = ((ctypes.c_void_p * count)() for count in feeds)
        self._text = ctypes.create_string_buffer(ERROR_BYTES)
        self._worker: _Worker | None = None
        self._stall: _Stall | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a run that missed its deadline is not over."""
        return self._stall is not None

    def run(
        self,
        function: Any,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        arguments: Sequence[Any] = (),
        deadline: float | None = None,
    ) -> None:
        """Runs by a function of the engine, which takes the program, tables of inputs and outputs, and `arguments`.

        Args:
            function: of the engine.
            inputs: arrays that have been checked.
            outputs: the same.
            arguments: what else the function takes.
            deadline: seconds that it may take, waiting for its turn included.

        Raises:
            UsageError: the program is closed.
            DeadlineError: the run is not over in time. It ends by itself after what it was at; what it still writes goes to
                `outputs`.
            DeviceError: a device or a call failed, or an earlier run has missed its deadline and is not over yet.
        """
        end = None if deadline is None else time.monotonic() + deadline
        if not self._turn.acquire(timeout=-1 if deadline is None else deadline):
            raise DeadlineError(f"other runs took all of the {deadline:g} s until the deadline; allow more, or wait")
        try:
            if self._closed:
                raise UsageError("the program is closed; make a new one")
            if self._stall:
                queue, where = self._stall
                raise DeviceError(
                    f"still busy with an earlier run: {where}; run again when that is over", processor=queue
                )
            for table, arrays in ((self._inputs, inputs), (self._outputs, outputs)):
                for i in range(len(table)):
                    table[i] = address_of(arrays[i])
            if end is None:
                self._enter(function, arguments)
            else:
                self._enter_by(end, _Run(partial(self._enter, function, arguments), self._came_back, (inputs, outputs)))
        finally:
            self._turn.release()

    def close(self) -> None:
        """Destroys the program; waits for a run in another thread.

        One that has missed its deadline is not waited for: it keeps the program and its memory until it is over. Closing twice
        does nothing.
        """
        if os.getpid() != self._process:  # threads that had the turn, or hang, are not in a child
            self._turn, self._stall = threading.Lock(), None
        with self._turn:
            stall, closed, self._closed = self._stall, self._closed, True
        if closed:
            return
        if stall:
            log.warning("closed while a run hangs: %s; its memory is freed when that is over", stall.where)
        else:
            self._destroy()

    def _destroy(self) -> None:
        self._engine.library.nns_program_destroy(self._handle)
        self._keep = None
        if self._worker is not None:
            self._worker.stop()

    def _enter(self, function: Any, arguments: Sequence[Any]) -> None:
        self._calls.forget()
        try:
            self._engine.checked(function, self._handle, self._inputs, self._outputs, *arguments, text=self._text)
        except NNStretchError as error:
            self._raise(error)

    def _raise(self, error: NNStretchError) -> NoReturn:
        """Raises what a call raised, or what the engine says, with the place where it was."""
        failure = self._calls.take_failure()
        step, cause = failure or (int(self._engine.library.nns_program_failed_step(self._handle)), None)
        own = isinstance(cause, NNStretchError) or not isinstance(cause, Exception)
        if cause is not None and own and not isinstance(cause, DeviceError):
            raise cause from None
        if step < 0 or not isinstance(error, DeviceError):
            raise error
        queue, name = self._places[step]
        raise DeviceError(
            f"{queue} failed at {name}: {cause or error}; run or load it again, or use other processors",
            processor=queue,
        ) from cause

    # -- deadlines -----------------------------------------------------------------------------------------------

    def _enter_by(self, end: float, run: _Run) -> None:
        """Has the run made by the program's own thread, and goes away if it is not over by `end` or is interrupted."""
        if self._worker is None:
            self._worker = _Worker()
        began = time.monotonic()
        try:
            self._worker.submit(run)
            run.over.wait(max(end - began, 0))
        finally:
            if run.abandon():
                self._stall = self._cancel()
        if self._stall is not None:
            queue, where = self._stall
            raise DeadlineError(
                f"the run is not over after {end - began:.3g} s: {where}; run again when that is over, or allow more",
                processor=queue,
            )
        run.check()

    def _cancel(self) -> _Stall:
        step = int(self._engine.library.nns_program_cancel(self._handle))
        if step < 0:
            return _Stall("", "it was about to begin or to end")
        queue, name = self._places[step]
        return _Stall(queue, f"{queue} is at {name} or later")

    def _came_back(self) -> None:
        with self._turn:
            self._stall = None
            closed = self._closed
        if closed:
            self._destroy()


class _Stall(NamedTuple):
    """What keeps a run that missed its deadline: the processor, and how messages say it."""

    queue: str
    where: str


class _Run:
    """A run that another thread makes.

    Args:
        body: what makes it.
        came_back: is called if it ends after it was abandoned.
        keep: what it uses.
    """

    def __init__(self, body: Callable[[], None], came_back: Callable[[], None], keep: object) -> None:
        self.over = threading.Event()
        self._body, self._came_back, self._keep = body, came_back, keep
        self._lock = threading.Lock()
        self._abandoned = False
        self._failure: BaseException | None = None

    def make(self) -> None:
        """Runs, and keeps what was raised."""
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001 - it is raised again by `check`, in the thread that wants it
            self._failure = error
        with self._lock:
            self.over.set()
            abandoned = self._abandoned
        if abandoned:
            self._came_back()

    def abandon(self) -> bool:
        """Whether it was not over, and nobody will ask for its outcome."""
        with self._lock:
            self._abandoned = not self.over.is_set()
            return self._abandoned

    def check(self) -> None:
        """Raises what the run raised."""
        if self._failure is not None:
            raise self._failure


class _Worker:
    """A thread that makes runs. It does not keep the process from ending.

    Attributes:
        submit: has a run made after those before it; no interrupt of the caller comes between.
    """

    def __init__(self) -> None:
        self._runs: SimpleQueue[_Run | None] = SimpleQueue()
        self.submit: Callable[[_Run], None] = self._runs.put
        threading.Thread(target=_serve, args=(self._runs,), name="nns-deadline", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread when it has nothing to do."""
        self._runs.put(None)


def _serve(runs: SimpleQueue[_Run | None]) -> None:
    while True:
        run = runs.get()
        if run is None:
            return
        run.make()
        del run  # and with it the arrays that it used


def address_of(array: np.ndarray) -> int:
    """Where an array's memory begins."""
    return int(array.__array_interface__["data"][0])
