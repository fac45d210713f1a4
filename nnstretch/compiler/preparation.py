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
from nnstretch.support.worker_process import WorkerError, WorkerProcess

WORKER = (sys.executable, "-m", "nnstretch.compiler.preparation_worker")


class Preparation(Closing):
    """A process of the lowest priority that prepares processors. A context manager, which ends it.

    What fails in it fails again, with a message, where the processors are used.
    """

    def __init__(self, processors: str) -> None:
        """Starts the process, which builds the engine and tests the devices.

        Args:
            processors: as in `cpu:0,opencl:0@1`.
        """
        cache_dir()  # where it cannot be written, the folder in its place is named to the process, too
        self._process: WorkerProcess | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="nnstretch-")
        with closed_on_failure(self.close):
            arguments = {"parent": os.getpid(), "processors": processors}
            with suppress(OSError):  # no process can be started: all is done where it is needed
                self._process = WorkerProcess((*WORKER, json.dumps(arguments)), patience=0)

    def compile_for(self, model: ir.Model | None) -> None:
        """Names the network for whose layers programs are compiled; the process ends by itself after them.

        Args:
            model: a graph that is not fused; networks with layers of other widths need much the same programs. None: no
                programs are compiled.
        """
        if self._process is None:
            return
        path = Path(self._folder.name) / "model.onnx"
        if model is not None:
            save(model, path)
        with suppress(WorkerError):  # it has ended: what failed in it fails again
            self._process.send({"model": None if model is None else str(path)})

    def close(self) -> None:
        """Ends the process. What it has not done is done where it is needed, with the priority of that work."""
        if self._process is not None:
            self._process.close()
            self._process = None
        self._folder.cleanup()
