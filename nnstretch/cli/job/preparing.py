"""Processors that are prepared beside the first training of a job (`transform_and_train`), which leaves cores idle."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.job.transform_options import TransformOptions
    from nnstretch.compiler.preparation import Preparation

_WORKER = (sys.executable, "-P", "-m", "nnstretch.cli.job.preparation_worker")


class PreparationBeside:
    """Builds the engine and compiles OpenCL programs beside a training."""

    def __init__(self, options: TransformOptions) -> None:
        """Takes the options of the job; nothing is begun."""
        self._options = options
        self._preparation: Preparation | None = None

    def begin(self, report: Reporter) -> None:
        """Starts the process, unless the processors are simulated."""
        from nnstretch.compiler.preparation import Preparation
        from nnstretch.devices.base.spec import is_simulated

        if not any(map(is_simulated, self._options.processors.split(","))):
            report.note("preparing the processors beside the training: once per version")
            arguments = {"parent": os.getpid(), "options": self._options.to_json()}
            self._preparation = Preparation((*_WORKER, json.dumps(arguments)))

    def cores_taken(self, cores: int) -> int:
        """How many of the cores are left to it: half while it builds the engine, one for the rest, none when it has ended."""
        if self._preparation is None or self._preparation.ended:
            return 0
        return cores // 2 if self._preparation.builds else 1

    def end(self) -> None:
        """Ends the process, which would disturb measurements."""
        if self._preparation is not None:
            self._preparation.close()
