"""Answers as JSON, which has neither infinities nor NaN, and what is wrong with text that is none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from nnstretch.errors import first_line

DAMAGED = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""What reading the fields of a damaged object raises."""


def json_text(answer: Mapping[str, Any]) -> str:
    """An object as indented JSON; numbers that are not finite are null."""
    try:
        return json.dumps(answer, indent=1, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(answer), indent=1, allow_nan=False)


def json_fault(error: Exception) -> str:
    """Where text is not JSON, as in `line 3, column 5: expecting value`; of other errors, their type and message."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
    return f"{type(error).__name__}: {first_line(error)}"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value
