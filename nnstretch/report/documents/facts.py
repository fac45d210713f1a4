"""What results were made with, as facts of a document: names and values that people can read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from nnstretch.errors import NNStretchError
from nnstretch.report.tables.text import count_text, duration_text, size_text
from nnstretch.training.data.preprocessing import PREPROCESSING_KEY, preprocessing_from_json
from nnstretch.vision.classes import CLASS_NAMES_KEY, stated_names

_LONGEST = 300
_CLASSES = 12
"""Names of classes that are listed."""
_LARGE = 100_000
"""Integers from here on have commas."""
_NAMES = {
    CLASS_NAMES_KEY: "classes",
    PREPROCESSING_KEY: "preprocessing",
    "calibration": "measured when it was made",
    "peak_gflops_per_core": "peak in GFLOP/s per core",
    "macs": "MACs",
    "lr": "learning rate",
    "params": "parameters",
    "cpu": "CPU",
}
"""What keys of metadata and answers are called; underscores of others become spaces."""


def facts_of(found: Mapping[str, Any]) -> dict[str, str]:
    """Facts of metadata, settings or a machine: a value in units, on one line that is cut off where it is long."""
    return {fact_name(str(key)): fact_text(value, str(key)) for key, value in found.items()}


def environment_facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Versions of what took part in an answer or a study (`nnstretch.compiler.environment`), one name each."""
    flat = {**found, **dict(found.get("libraries", {}))}
    flat.pop("libraries", None)
    return {fact_name(str(name)): _text(value, str(name)) for name, value in flat.items()}


def fact_name(key: str) -> str:
    """What a key is called."""
    return _NAMES.get(key, key.replace("_", " "))


def fact_text(value: Any, key: str = "") -> str:
    """A value on one line, cut off where it is long; its key says its unit."""
    text = _text(value, key)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _text(value: Any, key: str = "") -> str:
    """What a value says: entries of objects without those that say nothing."""
    if value is None or value in ("", {}, []):
        return "–"
    if key in _SPECIAL:
        return _SPECIAL[key](value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value, key)
    if isinstance(value, Mapping):
        entries = ((fact_name(str(name)), _text(one, str(name))) for name, one in value.items())
        return ", ".join(f"{name} {text}" for name, text in entries if text != "–") or "–"
    if isinstance(value, list | tuple):
        return ", ".join(_text(one, key) for one in value)
    return str(value)


def _number(value: float, key: str) -> str:
    """A number with the unit that its key names, if it names one."""
    if key == "macs" or key.endswith("_macs") or key in ("params", "parameters"):
        return count_text(value)
    if key == "bytes" or key.endswith("_bytes"):
        return size_text(int(value))
    if key == "ms" or key.endswith("_ms"):
        return duration_text(value / 1e3)
    if key == "seconds" or key.endswith(("_seconds", "_s")):
        return duration_text(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= _LARGE else str(value)
    return f"{value:.4g}"


def _preprocessing(value: Any) -> str:
    """The steps from an image to the input; the value as it is if it is damaged."""
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        return preprocessing_from_json(text, PREPROCESSING_KEY).steps
    except NNStretchError:
        return str(value)


def _classes(value: Any) -> str:
    """How many classes there are, and the names of the first ones by number."""
    names = stated_names({CLASS_NAMES_KEY: value})
    if not names:
        return str(value)
    shown = [names[number] for number in sorted(names)][:_CLASSES]
    count = f"{len(names)} class{'es' * (len(names) != 1)}"
    if all(name == str(number) for number, name in names.items()):
        return f"{count}, named by their numbers {min(names)} to {max(names)}"
    return f"{count}: {', '.join(shown)}{', …' * (len(names) > len(shown))}"


_SPECIAL: Mapping[str, Callable[[Any], str]] = {PREPROCESSING_KEY: _preprocessing, CLASS_NAMES_KEY: _classes}
"""Key -> how its values are shown."""
