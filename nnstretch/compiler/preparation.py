"""Preparation of processors in the background: the engine is built, devices are tested and OpenCL programs are compiled.

Each is done once per version and kept in the cache. Work that leaves cores idle, such as a training, hides it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import onnx_ir as ir

from nnstretch.frontends.onnx_file import save
from nnstretch.support.closing import Closing, closed_on_failure
from nnstretch.support.settings import cache_dir
from nnstretch.support.worker_process import WorkerProcess

WORKER = (sys.executable, "-m", "nnstretch.compiler.preparation_worker")


class Preparation(Closing):
    """A process of the lowest priority that prepares processors. A context manager, which ends it.

    What fails in it fails again, with a message, where the processors are used.
    """

    def __init__(self, processors: str, model: ir.Model | None = None) -> None:
        """Starts the process.

        Args:
            processors: as in `cpu:0,opencl:0@1`.
            model: a graph that is not fused. The programs of its layers are compiled for the OpenCL devices; networks with
                layers of other widths need much the same.
        """
        cache_dir()  # where it cannot be written, the folder in its place is named to the process, too
        self._process: WorkerProcess | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="nnstretch-")
        path = Path(self._folder.name) / "model.onnx"
        with closed_on_failure(self.close):
            if model is not None:
                save(model, path)
            arguments = {"parent": os.getpid(), "processors": processors, "model": None if model is None else str(path)}
            with suppress(OSError):  # no process can be started: all is done where it is needed
                self._process = WorkerProcess((*WORKER, json.dumps(arguments)), patience=0)

    def close(self) -> None:
        """Ends the process. What it has not done is done where it is needed, with the priority of that work."""
        if self._process is not None:
            self._process.close()
            self._process = None
        self._folder.cleanup()
