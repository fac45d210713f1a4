"""Sums with unknown parts."""

from __future__ import annotations

from collections.abc import Iterable


def known_sum(parts: Iterable[float | None]) -> float | None:
    """The sum; None if a part is unknown."""
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
