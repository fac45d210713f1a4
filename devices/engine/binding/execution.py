"""Runs of a program in the engine: errors, callbacks and deadlines.

A run with a deadline is executed by a thread of the program, so that the caller can leave it. A run that hangs
in a device, a call or a kernel keeps the program, its memory and the arrays of the run alive until it returns.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nnstretch.devices.engine.binding import library as binding
from nnstretch.devices.engine.binding.library import ERROR_BYTES, Engine, engine_error
from nnstretch.devices.engine.binding.turn import TurnLock
from nnstretch.errors import DeadlineError, DeviceError, FeedError, NNStretchError, UsageError
from nnstretch.support.forks import Origin

CallFunction = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]
"""The function of a call step: (reads, writes), flat uint8 views of its buffers; a missing optional read is empty."""

StepName = tuple[str, str]
"""The names of a step's queue and of the step, for error messages."""

log = logging.getLogger(__name__)


class Calls:
    """The callback of a program's call steps, and the first exception of a run.

    Args:
        table: step number -> function, and the bytes of its reads and writes.
    """

    def __init__(self, table: dict[int, tuple[CallFunction, list[int], list[int]]]) -> None:
        self._table = table
        self._failure: tuple[int, BaseException] | None = None
        self.callback = binding.Call(self._call) if table else binding.Call()

    def take_failure(self) -> tuple[int, BaseException] | None:
        """Returns the first step that failed and its exception, and forgets them."""
        failure, self._failure = self._failure, None
        return failure

    def _call(self, _context: int | None, step: int, reads: Any, writes: Any) -> int:
        function, read_sizes, write_sizes = self._table[step]
        try:
            function(
                [_view(reads[k], size) for k, size in enumerate(read_sizes)],
                [_view(writes[k], size) for k, size in enumerate(write_sizes)],
            )
        except BaseException as error:  # noqa: BLE001 - C cannot propagate it: run() raises it again
            self._failure = self._failure or (step, error)
            return 1
        return 0


def _view(address: int | None, size: int) -> np.ndarray:
    if not address or not size:
        return np.empty(0, np.uint8)
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)), np.uint8)


