"""Preparation of processors in the background: the engine is built, devices are tested and OpenCL programs are compiled.

Each is done once per version and kept in the cache. Work that leaves cores idle, such as a training, hides it.
`nnstretch.compiler.preparation_worker` is the process's side.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from nnstretch.devices.engine.build.engine_library import engine_is_built
from nnstretch.errors import NNStretchError
from nnstretch.support.closing import Closing
from nnstretch.support.settings import cache_dir
from nnstretch.support.worker_process import WorkerProcess


class Preparation(Closing):
    """A process of the lowest priority that prepares processors. A context manager, which ends it.

    What fails in it fails again, with a message, where the processors are used.

    Attributes:
        builds: whether it builds the engine, which takes half a minute of a core.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Starts the process.

        Args:
            command: of a process that calls `prepare` and ends with its parent.
        """
        cache_dir()  # where it cannot be written, the folder in its place is named to the process, too
        self._process: WorkerProcess | None = None
        self.builds = False
        with suppress(OSError):  # no process can be started: all is done where it is needed
            self._process = WorkerProcess(command, patience=0)
        with suppress(NNStretchError):  # nothing can be built
            self.builds = not engine_is_built()

    @property
    def ended(self) -> bool:
        """Whether nothing is left to be prepared, or nothing more is going to be."""
        return self._process is None or self._process.ended

    def close(self) -> None:
        """Ends the process. What it has not done is done where it is needed, with the priority of that work."""
        if self._process is not None:
            self._process.close()
            self._process = None
