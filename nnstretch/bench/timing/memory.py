"""How much memory this process holds, as Linux counts it."""

from __future__ import annotations

import contextlib
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_UNIT = 1024  # bytes of what the file calls kB


def reset_peak() -> int:
    """Makes the peak start anew from what is resident now, and returns that in bytes.

    Where the kernel does not allow it, the peak stays that of the whole process.
    """
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)
    return _read("VmRSS")


def peak() -> int:
    """The most bytes that were resident since the start, or since `reset_peak`."""
    return _read("VmHWM")


def _read(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * _UNIT
    return 0
