"""Data sets by name: ``NAME`` or ``NAME:ARGUMENT``. Loading this package does not load torch.

A new data set is one module with a function ``load(argument, size, channels, split_seed)`` and one line in `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from nnstretch.training.data.split import Dataset

SOURCES: Mapping[str, str] = {"digits": "digits", "folder": "folder:PATH"}
"""Name of the data set and of its module in this package -> how it is written."""

DEFAULT_SIZE = 64
_MIN_SIZE = 8


def usage() -> str:
    """All data sets as they are written: ``digits or folder:PATH``."""
    *others, last = SOURCES.values()
    return f"{', '.join(others)} or {last}"


def load_dataset(
    source: str, image_size: int | None = None, channels: int | None = None, split_seed: int = 0
) -> Dataset:
    """Loads a data set.

    Args:
        source: a name of `SOURCES` and its argument, if it has one.
        image_size: side of the images in pixels; 64 by default.
        channels: 1 (grey) or 3; the data set's own by default.
        split_seed: draws the split of a data set without a fixed one.

    Raises:
        UsageError: an unknown data set, or an impossible size or number of channels.
        FileError: a folder is missing or has no images.
        MissingExtraError: a library of the data set is not installed.
    """
    size = DEFAULT_SIZE if image_size is None else image_size
    if size < _MIN_SIZE:
        raise UsageError(f"images of {size} x {size} pixels are too small; give {_MIN_SIZE} or more")
    if channels not in {None, 1, 3}:
        raise UsageError(f"{channels} channels were asked for; images have 1 or 3")
    name, _, argument = source.partition(":")
    if name not in SOURCES or (argument and ":" not in SOURCES[name]):
        raise UsageError(f"no data set is called {source!r}; there are {usage()}")
    dataset: Dataset = import_module(f"{__name__}.{name}").load(argument, size, channels, split_seed)
    return dataset
