"""Targets that start measurement workers, which need Python there. A new one is a class and a line in `TARGETS`."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from nnstretch.errors import UsageError
from nnstretch.support.worker_process import start_here


class Target(ABC):
    """A machine that starts workers which measure layers and run engines."""

    name: str

    @abstractmethod
    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None, pass_fds: Sequence[int], errors: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Starts a worker with pipes for its input and output (`nnstretch.support.worker_process.StartProcess`).

        Args:
            command: the command and its arguments.
            environment: environment variables; None for those of this process.
            pass_fds: file descriptors that the worker inherits; only the local target can pass them.
            errors: receives the standard error.

        Raises:
            OSError: the worker cannot be started.
        """


class LocalTarget(Target):
    """The local machine."""

    name = "local"

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None, pass_fds: Sequence[int], errors: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return start_here(command, environment, pass_fds, errors)


LOCAL = "local"

TARGETS: Mapping[str, Callable[[], Target]] = {LOCAL: LocalTarget}
"""Scheme -> constructor."""


def open_target(text: str = LOCAL) -> Target:
    """Opens a target by its name on the command line.

    Raises:
        UsageError: there is no such target.
    """
    if text not in TARGETS:
        raise UsageError(
            f"target {text!r} has no Python; known are {', '.join(TARGETS)}; tune, bench, run and devices take others"
        )
    return TARGETS[text]()
