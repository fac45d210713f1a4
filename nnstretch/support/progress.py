"""The callback by which long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""Called as `progress(done, total, what)`; `total` is 0 where it is not known."""


def silent(done: int, total: int, what: str) -> None:
    """Reports nothing."""
