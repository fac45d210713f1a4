"""What results were made with, as facts of a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_LONGEST = 300


def environment_facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Versions of what took part in an answer or a study (`nnstretch.compiler.environment`), one name each."""
    flat = {**found, **dict(found.get("libraries", {}))}
    flat.pop("libraries", None)
    return {name: ", ".join(map(str, value)) if isinstance(value, list) else str(value) for name, value in flat.items()}


def fact_text(value: Any) -> str:
    """A value on one line, cut off where it is long."""
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        text = ", ".join(map(str, value))
    else:
        text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
