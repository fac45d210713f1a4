"""Amounts of memory as people write them."""

from __future__ import annotations

import math
import re

from nnstretch.errors import UsageError

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_AMOUNT = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([kmg]?i?)(b?)")


def parse_bytes(text: str, unit: int = 1) -> float:
    """An amount such as `200MB`, `1 kb` or `1.5GiB`, in bytes; capitals do not matter.

    Args:
        text: the amount.
        unit: bytes that a number without a unit counts.

    Raises:
        UsageError: it is none.
    """
    found = _AMOUNT.fullmatch(text.strip().lower())
    factor = _FACTORS.get(found[2]) if found else None
    amount = float(found[1]) if found else math.nan
    if found is None or factor is None or not math.isfinite(amount):
        raise UsageError(f"{text!r} is no amount of memory; write one such as 200MB")
    return amount * (factor if found[2] or found[3] else unit)
