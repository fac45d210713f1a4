"""Names of classes that files state, and the most probable classes of an image."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CLASS_NAMES_KEY = "nnstretch.classes"
"""Key of the metadata with names of classes, as a list or an object of index and name."""
_KEYS = (CLASS_NAMES_KEY, "names")  # the latter is that of YOLO files
_MOST_CHARACTERS = 1 << 20


class ClassShare(NamedTuple):
    """A class, and its probability or its share of the pixels, 0 … 1."""

    number: int
    share: float


def stated_names(metadata: Mapping[str, Any]) -> dict[int, str]:
    """Names of classes by index, as the metadata of a file state them; empty if they do not or cannot be read."""
    for key in _KEYS:
        found = metadata.get(key)
        if isinstance(found, str) and len(found) <= _MOST_CHARACTERS:
            found = _parsed(found)
        if isinstance(found, list):
            return {index: str(name) for index, name in enumerate(found)}
        if isinstance(found, dict) and all(str(index).isdigit() for index in found):
            return {int(index): str(name) for index, name in found.items()}
    return {}


def _parsed(text: str) -> Any:
    """A literal of JSON or Python; None if it is neither."""
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return None


def class_name(names: Mapping[int, str], index: int) -> str:
    """The stated name of a class, or its number."""
    return names.get(index, f"class {index}")


def most_probable(output: NDArray[np.float32], count: int = 5) -> list[ClassShare]:
    """The most probable classes, the first one first.

    Args:
        output: of one image, ``1 x C`` with any number of axes of 1 behind: logits, or probabilities, whose sum is 1.
        count: of classes.
    """
    values = output.reshape(-1).astype(np.float64)
    if values.min() < 0 or abs(values.sum() - 1) > 1e-3:
        values = np.exp(values - values.max())
        values /= values.sum()
    order = np.argsort(-values, kind="stable")[:count]
    return [ClassShare(int(index), float(values[index])) for index in order]


def most_pixels(classes: NDArray[np.integer[Any]], count: int = 5) -> list[ClassShare]:
    """The classes of most pixels of a class map, the first one first."""
    found, counts = np.unique(classes, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:count]
    return [ClassShare(int(found[place]), float(counts[place] / classes.size)) for place in order]
