"""Resident memory of this process, from Linux's /proc."""

from __future__ import annotations

import contextlib
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_UNIT = 1024  # bytes of what the file calls kB


def reset_peak() -> int:
    """Resets the peak to the present resident memory and returns that in bytes.

    Where the kernel does not allow a reset, the peak remains that of the whole process.
    """
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)
    return _read("VmRSS")


def peak() -> int:
    """The largest resident memory in bytes since the start or `reset_peak`."""
    return _read("VmHWM")


def _read(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * _UNIT
    return 0
