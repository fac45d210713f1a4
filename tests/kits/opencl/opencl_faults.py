"""An OpenCL loader that makes chosen calls fail (opencl_faults.c), and engines that use it."""

from __future__ import annotations

import ctypes
import shutil
from enum import IntEnum
from pathlib import Path

from nnstretch.devices.engine.binding.library import Engine, engine
from nnstretch.devices.engine.binding.program import opencl_library
from tests.kits.c_libraries import c_library

OUT_OF_RESOURCES = -5


class Fault(IntEnum):
    """The effect of a fault on a call."""

    ERROR = 0
    """The call is skipped and returns an error."""
    LATE = 1
    """The call is delayed by a number of milliseconds."""
    LOST = 2
    """The call is made, and its event ends with an error."""
    HANGING = 3
    """The call is made, and its event ends when the faults are cleared."""
    CRASH = 4
    """The call crashes by the signal of a number."""


def library() -> Path:
    """The loader."""
    return c_library(Path(__file__).with_suffix(".c"))


def host_library() -> Path:
    """The loader with the functions that make and release objects, for the C host of OpenCL, and those of command buffers."""
    source = Path(__file__).with_name("opencl_host_faults.c")
    return c_library(source, includes=(Path(__file__).with_suffix(".c"),))


class Faults:
    """The loader in this process, and an engine of its own that gets its OpenCL functions from it."""

    def __init__(self, folder: Path, loader: Path | None = None) -> None:
        loader = loader or library()
        self._library = ctypes.CDLL(str(loader))
        for name in ("clear", "struck", "live_events", "live_objects", "mapped", "unsynchronised"):
            getattr(self._library, f"faults_{name}").restype = ctypes.c_int64
        self._library.faults_set.argtypes = (
            ctypes.c_char_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_int,
        )
        assert self._library.faults_open(opencl_library().encode())
        self.engine = Engine(Path(shutil.copy(engine().path, folder)))
        self.engine.load_opencl(str(loader))

    def set(
        self, function: str, first: int = 1, last: int = 0, kind: Fault = Fault.ERROR, value: int = OUT_OF_RESOURCES
    ) -> None:
        """Injects a fault into calls `first` to `last` (0: only `first`); `value` is the error or milliseconds."""
        self._library.faults_set(function.encode(), first, last or first, kind, value)

    def clear(self) -> int:
        """Ends all faults and hangs; returns the number of affected calls."""
        return int(self._library.faults_clear())

    @property
    def struck(self) -> int:
        """Calls that the fault has affected so far."""
        return int(self._library.faults_struck())

    @property
    def live_events(self) -> int:
        """Events that the engine got and has not released."""
        return int(self._library.faults_live_events())

    @property
    def live_objects(self) -> int:
        """Contexts, queues, programs, kernels, memory and command buffers that were made through the loader, not released."""
        return int(self._library.faults_live_objects())

    @property
    def unsynchronised(self) -> int:
        """Events that the engine saw complete and released without a wait, so far."""
        return int(self._library.faults_unsynchronised())

    @property
    def mapped(self) -> int:
        """Regions that the engine has mapped and not unmapped."""
        return int(self._library.faults_mapped())
