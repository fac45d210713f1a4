"""Exit statuses of commands."""

USAGE = 2
"""An error that the caller can fix."""

INTERRUPTED = 130
"""Ctrl-C."""
