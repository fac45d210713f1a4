"""What results were made with, as facts of a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LONGEST = 300


def environment_facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Versions of what took part in an answer or a study (`nnstretch.compiler.environment`), one name each."""
    flat = {**found, **dict(found.get("libraries", {}))}
    flat.pop("libraries", None)
    return {name: _text(value) for name, value in flat.items()}


def fact_text(value: Any) -> str:
    """A value on one line, cut off where it is long."""
    text = _text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _text(value: Any) -> str:
    """What a value says: entries of objects without those that say nothing."""
    if value is None or value in ("", {}, []):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items() if _text(one) != "–") or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)
