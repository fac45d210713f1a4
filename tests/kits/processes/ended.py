"""Whether a process that something else ends is gone."""

from __future__ import annotations

import time
from pathlib import Path

_PATIENCE = 10.0


def has_ended(number: Path) -> bool:
    """Whether the process whose number a file has is gone, or goes soon: it may have been killed and not collected yet."""
    process, end = Path(f"/proc/{int(number.read_text())}"), time.monotonic() + _PATIENCE
    while process.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return not process.exists()
