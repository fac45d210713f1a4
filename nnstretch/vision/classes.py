"""Names of classes that files state, and the most probable classes of an image."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import ModelError

CLASS_NAMES_KEY = "nnstretch.classes"
"""Key of the metadata with names of classes, as a list or an object of index and name."""
_KEYS = (CLASS_NAMES_KEY, "names")  # the latter is that of YOLO files
_MOST_CHARACTERS = 1 << 20
_CODE = re.compile(r"n?\d+")
_NAMES_SHOWN = 3


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


def compare_names(stated: Mapping[int, str], given: Sequence[str], network: str, data: str) -> str:
    """Compares the names of a network's classes with those of images, which are compared to its answers by their number.

    Spelling is not compared where it is a matter of taste: case, underscores, and codes (numbers, WordNet's `n01440764`) for
    names.

    Args:
        stated: names of the network's classes, by index; empty if they are not known.
        given: names of the classes of the images, in the order of their numbers.
        network: what messages call the network.
        data: what messages call the images.

    Returns:
        A line if some names or their order differ; else empty.

    Raises:
        ModelError: no class of the images is one of the network's.
    """
    numbers = {_spelling(name): index for index, name in stated.items()}
    names = [_spelling(name) for name in given]
    if not numbers or not names or _are_codes(numbers) != _are_codes(names):
        return ""
    if not any(name in numbers for name in names):
        raise ModelError(
            f"no class of {data} ({_first(given)}) is one of {network} ({_first(list(stated.values()))}); give images of its "
            "classes, in folders with their names"
        )
    unknown = [shown for shown, name in zip(given, names, strict=True) if name not in numbers]
    moved = [index for index, name in enumerate(names) if numbers.get(name, index) != index]
    remarks = []
    if unknown:
        remarks.append(f"{network} has no class {_first(unknown)}")
    if len(stated) != len(given):
        remarks.append(f"{data} has {len(given)} classes, {network} names {len(stated)}")
    if moved:
        here = moved[0]
        remarks.append(f"class {here} is {given[here]!r} in {data} and {stated.get(here, 'not named')!r} in {network}")
    return f"classes are compared by their number, and names differ: {'; '.join(remarks)}" if remarks else ""


def _spelling(name: str) -> str:
    return name.casefold().replace("_", " ").strip()


def _are_codes(names: Iterable[str]) -> bool:
    return all(_CODE.fullmatch(name) for name in names)


def _first(names: Sequence[str]) -> str:
    """The first few names, quoted."""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{', '.join(map(repr, names[:_NAMES_SHOWN]))}{more}"


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
