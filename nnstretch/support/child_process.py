"""Processes of our own that do risky or disturbing work: how they end with their parent, and what becomes known of their end.

Light on purpose: such a process imports it before it pins itself and loads anything.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from typing import IO

PATIENCE = 5.0
"""Seconds that a process gets to end by itself."""

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def die_with_parent(parent: int) -> None:
    """Lets the kernel end this process when `parent` ends: it may be stopped or hang then, and could not end by itself."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def end_reason(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    """Why a process has ended: its signal, or the last line that it wrote to `errors`, or its status."""
    try:
        status = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        return "it closed its pipe and hangs"
    if status < 0:
        return f"killed by signal {-status} ({signal.strsignal(-status)})"
    errors.seek(0)
    lines = errors.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"ended with status {status}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process: its input ends, and if it does not see that in time it is killed."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                continue  # it has ended already, and what was left to send is of no use
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
