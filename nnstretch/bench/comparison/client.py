"""The benchmark's side of engine processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from nnstretch.bench.engines import EngineEntry, Job, Start
from nnstretch.support.closing import Closing
from nnstretch.support.progress import Progress
from nnstretch.support.worker_process import StartProcess, WorkerProcess, start_here

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Each engine chooses how its threads wait; settings in the environment of the benchmark must not decide it.
_WAITING_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_PROC_BIND", "OMP_PLACES")


def prepare(entry: EngineEntry, job: Job, folder: Path, report: Progress) -> str:
    """Has an engine write the file that it starts from, in a process of its own.

    Raises:
        WorkerError: the engine failed; the message is its reason.
    """
    with _Worker("prepare", entry, job, folder) as worker:
        return str(worker.wait_for("file", report)["file"])


class EngineProcess(Closing):
    """One engine with one model in a process of its own, pinned to the job's cores. A context manager.

    Between requests all threads of the process are stopped, so that none spins while another engine is timed.
    """

    def __init__(
        self,
        entry: EngineEntry,
        job: Job,
        feeds: Mapping[str, np.ndarray],
        report: Progress,
        start: StartProcess = start_here,
    ) -> None:
        """Starts the process, loads the model and runs it once.

        Args:
            entry: the engine.
            job: its work.
            feeds: an array for each input.
            report: reports progress.
            start: starts the process, on this machine or on a target.

        Raises:
            WorkerError: the engine cannot run the model; the message is its reason.
        """
        self.entry = entry
        self._worker = _Worker("serve", entry, job, start=start)
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
            WorkerError: the process has ended.
        """
        return self._ask({"do": "time", "budget_s": budget, "runs": runs})["seconds"]

    def rate(self, budget: float) -> tuple[int, float]:
        """Runs for about `budget` seconds; returns the number of inputs and the seconds they took.

        Raises:
            WorkerError: the process has ended.
        """
        with self._worker.running():
            self._worker.send({"do": "rate", "budget_s": budget}, {})
            done, seconds = self._worker.receive()[0]["rate"]
        return done, seconds

    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs for the job's feeds, in the model's order.

        Raises:
            WorkerError: the process has ended.
        """
        return self._ask({"do": "outputs"})

    def _ask(self, request: Mapping[str, Any]) -> dict[str, np.ndarray]:
        with self._worker.running():
            self._worker.send(request, {})
            return self._worker.receive()[1]

    def close(self) -> None:
        """Ends the process."""
        self._worker.close()


class _Worker(WorkerProcess):
    """A process of `nnstretch.bench.comparison.worker`."""

    def __init__(
        self,
        do: Literal["prepare", "serve"],
        entry: EngineEntry,
        job: Job,
        folder: Path | None = None,
        start: StartProcess = start_here,
    ) -> None:
        arguments = {
            "do": do,
            "module": entry.module,
            "job": {**vars(job), "options": dict(job.options)},
            "folder": str(folder or ""),
            "parent": os.getpid(),
        }
        environment = {name: value for name, value in os.environ.items() if name not in _WAITING_VARIABLES}
        super().__init__(
            [sys.executable, "-m", "nnstretch.bench.comparison.worker", json.dumps(arguments)],
            environment={**environment, **dict.fromkeys(_THREAD_VARIABLES, str(len(job.cores)))},
            start=start,
        )

    def wait_for(self, key: str, report: Progress) -> dict[str, Any]:
        """The next message with `key`; messages before it are progress and are reported."""
        while True:
            message, _ = self.receive()
            if key in message:
                return message
            done, total, what = message["progress"]
            report(done, total, what)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.kill()
        self.close()
