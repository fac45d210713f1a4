"""Processes in which commits compile a model and run it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.bench.regression.cases import Case
from nnstretch.bench.regression.commits import Checkout
from nnstretch.bench.regression.model_files import ModelFiles
from nnstretch.support.closing import closed_on_failure
from nnstretch.support.worker_process import WorkerError, WorkerProcess

_CHILD = Path(__file__).with_name("child.py")  # run by its path: it imports the package of the commit, not this one


class CommitProcess(WorkerProcess):
    """A process of one commit with one model.

    Between requests the process is stopped, so that nothing in it spins while the other one is timed.

    Attributes:
        start: seconds for imports, the engine and the processors.
        tuning: seconds for compiling and tuning.
    """

    def __init__(self, checkout: Checkout, case: Case, files: ModelFiles, outputs: Path) -> None:
        """Starts the process, compiles the model and runs it once.

        Args:
            checkout: of the commit, with the cache of this process.
            case: the processors and threads.
            files: the model and its inputs.
            outputs: .npz file to write.

        Raises:
            WorkerError: the commit cannot do that.
        """
        task = {
            "parent": os.getpid(),
            "imports": str(checkout.imports),
            **{name: str(path) for name, path in files._asdict().items()},
            "processors": case.processors,
            "threads": case.threads,
            "inputs": files.inputs,
            "outputs": str(outputs),
        }
        path = [str(checkout.imports), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONSAFEPATH": "1",  # the folder of the program and the working directory are no import folders
            "NNSTRETCH_CACHE_DIR": str(checkout.cache),
        }
        super().__init__([sys.executable, str(_CHILD), json.dumps(task)], environment=environment, patience=0)
        with closed_on_failure(self.close):
            self.start = float(self._answer("prepared"))
            self.tuning = float(self._answer("tuned"))
            self._answer("ready")
            self.stop()

    def time(self, seconds: float) -> np.ndarray:
        """Runs for about `seconds`; returns the duration of each run.

        Raises:
            WorkerError: a run fails, or the process has ended.
        """
        with self.running():
            self.send({"seconds": seconds})
            return np.array(self._answer("seconds"))

    def _answer(self, key: str) -> Any:
        message, _ = self.receive()
        if "error" in message:
            raise WorkerError(message["error"])
        return message[key]
