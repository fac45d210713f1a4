"""Garbage collection during work that makes millions of objects which stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 20_000
"""New objects after which the youngest ones are collected; Python's own number is 700 or 2000."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collects more rarely in the block, and leaves out what was there before it, such as the objects of loaded libraries."""
    before, others = gc.get_threshold(), gc.get_freeze_count()
    gc.freeze()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not others:
            gc.unfreeze()
