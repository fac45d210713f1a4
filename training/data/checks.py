"""What is looked at before the first epoch, so that no training ends in the middle of it.

Validation and test images are decoded as a whole, with their targets. Of all training images the headers of their files are
read, in processes where there are many, and of at most `MOST_TARGETS` of them the targets are decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import UsageError
from nnstretch.support.progress import Progress, silent
from nnstretch.training.data.examination import Depth, Findings, examine
from nnstretch.training.data.split import Dataset, Indices, RawImages, Split, SubsetSplit, names
from nnstretch.training.data.unreadable import refuse_many, without_unreadable
from nnstretch.training.randomness import permutation

MOST_TARGETS = 1000
"""Training images whose targets are decoded."""
_PART = 256  # images between reports
_FEW = 2048  # images that no other process is worth
_NAMED = 10
_HELD_OUT = ("validation", "test")


def checked(dataset: Dataset, workers: int | None = None, progress: Progress = silent) -> Dataset:
    """A data set that a training can use from the first epoch to the last; its note has what is to be said of the images.

    Args:
        dataset: as it was loaded.
        workers: processes that read headers; None: as many as load images.
        progress: called with the number of images.

    Raises:
        FileError: targets do not fit their images or the classes, or too many images cannot be decoded.
        UsageError: validation or test images that the data set brings lack more than half of the classes.
    """
    drawn = {name for name in _HELD_OUT if isinstance(getattr(dataset, name), SubsetSplit)}
    seen: dict[str, set[int]] = {}
    dataset = without_unreadable(dataset, progress=progress, classes=seen)
    seen["train"] = _training_classes(dataset, workers, progress)
    lines = [_absent(dataset, name, seen, is_drawn=name in drawn) for name in _HELD_OUT]
    return replace(dataset, note="; ".join(filter(None, (dataset.note, *lines))))


def check_headers(
    split: Split, classes: int, what: str, workers: int | None = None, progress: Progress = silent
) -> None:
    """Checks that images fit their targets, as far as the headers of their files say it.

    Args:
        split: the images.
        classes: number of classes.
        what: they are for, such as `test`.
        workers: processes that read headers; None: as many as load images.
        progress: called with the number of images.

    Raises:
        FileError: some do not fit; the first few are named.
    """
    if isinstance(split, RawImages) and split.has_headers:
        found = _looked_at(_Examiner(split, classes, np.zeros(len(split), np.bool_)), workers, what, progress)
        found.refuse_faults(len(split), what)


def _training_classes(dataset: Dataset, workers: int | None, progress: Progress) -> set[int]:
    """The classes of the training images, of those whose targets are decoded; their targets fit them.

    Raises:
        FileError: some do not, or too many cannot be read.
    """
    split = dataset.train
    if not isinstance(split, RawImages) or split.spatial_task is None:
        return _labels(split)
    in_full = np.zeros(len(split), np.bool_)
    in_full[permutation(0, 0, len(split), "check")[:MOST_TARGETS]] = True
    found = _looked_at(_Examiner(split, dataset.num_classes, in_full), workers, "training", progress)
    found.refuse_faults(len(split) if split.has_headers else int(in_full.sum()), "training")
    refuse_many(list(found.unreadable.values()), len(split), "training", so_far=True)
    return found.classes


def _labels(split: Split) -> set[int]:
    return set(np.unique(split.labels).tolist())


class _Examiner:
    """From indices to findings.

    Attributes:
        in_full: whether the target of an image is decoded, and the image, too, if it has no headers.
    """

    def __init__(self, split: RawImages, classes: int, in_full: NDArray[np.bool_]) -> None:
        self._split, self._classes, self.in_full = split, classes, in_full

    @property
    def images(self) -> Indices:
        """The images to look at."""
        return np.arange(len(self.in_full)) if self._split.has_headers else np.flatnonzero(self.in_full)

    def __getitem__(self, indices: Indices) -> Findings:
        depth = Depth.TARGETS if self._split.has_headers else Depth.IMAGES
        whole = self.in_full[indices]
        found = examine(self._split, indices[whole].tolist(), self._classes, depth)
        found.merge(examine(self._split, indices[~whole].tolist(), self._classes, Depth.HEADERS))
        return found


def _looked_at(examiner: _Examiner, workers: int | None, what: str, progress: Progress) -> Findings:
    images = examiner.images
    parts = [images[first : first + _PART] for first in range(0, len(images), _PART)]
    whole, done = Findings(), 0
    for part, found in zip(parts, _made(examiner, parts, workers, len(images)), strict=True):
        whole.merge(found)
        done += len(part)
        progress(done, len(images), f"looking at {what} images")
    return whole


def _made(
    examiner: _Examiner, parts: Iterable[Indices], workers: int | None, images: int
) -> Iterator[Findings] | Iterable[Findings]:
    """What is found in parts of the images, by processes if there are many of them."""
    if images <= _FEW or workers == 0:
        return map(examiner.__getitem__, parts)
    from nnstretch.training.data.loader import loaded_by_workers

    return loaded_by_workers(examiner, parts, workers)


def _absent(dataset: Dataset, name: str, seen: Mapping[str, set[int]], *, is_drawn: bool) -> str:
    """What is said of classes of the training images that a split lacks; empty if it lacks none, or they are not known.

    Args:
        dataset: the images.
        name: of the split.
        seen: split -> classes of its targets; of classification, labels say them.
        is_drawn: whether it is a share of the training images.

    Raises:
        UsageError: it lacks more than half of them, and is no such share.
    """
    split = getattr(dataset, name)
    spatial = isinstance(dataset.train, RawImages) and dataset.train.spatial_task is not None
    here = seen.get(name) if spatial else _labels(split)
    if here is None:
        return ""
    missing = sorted(seen["train"] - here)
    if not missing:
        return ""
    titles = [repr(dataset.class_names[number]) for number in missing]
    said = (
        f"{dataset.name}: the {name} images have none of {len(missing)} of the {len(seen['train'])} classes that the training "
        f"images have: {names(titles, most=_NAMED)}"
    )
    if 2 * len(missing) > len(seen["train"]) and not is_drawn:
        raise UsageError(f"{said}; add images of more than half of the classes, or remove the {name} images")
    return said
