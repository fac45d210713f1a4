"""``module.py:factory``: a function of the user's that returns a `Dataset`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.errors import NNStretchError, UsageError, first_line, place_in
from nnstretch.frontends.resolve import import_file
from nnstretch.support.image_size import ImageSize
from nnstretch.training.data.split import Dataset
from nnstretch.training.data.unreadable import inputs_to_learn_from


def load(source: str, size: ImageSize | None, channels: int | None, split_seed: int) -> Dataset:
    """What a factory returns.

    Args:
        source: ``module.py:factory``. The function may have parameters `image_size` (the side of squares, or height
            and width), `channels` and `split_seed`.
        size: of the images; None leaves it to the factory.
        channels: of an image; None leaves it to the factory.
        split_seed: draws splits.

    Raises:
        UsageError: there is no such function, or it returns something else or images of another form.
        ModelError: the file cannot be imported.
    """
    file, _, name = source.rpartition(":")
    if source.endswith(".py"):
        raise UsageError(f"{source} does not say which function makes the data set; write {source}:FACTORY")
    factory = getattr(import_file(Path(file)), name, None)
    if not callable(factory):
        raise UsageError(
            f"{file} has no function {name!r}; write FILE.py:FACTORY with a function that returns a Dataset"
        )
    dataset = _called(factory, source, {"image_size": size, "channels": channels, "split_seed": split_seed})
    if not isinstance(dataset, Dataset):
        raise UsageError(
            f"{source} returned {type(dataset).__name__}; it must return a Dataset (nnstretch.training.data.split)"
        )
    dataset = _adapted(replace(dataset, name=source), size, channels)
    _check_images(dataset)
    return dataset


def _called(factory: Any, source: str, values: dict[str, Any]) -> Any:
    """What the factory returns, called with those of its parameters that have a value here."""
    try:
        parameters = inspect.signature(factory).parameters
        given = {name: value for name, value in values.items() if name in parameters and value is not None}
        inspect.signature(factory).bind(**given)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{source} cannot be called with image_size, channels and split_seed alone ({error}); wrap it in a function"
        ) from error
    try:
        return factory(**given)
    except NNStretchError:
        raise
    except (Exception, SystemExit) as error:
        place = place_in(Path(source.rpartition(":")[0]), error)
        raise UsageError(
            f"{source} fails{place} with {type(error).__name__}: {first_line(error)}; mend it there"
        ) from error


def _adapted(dataset: Dataset, size: ImageSize | None, channels: int | None) -> Dataset:
    """The data set with images of a size, where its preprocessing can be changed."""
    if channels not in {None, dataset.channels}:
        raise UsageError(
            f"{dataset.name} has images of {dataset.channels} channels, {channels} are wanted; change the factory"
        )
    if size in {None, dataset.image_size}:
        return dataset
    assert size is not None
    return dataset.preprocessed(replace(dataset.preprocessing, image_size=size))


def _check_images(dataset: Dataset) -> None:
    for name in ("train", "validation"):
        split = getattr(dataset, name)
        if not len(split):
            raise UsageError(f"{dataset.name}: {name} has no images")
    found = inputs_to_learn_from(dataset.train, np.arange(1))
    wanted = (1, dataset.channels, *dataset.preprocessing.shape)
    if found.shape != wanted or found.dtype != np.float32:
        raise UsageError(
            f"{dataset.name}: an image is {found.dtype} {list(found.shape)}; float32 {list(wanted)} is wanted"
        )
