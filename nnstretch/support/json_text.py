"""Answers as JSON, which has neither infinities nor NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(answer: Mapping[str, Any]) -> str:
    """An object as indented JSON; numbers that are not finite are null."""
    try:
        return json.dumps(answer, indent=1, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(answer), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value
