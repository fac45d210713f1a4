"""The child's side of worker processes: they end with their parent.

Light, because a worker imports it before it pins itself to cores.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import IO

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when `parent` ends, even if it is stopped or hangs."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def frames_to_parent() -> IO[bytes]:
    """The standard output, for frames alone: what libraries print goes to the standard errors from now on."""
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return frames