class _Table:
    """Addresses and bytes of a run's inputs and outputs, as the engine reads them.

    Args:
        sizes: least bytes of each input, and of each output.
    """

    def __init__(self, sizes: tuple[Sequence[int], Sequence[int]]) -> None:
        self._sizes = sizes
        self._inputs, self._outputs = ((ctypes.c_int64 * (2 * len(some)))() for some in sizes)
        self.feeds = ctypes.pointer(binding.Feeds(self._inputs, self._outputs, *map(len, sizes)))

    def fill(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Writes the arrays' addresses. Raises as `_fill`."""
        _fill(self._inputs, inputs, self._sizes[0], "input")
        _fill(self._outputs, outputs, self._sizes[1], "output")


class RunningProgram:
    """A program that the engine has validated. Runs take turns.

    Args:
        native: the engine.
        handle: the engine's program, which this object owns.
        sizes: least bytes of each input, and of each output.
        calls: functions of the call steps.
        step_names: one per step.
        keep: objects that must outlive the program.
    """

    def __init__(
        self,
        native: Engine,
        handle: ctypes.c_void_p,
        sizes: tuple[Sequence[int], Sequence[int]],
        calls: Calls,
        step_names: Sequence[StepName],
        keep: object,
    ) -> None:
        self._engine, self._handle, self._calls, self._step_names, self._keep = native, handle, calls, step_names, keep
        self._turn = TurnLock()
        self._origin = Origin()
        self._sizes = sizes
        self._table = _Table(sizes)  # each run fills it while it holds the lock
        self._text = ctypes.create_string_buffer(ERROR_BYTES)
        self._queued: SimpleQueue[_Run | None] | None = None  # runs with a deadline, for a thread of the program
        self._stall: _Stall | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a run that missed its deadline is still in progress."""
        return self._stall is not None

    def run(
        self,
        function: Any,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        arguments: Sequence[Any] = (),
        deadline: float | None = None,
    ) -> None:
        """Runs the program by a function of the engine.

        Args:
            function: takes the program, its inputs and outputs as an nns_feeds, and `arguments`.
            inputs: C-contiguous arrays.
            outputs: C-contiguous arrays that can be written.
            arguments: further arguments of the function.
            deadline: seconds that the run may take, including the wait for other runs.

        Raises:
            UsageError: the program is closed, or was made before a fork.
            FeedError: an array is missing, too short, strided or read-only.
            DeadlineError: the run missed its deadline. It ends after its current steps and writes to `outputs`
                until then.
            DeviceError: a device or a call failed, or an earlier run that missed its deadline is still in progress.
        """
        self._origin.check("program")
        end = None if deadline is None else time.monotonic() + deadline
        if not self._turn.acquire(timeout=-1 if deadline is None else deadline):
            raise DeadlineError(f"other runs took all of the {deadline:g} s until the deadline; allow more, or wait")
        try:
            self._check_free()
            self._table.fill(inputs, outputs)
            if deadline is None or end is None:
                self._enter(function, self._table.feeds, arguments)
            else:
                body = partial(self._enter, function, self._table.feeds, arguments)
                self._enter_by(end, deadline, _Run(body, self._finish_abandoned, (inputs, outputs)))
        finally:
            self._turn.release()

    def bound(
        self,
        function: Any,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        arguments: Sequence[Any] = (),
    ) -> Callable[[], None]:
        """A function that does what `run` with these arguments does, without a deadline; the arrays are checked here.

        It keeps the arrays. Their memory must stay where it is.

        Raises:
            FeedError: an array is missing, too short, strided or read-only.
        """
        table = _Table(self._sizes)
        table.fill(inputs, outputs)
        return partial(self._run_bound, function, table.feeds, arguments, (table, inputs, outputs))

    def _run_bound(self, function: Any, feeds: Any, arguments: Sequence[Any], keep: object) -> None:
        """Runs with bound arrays; `keep` holds them, as the engine knows their addresses only."""
        self._origin.check("program")
        self._turn.acquire()
        try:
            self._check_free()
            self._enter(function, feeds, arguments)
        finally:
            self._turn.release()

    def _check_free(self) -> None:
        """Raises as `run` if no run can begin now."""
        if self._closed:
            raise UsageError("the session is closed; make a new one")  # users know the program as a session
        if self._stall:
            queue, where = self._stall
            raise DeviceError(f"still busy with an earlier run: {where}; run again when that is over", processor=queue)

    def close(self) -> None:
        """Destroys the program after the run of another thread, if there is one.

        Does not wait for a run that missed its deadline; that run destroys the program when it ends. Closing
        twice does nothing.
        """
        if not self._origin.is_here:  # the threads that hold the lock or hang do not exist in this process
            self._turn, self._stall = TurnLock(), None
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
        if self._queued is not None:
            self._queued.put(None)

    def _enter(self, function: Any, feeds: Any, arguments: Sequence[Any]) -> None:
        status = function(self._handle, feeds, *arguments, self._text, ERROR_BYTES)
        if status:
            self._raise(engine_error(status, self._text))

    def _raise(self, error: NNStretchError) -> NoReturn:
        """Raises the exception of a call, or the engine's error, with the names of the queue and the step.

        A call may fork the process, and return in the child.
        """
        self._origin.check("program")
        failure = self._calls.take_failure()
        step, cause = failure or (int(self._engine.library.nns_program_failed_step(self._handle)), None)
        own = isinstance(cause, NNStretchError) or not isinstance(cause, Exception)
        if cause is not None and own and not isinstance(cause, DeviceError):
            raise cause from None
        if step < 0 or not isinstance(error, DeviceError):
            raise error
        queue, name = self._step_names[step]
        raise DeviceError(
            f"{queue} failed at {name}: {cause or error}; run or load it again, or use other processors",
            processor=queue,
        ) from cause

    # -- deadlines -----------------------------------------------------------------------------------------------

    def _enter_by(self, end: float, deadline: float, run: _Run) -> None:
        """Executes the run on the program's thread; cancels it if it misses `end` or the caller is interrupted.

        `deadline` is for the message: the seconds until `end` when the caller asked.
        """
        if self._queued is None:
            self._queued = SimpleQueue()
            threading.Thread(target=_serve, args=(self._queued,), name="nns-deadline", daemon=True).start()
        try:
            self._queued.put(run)  # a C function: no interrupt can come between queueing and returning
            run.over.wait(max(end - time.monotonic(), 0))
        finally:
            if run.abandon():
                self._stall = self._cancel()
        if self._stall is not None:
            queue, where = self._stall
            raise DeadlineError(
                f"the run is not over after {deadline:g} s: {where}; run again when that is over, or allow more",
                processor=queue,
            )
        run.check()

    def _cancel(self) -> _Stall:
        step = int(self._engine.library.nns_program_cancel(self._handle))
        if step < 0:
            return _Stall("", "it was about to begin or to end")
        queue, name = self._step_names[step]
        return _Stall(queue, f"{queue} is at {name} or later")

    def _finish_abandoned(self) -> None:
        with self._turn:
            self._stall = None
            closed = self._closed
        if closed:
            self._destroy()


class _Stall(NamedTuple):
    """Where a run hangs that missed its deadline: the processor, and a description for messages."""

    queue: str
    where: str


class _Run:
    """A run that another thread executes.

    Args:
        body: executes the run.
        on_late_end: called when the run ends after it was abandoned.
        keep: objects that must outlive the run.

    Attributes:
        over: set when the run has ended.
    """

    def __init__(self, body: Callable[[], None], on_late_end: Callable[[], None], keep: object) -> None:
        self.over = threading.Event()
        self._body, self._on_late_end, self._keep = body, on_late_end, keep
        self._lock = threading.Lock()
        self._abandoned = False
        self._failure: BaseException | None = None

    def execute(self) -> None:
        """Executes the run and keeps its exception."""
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the caller's thread
            self._failure = error
        with self._lock:
            self.over.set()
            abandoned = self._abandoned
        if abandoned:
            self._on_late_end()

    def abandon(self) -> bool:
        """Gives up the outcome of the run. Returns whether it was still in progress."""
        with self._lock:
            self._abandoned = not self.over.is_set()
            return self._abandoned

    def check(self) -> None:
        """Raises the exception of the run, if any."""
        if self._failure is not None:
            raise self._failure


def _serve(runs: SimpleQueue[_Run | None]) -> None:
    """Executes runs on the program's thread until None comes."""
    while True:
        run = runs.get()
        if run is None:
            return
        run.execute()
        del run  # releases the arrays of the run


def _fill(table: ctypes.Array[ctypes.c_int64], arrays: Sequence[np.ndarray], sizes: Sequence[int], what: str) -> None:
    """Writes the addresses and bytes of a run's inputs or outputs (`what`), which need at least `sizes` bytes, into a table.

    Raises:
        FeedError: an array is missing, too short, strided or read-only.
    """
    if len(arrays) < len(sizes):
        raise FeedError(f"the program has {len(sizes)} {what}s, the run gives {len(arrays)}")
    place = 0
    for array, size in zip(arrays, sizes, strict=False):
        try:
            table[place] = _address(_buffer(array))
        except _NO_BUFFER:
            flags = array.flags
            if not (flags.c_contiguous and (flags.writeable or what == "input")):
                raise _feed_error(what, place // 2, array, size) from None
            table[place] = address_of(array)
        table[place + 1] = given = array.nbytes
        if given < size:
            raise _feed_error(what, place // 2, array, size)
        place += 2


def _feed_error(what: str, number: int, array: np.ndarray, size: int) -> FeedError:
    wanted = f"{size} contiguous{' writable' if what == 'output' else ''} bytes"
    return FeedError(
        f"{what} {number} needs {wanted}; found {array.nbytes} with strides {array.strides}, "
        f"{'writable' if array.flags.writeable else 'read-only'}"
    )


_address: Callable[[Any], int] = ctypes.addressof
_buffer: Callable[[Any], Any] = ctypes.c_char.from_buffer
_NO_BUFFER = (TypeError, ValueError, BufferError)
"""Raised for arrays that are read-only, empty or strided, or of a type without a buffer format."""


def address_of(array: np.ndarray) -> int:
    """The address of an array's first byte."""
    try:  # takes a quarter of the time of the other way
        return _address(_buffer(array))
    except _NO_BUFFER:
        return int(array.__array_interface__["data"][0])
