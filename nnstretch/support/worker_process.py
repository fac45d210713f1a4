"""Child processes that answer framed requests over pipes, for risky or disturbing work.

The parent's side; `nnstretch.support.child_process` is the child's.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from nnstretch.support.closing import Closing
from nnstretch.support.frames import Arrays, read_frame, write_frame

StartProcess = Callable[[Sequence[str], Mapping[str, str] | None, Sequence[int], IO[bytes]], "subprocess.Popen[bytes]"]
"""Starts a command with pipes for input and output: (command, environment or None, inherited file descriptors, errors)."""

PATIENCE = 5.0
"""Seconds that a process has to end by itself."""
_TICK = 1.0  # seconds; time in which no process runs (a suspended machine) counts as one tick at most


class WorkerError(Exception):
    """A worker process has ended or does not answer; the message is the reason."""


def start_here(
    command: Sequence[str], environment: Mapping[str, str] | None, pass_fds: Sequence[int], errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Starts a process on this machine, in a session of its own: Ctrl-C reaches the parent only, which ends its children."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        bufsize=0,
        env=environment,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )


class WorkerProcess(Closing):
    """A child process and the two pipes to it. A context manager; not thread-safe."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        patience: float = PATIENCE,
        start: StartProcess = start_here,
    ) -> None:
        """Starts the process.

        Args:
            command: the command and its arguments.
            environment: environment variables; None inherits this process's.
            pass_fds: file descriptors that the child inherits.
            patience: seconds that `close` waits for the process to end by itself; 0 kills it at once.
            start: starts the process, here or on another machine.

        Raises:
            OSError: it cannot be started.
        """
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = start(command, environment, pass_fds, self._errors)
        except OSError:
            self._errors.close()
            raise
        self._finalizer = weakref.finalize(self, _end, self._process, self._errors, patience)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def status(self) -> int | None:
        """The process's exit status, negative for the number of a signal; None while it runs."""
        return self._process.poll()

    def send(self, message: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """Sends one frame.

        Raises:
            WorkerError: the process has ended.
        """
        assert self._process.stdin is not None
        try:
            write_frame(self._process.stdin, message, arrays)
        except BrokenPipeError as error:
            raise WorkerError(self._reason()) from error

    def receive(
        self, ticks: int | None = None, working: Callable[[], object] | None = None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Receives one frame: its message and its arrays.

        Args:
            ticks: seconds after which a process that does not answer is killed; None waits without limit.
            working: says what the process works on; the seconds begin again when that is something else.

        Raises:
            WorkerError: the process has ended, or was killed.
        """
        assert self._process.stdout is not None
        if ticks is not None and not self._answers(ticks, working or (lambda: None)):
            self.kill()
            raise WorkerError(f"no answer within {ticks} s")
        try:
            return read_frame(self._process.stdout)
        except EOFError as error:
            raise WorkerError(self._reason()) from error

    def _answers(self, ticks: int, working: Callable[[], object]) -> bool:
        """Waits for the beginning of an answer; whether there is one in time."""
        left, before = ticks, working()
        while left:
            if select.select([self], [], [], _TICK)[0]:
                return True
            now = working()
            left, before = (left if now == before else ticks) - 1, now
        return False

    def fileno(self) -> int:
        """The pipe that frames arrive on, for `select`."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def signal(self, number: int) -> None:
        """Sends a signal to the process, if it still runs."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stops all threads of the process; returns when they are stopped or the process has ended."""
        self._process.send_signal(signal.SIGSTOP)
        if self._process.returncode is None:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Continues a stopped process for the duration of a block."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.stop()

    def kill(self) -> None:
        """Kills the process and waits for its end."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the process: closes its input, and kills it if it does not end in time."""
        self._process.send_signal(signal.SIGCONT)
        self._finalizer()

    def _reason(self) -> str:
        """The reason of the process's end: its signal, the last line of its errors, or its status."""
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return "it closed its pipe and hangs"
        if status < 0:
            return f"killed by signal {-status} ({signal.strsignal(-status)})"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"ended with status {status}")


def _end(process: subprocess.Popen[bytes], errors: IO[bytes], patience: float) -> None:
    if not patience:
        process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                continue  # the process has ended; unsent data is of no use
    try:
        process.wait(patience or None)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    errors.close()
