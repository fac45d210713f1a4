"""Data sets by name: ``NAME``, ``NAME:ARGUMENT`` or ``module.py:factory``. Loading this package does not load torch.

A new data set is one module of `sources` with ``load(argument, size, channels, split_seed)`` and one line in `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.errors import UsageError
from nnstretch.support.extras import extras_named
from nnstretch.support.image_size import LEAST_SIDE, ImageSize, as_image_size, sides, size_text

if TYPE_CHECKING:
    from nnstretch.training.data.preprocessing import Preprocessing
    from nnstretch.training.data.split import Dataset

SOURCES: Mapping[str, str] = {
    "digits": "digits",
    "textures": "textures[:CLASSES]",
    "shapes": "shapes:TARGETS",
    "folder": "folder:PATH",
    "shards": "shards:PATTERN",
    "cifar10": "cifar10:PATH",
    "cifar100": "cifar100:PATH",
    "masks": "masks:PATH",
    "coco": "coco:PATH",
}
"""Name of the data set and of its module in `sources` -> how it is written."""

_DENSE = frozenset({"masks", "coco", "shapes"})
DEFAULT_SIZE = 64
_FACTORY = "FILE.py:FACTORY"


def usage() -> str:
    """All data sets as they are written: ``digits, folder:PATH or FILE.py:FACTORY``."""
    return f"{', '.join(SOURCES.values())} or {_FACTORY}"


@extras_named()
def load_dataset(
    source: str,
    image_size: ImageSize | None = None,
    channels: int | None = None,
    split_seed: int = 0,
    *,
    crop_pct: float | None = None,
    preprocessing: Preprocessing | None = None,
) -> Dataset:
    """Loads a data set.

    Args:
        source: a name of `SOURCES` and its argument, if it has one, or ``module.py:factory``.
        image_size: side of the images in pixels, or height and width; 64 by default, or what a factory chooses.
        channels: 1 (grey) or 3; the data set's own by default.
        split_seed: draws the splits that the data set does not fix.
        crop_pct: side of the images over that of what whole ones cover, where these are cropped.
        preprocessing: that of a trained network, in the place of the data set's own; `image_size` goes before its size.

    Raises:
        UsageError: an unknown data set, an impossible size or number of channels, or labels out of range.
        FileError: a file or folder is missing, or has no images.
        MissingExtraError: a library of the data set is not installed.
    """
    if image_size is not None:
        image_size = as_image_size(image_size)
    if preprocessing is not None:
        if image_size is not None:
            preprocessing = replace(preprocessing, image_size=image_size)
        image_size, channels = preprocessing.image_size, preprocessing.channels
    check_shape(image_size, channels)
    dataset = _loaded(source, image_size, channels, split_seed)
    preprocessing = preprocessing or dataset.preprocessing
    if crop_pct is not None and preprocessing.crop_pct < 1:
        preprocessing = replace(preprocessing, crop_pct=crop_pct)
    dataset = dataset.preprocessed(preprocessing)
    _check_labels(dataset)
    return dataset


def check_shape(image_size: ImageSize | None, channels: int | None) -> None:
    """Refuses shapes that no image has; None stands for a data set's own.

    Raises:
        UsageError: the images would be too small, or have neither 1 nor 3 channels.
    """
    if image_size is not None and min(sides(image_size)) < LEAST_SIDE:
        raise UsageError(f"images of {size_text(image_size)} pixels are too small; give sides of {LEAST_SIDE} or more")
    if channels not in {None, 1, 3}:
        raise UsageError(f"{channels} channels were asked for; images have 1 or 3")


def _loaded(source: str, size: ImageSize | None, channels: int | None, split_seed: int) -> Dataset:
    name, _, argument = source.partition(":")
    if _is_factory(source):
        name, argument = "factory", source
    elif not names_data_set(source):
        meant = f"write folder:{source} for the images in that folder; " if Path(source).is_dir() else ""
        if name in SOURCES:
            meant = f"{name} takes nothing behind a colon; "
        raise UsageError(f"no data set is called {source!r}; {meant}there are {usage()}")
    else:
        size = DEFAULT_SIZE if size is None else size
    dataset: Dataset = import_module(f"{__name__}.sources.{name}").load(argument, size, channels, split_seed)
    return dataset


def names_data_set(source: str) -> bool:
    """Whether a text is written as a data set; whether there is one is not looked at."""
    name, _, argument = source.partition(":")
    return _is_factory(source) or (name in SOURCES and not (argument and ":" not in SOURCES[name]))


def names_dense_data(source: str) -> bool:
    """Whether a text names images of the project's sources whose targets are masks or boxes."""
    return source.partition(":")[0] in _DENSE and not _is_factory(source)


def _is_factory(source: str) -> bool:
    return source.endswith(".py") or source.rpartition(":")[0].endswith(".py")


def _check_labels(dataset: Dataset) -> None:
    """Refuses labels that are no classes.

    Raises:
        UsageError: one is out of range, or their number is not that of the images.
    """
    import numpy as np  # `nnstretch --help` loads this module, and need not load numpy

    for name in ("train", "validation", "test"):
        split = getattr(dataset, name)
        labels = np.asarray(split.labels)
        if labels.shape != (len(split),) or labels.dtype != np.int64:
            raise UsageError(
                f"{dataset.name}: {name} has labels {labels.dtype} {list(labels.shape)} for {len(split)} images; "
                f"int64 [{len(split)}] is wanted"
            )
        wrong = np.flatnonzero((labels < 0) | (labels >= dataset.num_classes))
        if len(wrong):
            raise UsageError(
                f"{dataset.name}: image {wrong[0]} of {name} has the label {labels[wrong[0]]}; "
                f"0 to {dataset.num_classes - 1} are wanted"
            )
