"""Converted model files of engines: each is made once and shared by several comparisons."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from nnstretch.bench.comparison.client import prepare
from nnstretch.bench.engines import EngineEntry, Job
from nnstretch.support.progress import Progress
from nnstretch.support.worker_process import WorkerError


class Workspace:
    """A folder for one model, deleted at the end. A context manager."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="nnstretch-bench-"))
        self._made: dict[tuple[str, int], str | WorkerError] = {}

    def file_for(self, entry: EngineEntry, job: Job, report: Progress) -> str:
        """The file that an engine starts from, or "" if that is the model itself.

        Raises:
            WorkerError: the engine cannot make it, now or when it was asked before.
        """
        if not entry.prepares:
            return ""
        key = entry.name, len(job.cores) if entry.prepares == "threads" else 0
        if key not in self._made:
            self._made[key] = self._make(entry, job, f"{entry.name}-{key[1]}", report)
        made = self._made[key]
        if isinstance(made, WorkerError):
            raise made
        return made

    def _make(self, entry: EngineEntry, job: Job, name: str, report: Progress) -> str | WorkerError:
        folder = self._folder / name
        folder.mkdir()
        try:
            return prepare(entry, job, folder, report)
        except WorkerError as failure:
            return failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
