"""Engine processes, seen from the benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from nnstretch.bench.engines import EngineEntry, Job, Report
from nnstretch.bench.frames import read_frame, write_frame

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PATIENCE = 5.0  # seconds that a process gets to end by itself


class EngineError(Exception):
    """An engine's process has ended. The message is the reason that it gave."""


class EngineProcess:
    """One engine with one model in a process of its own, pinned to the job's cores. A context manager."""

    def __init__(self, entry: EngineEntry, job: Job, feeds: Mapping[str, np.ndarray], report: Report) -> None:
        """Starts the process, loads the model and runs it once.

        Raises:
            EngineError: the engine cannot run the model; the message is its reason.
        """
        self.entry = entry
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        arguments = {
            "module": entry.module,
            "model": job.model,
            "onnx": job.onnx,
            "cores": list(job.cores),
            "options": dict(job.options),
        }
        # A session of its own: Ctrl-C reaches the benchmark alone, which then ends its processes.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nnstretch.bench.worker", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(len(job.cores)))},
            start_new_session=True,
        )
        try:
            self.facts: dict[str, Any] = self._get_ready(feeds, report)
        except BaseException:
            self.close()
            raise

    def _get_ready(self, feeds: Mapping[str, np.ndarray], report: Report) -> dict[str, Any]:
        self._send({}, feeds)
        while True:
            message, _ = self._receive()
            if "ready" in message:
                return dict(message["ready"])
            done, total, what = message["progress"]
            report(done, total, what)

    def time(self, budget: float, runs: int) -> np.ndarray:
        """Seconds of at least `runs` runs, one after another, and of more until `budget` seconds have passed.

        Raises:
            EngineError: the process has ended.
        """
        self._send({"do": "time", "budget_s": budget, "runs": runs}, {})
        return self._receive()[1]["seconds"]

    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs for the job's feeds, in the model's order.

        Raises:
            EngineError: the process has ended.
        """
        self._send({"do": "outputs"}, {})
        return self._receive()[1]

    def close(self) -> None:
        """Ends the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue  # it has ended already, and what was left to send is of no use
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, message: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        assert self._process.stdin is not None
        try:
            write_frame(self._process.stdin, message, arrays)
        except BrokenPipeError as error:
            raise EngineError(self._reason()) from error

    def _receive(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        assert self._process.stdout is not None
        try:
            return read_frame(self._process.stdout)
        except EOFError as error:
            raise EngineError(self._reason()) from error

    def _reason(self) -> str:
        """The last line that the process wrote to its standard error, or how it ended."""
        try:
            status = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return "it closed its pipe and hangs"
        if status < 0:
            return f"killed by signal {-status}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), f"ended with status {status}")
