"""The benchmark's side of engine processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

import numpy as np

from nnstretch.bench.engines import EngineEntry, Job, Report, Start
from nnstretch.support.child_process import end, end_reason
from nnstretch.support.closing import Closing
from nnstretch.support.frames import read_frame, write_frame

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Each engine chooses how its threads wait; settings in the environment of the benchmark must not decide it.
_WAITING_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_PROC_BIND", "OMP_PLACES")


class EngineError(Exception):
    """An engine process has ended; the message is its reason."""


def prepare(entry: EngineEntry, job: Job, folder: Path, report: Report) -> str:
    """Has an engine write the file that it starts from, in a process of its own.

    Raises:
        EngineError: the engine failed; the message is its reason.
    """
    with _Worker("prepare", entry, job, folder) as worker:
        return str(worker.wait_for("file", report)["file"])


class EngineProcess(Closing):
    """One engine with one model in a process of its own, pinned to the job's cores. A context manager.

    Between requests all threads of the process are stopped, so that none spins while another engine is timed.
    """

    def __init__(self, entry: EngineEntry, job: Job, feeds: Mapping[str, np.ndarray], report: Report) -> None:
        """Starts the process, loads the model and runs it once.

        Raises:
            EngineError: the engine cannot run the model; the message is its reason.
        """
        self.entry = entry
        self._worker = _Worker("serve", entry, job)
        try:
            self._worker.send({}, feeds)
            ready = self._worker.wait_for("ready", report)
            self._worker.stop()
        except BaseException:  # an interrupt too: nobody else knows the process yet
            self.close()
            raise
        self.facts: dict[str, Any] = dict(ready["ready"])
        self.start = Start(**ready["start"])

    def time(self, budget: float, runs: int) -> np.ndarray:
        """Runs at least `runs` times and until `budget` seconds have passed; returns the seconds of every run.

        Raises:
            EngineError: the process has ended.
        """
        return self._ask({"do": "time", "budget_s": budget, "runs": runs})["seconds"]

    def rate(self, budget: float) -> tuple[int, float]:
        """Runs for about `budget` seconds; returns the number of inputs and the seconds they took.

        Raises:
            EngineError: the process has ended.
        """
        with self._worker.awake():
            self._worker.send({"do": "rate", "budget_s": budget}, {})
            done, seconds = self._worker.receive()[0]["rate"]
        return done, seconds

    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs for the job's feeds, in the model's order.

        Raises:
            EngineError: the process has ended.
        """
        return self._ask({"do": "outputs"})

    def _ask(self, request: Mapping[str, Any]) -> dict[str, np.ndarray]:
        with self._worker.awake():
            self._worker.send(request, {})
            return self._worker.receive()[1]

    def close(self) -> None:
        """Ends the process."""
        self._worker.close()


class _Worker(Closing):
    """A process of `nnstretch.bench.comparison.worker` and the two pipes to it."""

    def __init__(
        self, do: Literal["prepare", "serve"], entry: EngineEntry, job: Job, folder: Path | None = None
    ) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        arguments = {
            "do": do,
            "module": entry.module,
            "job": {**vars(job), "options": dict(job.options)},
            "folder": str(folder or ""),
            "parent": os.getpid(),
        }
        environment = {name: value for name, value in os.environ.items() if name not in _WAITING_VARIABLES}
        # A session of its own: Ctrl-C reaches the benchmark alone, which then ends its processes.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nnstretch.bench.comparison.worker", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**environment, **dict.fromkeys(_THREAD_VARIABLES, str(len(job.cores)))},
            start_new_session=True,
        )

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Sends one frame."""
        assert self._process.stdin is not None
        try:
            write_frame(self._process.stdin, message, arrays)
        except BrokenPipeError as error:
            raise EngineError(end_reason(self._process, self._errors)) from error

    def receive(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The next frame."""
        assert self._process.stdout is not None
        try:
            return read_frame(self._process.stdout)
        except EOFError as error:
            raise EngineError(end_reason(self._process, self._errors)) from error

    def wait_for(self, key: str, report: Report) -> dict[str, Any]:
        """The next message with `key`; messages before it are progress and are reported."""
        while True:
            message, _ = self.receive()
            if key in message:
                return message
            done, total, what = message["progress"]
            report(done, total, what)

    def stop(self) -> None:
        """Stops all threads of the process; returns when they are stopped or the process has ended."""
        self._process.send_signal(signal.SIGSTOP)
        if self._process.returncode is None:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Lets the process run during the block."""
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.stop()

    def close(self) -> None:
        """Ends the process."""
        self._process.send_signal(signal.SIGCONT)
        end(self._process)
        self._errors.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self.close()
