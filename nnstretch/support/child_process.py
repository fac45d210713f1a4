"""The child's side of worker processes: they end with their parent, and the reason of their end is known.

Light, because a worker imports it before it pins itself to cores.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from typing import IO

PATIENCE = 5.0
"""Seconds that a process has to end by itself."""

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when `parent` ends, even if it is stopped or hangs."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def end_reason(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    """The reason of a process's end: its signal, the last line in `errors`, or its status."""
    try:
        status = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        return "it closed its pipe and hangs"
    if status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    errors.seek(0)
    lines = errors.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"ended with status {status}")
