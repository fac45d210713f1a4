"""Times as people write them."""

from __future__ import annotations

import math

from nnstretch.errors import UsageError


def parse_milliseconds(text: str) -> float:
    """A time such as `12ms`, `0.5s` or `12` (milliseconds).

    Raises:
        UsageError: it is none.
    """
    number, scale = text.strip().removesuffix("s"), 1e3
    if number.endswith("m"):
        number, scale = number.removesuffix("m"), 1.0
    elif number == text.strip():
        scale = 1.0
    try:
        found = float(number) * scale
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise UsageError(f"{text!r} is no time above 0; write one such as 12ms")
    return found
