"""Images and targets looked at before a training: what cannot be read, what does not fit, which classes there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from nnstretch.errors import FileError
from nnstretch.training.data.split import RawImages, UnreadableImageError, names


class Depth(IntEnum):
    """How closely an image is looked at."""

    HEADERS = 0
    """The headers of its files, where it has some (`RawImages.has_headers`)."""
    TARGETS = 1
    """And all of its target."""
    IMAGES = 2
    """All of the image, and of its target."""


@dataclass
class Findings:
    """What was found.

    Attributes:
        unreadable: index and name of images that cannot be decoded, or whose targets cannot.
        faults: what is wrong with others, each with its name.
        classes: of all targets.
    """

    unreadable: dict[int, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    classes: set[int] = field(default_factory=set)

    def merge(self, other: Findings) -> None:
        """Adds what was found elsewhere."""
        self.unreadable |= other.unreadable
        self.faults += other.faults
        self.classes |= other.classes

    def refuse_faults(self, images: int, what: str) -> None:
        """Refuses images with faults; the first few are named.

        Args:
            images: number of those that were looked at.
            what: they are for, such as `training`.

        Raises:
            FileError: there are some.
        """
        if self.faults:
            one = self.faults[0] if len(self.faults) == 1 else ""
            raise FileError(
                one
                or f"{len(self.faults)} of {images} {what} images do not fit their targets: {names(self.faults, '; ')}"
            )


def examine(split: RawImages, indices: Iterable[int], classes: int, depth: Depth) -> Findings:
    """Looks at some images of a split.

    Args:
        split: the images.
        indices: of those that are looked at.
        classes: number of classes of the data set.
        depth: how closely.
    """
    found = Findings()
    for index in indices:
        try:
            fault = split.header_fault(index) if depth < Depth.IMAGES else ""
            fault = fault or _content_fault(split, index, classes, depth, found)
        except UnreadableImageError as error:
            found.unreadable[index] = str(error)
        except FileError as error:  # of the target, which names itself
            found.faults.append(str(error))
        else:
            if fault:
                found.faults.append(f"{split.image_name(index)}: {fault}")
    return found


def _content_fault(split: RawImages, index: int, classes: int, depth: Depth, found: Findings) -> str:
    """What is wrong with what is decoded of an image; empty if nothing is. `found` gets its classes."""
    if depth == Depth.HEADERS:
        return ""
    raw = split.raw(index, 0) if depth == Depth.IMAGES else None
    target, task = split.target(index, 0), split.spatial_task
    if task is None:
        return ""
    own = task.classes_in(target).tolist()
    found.classes.update(own)
    wrong = [number for number in own if not 0 <= number < classes]
    if wrong:
        return f"its target has the class {wrong[0]}; 0 to {classes - 1} are wanted"
    return "" if raw is None else task.check_size(target, *raw.shape[:2])
