"""Whether this program writes lines of its own to the standard error: commands and scripts do.

A library that is imported leaves the handlers of signals and the standard error to the application.
"""

from __future__ import annotations

import logging
import sys

_STATE = {"wanted": False}

log = logging.getLogger(__name__)


def want_stderr_lines() -> None:
    """Lets work that takes long announce itself, and drivers that are opened later name themselves if they crash."""
    _STATE["wanted"] = True


def stderr_lines_wanted() -> bool:
    """Whether `want_stderr_lines` was called in this process."""
    return _STATE["wanted"]


def announce(text: str) -> None:
    """Reports work that takes long and is done once. A terminal has a bar that moves; elsewhere a command writes a line."""
    log.info(text)
    if stderr_lines_wanted() and not sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
