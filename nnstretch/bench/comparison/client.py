"""The benchmark's side of engine processes, and the files that engines start from."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from nnstretch.api.options import BFLOAT16_TOLERANCE, CompileOptions
from nnstretch.bench.engines import EngineEntry, Job, Start, engine_entry
from nnstretch.bench.engines.settings import is_quantized
from nnstretch.frontends.onnx_file import save
from nnstretch.support.closing import Closing, closed_on_failure
from nnstretch.support.progress import Progress
from nnstretch.support.worker_process import StartProcess, WorkerError, WorkerProcess, start_here

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


def _is_prepared(entry: EngineEntry, job: Job) -> bool:
    """Whether an engine makes a file of the model, or compares its settings for it, before it is loaded."""
    if not entry.prepares or not entry.prepares_quantized:
        return bool(entry.prepares)
    if not job.onnx:
        return False
    rounded = CompileOptions(**job.options.get("compile", {})).largest_error >= BFLOAT16_TOLERANCE
    return is_quantized(job.onnx_path) or (entry.prepares_rounded and rounded)


class Workspace(Closing):
    """A folder for the converted files of one model, deleted at the end. A context manager.

    Each file is made once and shared by several comparisons.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="nnstretch-bench-"))
        self._made: dict[tuple[str, int], str | WorkerError] = {}

    def file_for(self, entry: EngineEntry, job: Job, report: Progress) -> str:
        """The file that an engine starts from, or "" if that is the model itself.

        Raises:
            WorkerError: the engine cannot make it, now or when it was asked before.
        """
        if not _is_prepared(entry, job):
            return ""
        key = entry.name, len(job.cores) if entry.prepares == "threads" else 0
        if key not in self._made:
            folder = self._folder / f"{entry.name}-{key[1]}"
            folder.mkdir()
            try:
                self._made[key] = prepare(entry, job, folder, report)
            except WorkerError as failure:
                self._made[key] = failure
        made = self._made[key]
        if isinstance(made, WorkerError):
            raise made
        return made

    def close(self) -> None:
        """Deletes the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


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
        with closed_on_failure(self.close):
            self._worker.send({}, feeds)
            ready = self._worker.wait_for("ready", report)
            self._worker.stop()
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


def onnxruntime_process(
    stack: ExitStack,
    graph: ir.Model,
    cores: tuple[int, ...],
    feeds: Mapping[str, np.ndarray],
    report: Progress,
    **options: Any,
) -> EngineProcess:
    """ONNX Runtime with a graph in a process pinned to cores; `stack` closes it. Options are the engine's.

    Raises:
        WorkerError: it cannot run the graph; the message is its reason.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nnstretch-bench-")))
    save(graph, folder / "model.onnx")
    job = Job("model", str(folder / "model.onnx"), cores, options)
    return stack.enter_context(EngineProcess(engine_entry("onnxruntime"), job, feeds, report))


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
            [sys.executable, "-P", "-m", "nnstretch.bench.comparison.worker", json.dumps(arguments)],
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
