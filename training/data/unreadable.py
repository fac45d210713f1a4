"""Images that cannot be decoded: a network learns from others in their place, and is evaluated without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from nnstretch.errors import FileError
from nnstretch.support.progress import Progress, silent
from nnstretch.training.cores import usable_cores
from nnstretch.training.data.examination import Depth, Findings, examine
from nnstretch.training.data.preprocessing import Images, Pixels
from nnstretch.training.data.split import Dataset, Indices, RawImages, Split, UnreadableImageError, names

_MOST = 0.05
_MOST_THREADS = 16
_AT_ONCE = 256


def refuse_many(unreadable: Sequence[str], images: int, what: str, *, so_far: bool = False) -> None:
    """Refuses a split with too many unreadable images; a single one is never too many.

    Args:
        unreadable: their names.
        images: number of images of the split.
        what: they are for, such as `training`.
        so_far: whether there may be others, which were not looked at yet.

    Raises:
        FileError: more than 5 % of the images cannot be decoded.
    """
    if len(unreadable) > max(1, _MOST * images):
        raise FileError(
            f"{'at least ' if so_far else ''}{len(unreadable)} of {images} {what} images cannot be decoded, more than "
            f"{_MOST:.0%}: {names(unreadable)}; replace or remove them"
        )


def readable_sample(split: Split, index: int, epoch: int, unreadable: dict[int, str]) -> tuple[Pixels, Any]:
    """The image at `index` and its target, or the next image of its class that can be decoded.

    Args:
        split: with the image.
        index: of the image.
        epoch: from 0.
        unreadable: gets index and name of the images that cannot be decoded.

    Raises:
        FileError: no image of the class can be decoded.
    """
    try:
        return _sample(split, index, epoch)
    except UnreadableImageError as error:
        unreadable[index] = str(error)
    members = np.flatnonzero(split.labels == split.labels[index])
    others = np.roll(members, -int(np.searchsorted(members, index)) - 1)[:-1]
    tried = [unreadable[index]]
    for other in others.tolist():
        try:
            return _sample(split, other, epoch)
        except UnreadableImageError as error:
            unreadable[other] = str(error)
            tried.append(str(error))
    what = split.class_text(index) if isinstance(split, RawImages) else f"class {split.labels[index]}"
    raise FileError(f"no image of {what} can be decoded: {names(tried)}; replace them, or remove the class")


def _sample(split: Split, index: int, epoch: int) -> tuple[Pixels, Any]:
    """An image and its target; other splits than those of whole images have labels only."""
    raw = split.raw(index, epoch)
    return raw, split.target(index, epoch) if isinstance(split, RawImages) else split.labels[index]


def replaced_note(unreadable: Mapping[int, str], images: int, what: str = "training") -> str:
    """What is said of images that others have replaced; one line, or empty.

    Args:
        unreadable: index and name of those that cannot be decoded.
        images: number of all images.
        what: they are for.
    """
    if not unreadable:
        return ""
    return (
        f"{len(unreadable)} of {images} {what} images cannot be decoded, and others of their classes took their place: "
        f"{names([name for _, name in sorted(unreadable.items())])}"
    )


def inputs_to_learn_from(split: Split, indices: Indices, unreadable: dict[int, str] | None = None) -> Images:
    """`Split.arrays`, with other images of their classes in the place of those that cannot be decoded.

    Args:
        split: with the images.
        indices: of the images.
        unreadable: gets index and name of the images that cannot be decoded.

    Raises:
        FileError: no image of a class can be decoded.
    """
    if not isinstance(split, RawImages):
        return split.arrays(indices)
    unreadable = {} if unreadable is None else unreadable
    preprocessing = split.preprocessing
    pixels = [preprocessing.pixels(readable_sample(split, index, 0, unreadable)[0]) for index in indices.tolist()]
    return preprocessing.normalised(np.stack(pixels))


def without_unreadable(
    dataset: Dataset,
    splits: Sequence[str] = ("validation", "test"),
    progress: Progress = silent,
    classes: dict[str, set[int]] | None = None,
) -> Dataset:
    """A data set whose images for evaluations can all be decoded; its note names those that are left out.

    All of them are decoded once, so that no training ends at its first evaluation, or after its last.

    Args:
        dataset: with the images.
        splits: names of the splits that are looked at.
        progress: called with the number of images.
        classes: gets the classes of the targets of each of these splits, where targets lie in the images.

    Raises:
        FileError: more than 5 % of a split cannot be decoded, or a target does not fit its image or the classes.
    """
    kept: dict[str, Any] = {}
    lines = []
    for name in splits:
        split = getattr(dataset, name)
        if not isinstance(split, RawImages) or not split.may_be_unreadable:
            continue
        found = _looked_through(split, dataset.num_classes, name, progress)
        found.refuse_faults(len(split), name)
        if classes is not None and split.spatial_task is not None:
            classes[name] = found.classes
        bad = found.unreadable
        if not bad:
            continue
        refuse_many(list(bad.values()), len(split), name)
        kept[name] = split.subset(np.setdiff1d(np.arange(len(split)), np.array(list(bad), np.int64)))
        lines.append(
            f"{len(bad)} of {len(split)} {name} images cannot be decoded and are left out: {names(list(bad.values()))}"
        )
    return replace(dataset, **kept, note="; ".join(filter(None, (dataset.note, *lines)))) if kept else dataset


def refuse_unreadable(split: Split, classes: int, what: str) -> None:
    """Refuses a split with images that cannot be decoded, or without readable targets; the first few are named.

    Args:
        split: looked through as a whole.
        classes: number of classes.
        what: it is for, such as `test`.

    Raises:
        FileError: there are some, or targets that do not fit their images or the classes.
    """
    if not isinstance(split, RawImages):
        return
    found = _looked_through(split, classes, what, silent)
    found.refuse_faults(len(split), what)
    bad = list(found.unreadable.values())
    if bad:
        raise FileError(
            f"{len(bad)} of {len(split)} {what} images cannot be decoded: {names(bad)}; replace or remove them, or leave them "
            "out by --skip-unreadable"
        )


def _looked_through(split: RawImages, classes: int, what: str, progress: Progress) -> Findings:
    """What is found in all images of a split, each decoded with its target."""
    found = Findings()
    indices = iter(range(len(split)))
    with ThreadPoolExecutor(min(_MOST_THREADS, usable_cores())) as pool:
        while part := list(islice(indices, _AT_ONCE)):
            for one in pool.map(lambda index: examine(split, [index], classes, Depth.IMAGES), part):
                found.merge(one)
            progress(part[-1] + 1, len(split), f"decoding {what} images")
    return found
