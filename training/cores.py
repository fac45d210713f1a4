"""How many cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores that this process may run on; all of the machine where the system does not say which (macOS, Windows)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
