"""Draws validation and test images from training images where a data set has no others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnstretch.training.data.split.base import Indices
from nnstretch.training.data.split.raw import RawImages

_HELD_OUT_SHARE = 0.1
"""Share of the training images that validate, and of those that test, where the data set has no such images."""


def held_out(
    train: RawImages, given: Mapping[str, RawImages], split_seed: int, source: str
) -> tuple[tuple[RawImages, RawImages, RawImages], str]:
    """Training, validation and test images where the data set may lack some of them.

    Where one of two is given, it is the test split, as with ImageNet, and the validation split is a stratified share of the
    training images. Where none is given, so is the test split.

    Args:
        train: all images to learn from.
        given: the other splits by name, in this order: validation, `test`.
        split_seed: draws the shares.
        source: the data set, for the note.

    Returns:
        The three splits, and how they were made in one line; empty if all were given.
    """
    if len(given) == 2:
        validation, test = given.values()
        return (train, validation, test), ""
    absent = "val and test"
    said = ""
    if given:
        ((name, test),) = given.items()
        said, absent = f"{name} is the test split; ", "val" if name == "test" else "test"
    else:
        kept, chosen = stratified_split(train.labels, _HELD_OUT_SHARE, split_seed + 1, at_least=1)
        train, test = train.subset(kept), train.subset(chosen)
    kept, chosen = stratified_split(train.labels, _HELD_OUT_SHARE, split_seed, at_least=1)
    train, validation = train.subset(kept), train.subset(chosen)
    also = "" if given else f" and {len(test)} the test split"
    note = f"{said}{len(validation)} of the training images are the validation split{also}"
    return (train, validation, test), f"{source}: {note} (add {absent} to choose them)"


def stratified_split(labels: Indices, share: float, seed: int, at_least: int = 0) -> tuple[Indices, Indices]:
    """Splits images into two sets with the same shares of classes.

    Args:
        labels: the class of every image.
        share: share of every class that goes to the second set.
        seed: of the draw.
        at_least: minimum number of images of a class in the second set. With 1 or more, the first set keeps at least
            one image of every class.

    Returns:
        Indices of the first and of the second set, both ascending.
    """
    # The legacy generator: its numbers are the same in every version of numpy, so no network is ever tested on images
    # that another version gave it for training.
    generator = np.random.RandomState(seed % 2**32)
    in_second = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = round(share * len(members))
        if at_least:
            count = min(max(count, at_least), len(members) - 1)
        in_second[members[_shuffled(len(members), generator)[:count]]] = True
    return np.flatnonzero(~in_second), np.flatnonzero(in_second)


def _shuffled(count: int, generator: np.random.RandomState) -> list[int]:
    """0 … ``count - 1`` in random order: the permutation that ``torch.randperm`` draws from the same seed."""
    order = list(range(count))
    words = generator.randint(0, 2**32, size=max(count - 1, 0), dtype=np.uint32).tolist()
    for position, word in enumerate(words):
        other = position + word % (count - position)
        order[position], order[other] = order[other], order[position]
    return order
