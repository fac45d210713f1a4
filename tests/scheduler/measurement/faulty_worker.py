"""A measurement worker in which routines with certain names cause faults (see test_runner.py)."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from nnstretch.scheduler.measurement.runner.worker import main
from nnstretch.scheduler.runtime import loading

_load = loading.load_program


def harm(algorithm: str) -> None:
    """Routine name -> the fault that it causes."""
    if algorithm == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif algorithm == "abort":
        os.abort()
    elif algorithm == "exit":
        sys.exit("the driver gave up")
    elif algorithm == "hang":
        time.sleep(1000)
    elif algorithm == "memory":
        raise MemoryError


class Faulty:
    """A loaded plan whose program harms the process when it runs (`soon`: the second time, `late`: the third)."""

    def __init__(self, loaded: Any, algorithm: str) -> None:
        self._loaded = loaded
        when, _, self._algorithm = algorithm.rpartition("-")
        self._harmless = {"late": 2, "soon": 1}.get(when, 0)
        self._runs = 0
        self.program = self
        self.device_queues, self.host_arrays = loaded.device_queues, loaded.host_arrays

    def time(self, *arguments: Any, **options: Any) -> Any:
        self._runs += 1
        if self._runs > self._harmless:
            harm(self._algorithm)
        return self._loaded.program.time(*arguments, **options)

    def activate(self) -> None:
        self._loaded.activate()

    def close(self) -> None:
        self._loaded.close()


def load_program(compiled: Any, sources: Any) -> Any:
    return Faulty(_load(compiled, sources), compiled.plan.steps[0].routine.rpartition("/")[2])


if __name__ == "__main__":
    setattr(loading, "load_program", load_program)  # noqa: B010 - one of another type
    sys.exit(main())
