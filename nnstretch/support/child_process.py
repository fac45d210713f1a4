"""The child's side of worker processes: they end with their parent.

Light, because a worker imports it before it pins itself to cores.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when `parent` ends, even if it is stopped or hangs."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
