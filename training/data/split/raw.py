"""Splits of whole images, which a preprocessing makes inputs of when they are asked for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nnstretch.training.data.preprocessing import Images, Pixels, Preprocessing
from nnstretch.training.data.split.base import (
    Indices,
    TensorImages,
    UnreadableImageError,
    UnreadableImagesError,
    names,
)
from nnstretch.training.tasks.base import SpatialTask, Targets

_DECODER_THREADS = 4


class RawImages(TensorImages):
    """Base class of splits that are whole images and a preprocessing. A subclass is a frozen dataclass and defines `raw`.

    Attributes:
        labels: the class of every image.
        preprocessing: makes inputs of them.
    """

    labels: Indices
    preprocessing: Preprocessing

    @property
    def may_be_unreadable(self) -> bool:
        """Whether `raw` can fail: the images are decoded."""
        return True

    def __len__(self) -> int:
        return len(self.labels)

    def class_text(self, index: int) -> str:
        """The class of an image, as messages name it."""
        return f"class {self.labels[index]}"

    def arrays(self, indices: Indices) -> Images:
        """The images at ``indices`` as inputs: ``len(indices) x C x height x width``.

        Raises:
            UnreadableImagesError: images that cannot be decoded; the first few are named.
        """
        if self.in_memory or len(indices) < 2:
            decoded = [self._pixels(index) for index in indices.tolist()]
        else:
            with ThreadPoolExecutor(_DECODER_THREADS) as pool:
                decoded = list(pool.map(self._pixels, indices.tolist()))
        bad = [outcome for outcome in decoded if isinstance(outcome, str)]
        if bad:
            raise UnreadableImagesError(f"cannot read {names(bad, '; ')}; replace or remove what is no whole image")
        shape = *self.preprocessing.shape, self.preprocessing.channels
        pixels = np.stack(decoded) if decoded else np.empty((0, *shape), np.uint8)
        return self.preprocessing.normalised(pixels)

    def target(self, index: int, epoch: int) -> Any:
        """The target of the whole image at ``index``: its label, or what the data set's task says.

        Raises:
            UnreadableImageError: it cannot be read.
        """
        return int(self.labels[index])

    @property
    def spatial_task(self) -> SpatialTask | None:
        """What says what the targets are, if they lie in the images."""
        return None

    @property
    def has_headers(self) -> bool:
        """Whether `header_fault` finds targets that do not fit their images."""
        return False

    def header_fault(self, index: int) -> str:
        """Why the target of the image at ``index`` cannot be its own, as the headers of files say; empty if it can.

        Raises:
            UnreadableImageError: a header cannot be read.
        """
        return ""

    def _pixels(self, index: int) -> Pixels | str:
        """``height x width x C`` pixels, or the image's name and why it cannot be read."""
        try:
            return self.preprocessing.pixels(self.raw(index, 0))
        except UnreadableImageError as error:
            return str(error)

    def preprocessed(self, preprocessing: Preprocessing) -> RawImages:
        """The same images with another preprocessing."""
        return replace(self, preprocessing=preprocessing)  # type: ignore[type-var]

    def subset(self, indices: Indices) -> SubsetSplit:
        """The split of the images at ``indices``."""
        return SubsetSplit(self, indices, self.labels[indices], self.preprocessing)


class ImagesInMemory(RawImages):
    """Base class of splits whose images need no decoding: reading them costs little and cannot fail."""

    @property
    def in_memory(self) -> bool:
        """They are."""
        return True

    @property
    def may_be_unreadable(self) -> bool:
        """They cannot."""
        return False


@dataclass(frozen=True, eq=False)
class SubsetSplit(RawImages):
    """Some images of a split.

    Attributes:
        whole: the split.
        indices: of the images in it.
        labels: the class of every image.
        preprocessing: makes inputs of them.
    """

    whole: RawImages
    indices: Indices
    labels: Indices
    preprocessing: Preprocessing

    @property
    def in_memory(self) -> bool:
        """Whether an image costs so little that no other process should load it."""
        return self.whole.in_memory

    @property
    def may_be_unreadable(self) -> bool:
        """Whether `raw` can fail."""
        return self.whole.may_be_unreadable

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``."""
        return self.whole.raw(int(self.indices[index]), epoch)

    def image_name(self, index: int) -> str:
        """That of the image in the whole split."""
        return self.whole.image_name(int(self.indices[index]))

    def class_text(self, index: int) -> str:
        """As in the whole split."""
        return self.whole.class_text(int(self.indices[index]))

    def target(self, index: int, epoch: int) -> Any:
        """The target of the image at ``index``."""
        return self.whole.target(int(self.indices[index]), epoch)

    @property
    def spatial_task(self) -> SpatialTask | None:
        """That of the whole split."""
        return self.whole.spatial_task

    @property
    def has_headers(self) -> bool:
        """Whether the whole split has."""
        return self.whole.has_headers

    def header_fault(self, index: int) -> str:
        """What the whole split says."""
        return self.whole.header_fault(int(self.indices[index]))

    def targets(self, indices: Indices) -> Targets:
        """The targets of the inputs at ``indices``."""
        return self.whole.targets(self.indices[indices])

    def preprocessed(self, preprocessing: Preprocessing) -> SubsetSplit:
        """The same images with another preprocessing."""
        return replace(self, whole=self.whole.preprocessed(preprocessing), preprocessing=preprocessing)


@dataclass(frozen=True, eq=False)
class SpatialImages(RawImages):
    """Base class of splits with targets that lie in the images. A subclass defines `raw` and `target`.

    Attributes:
        preprocessing: makes inputs of the images.
        task: says what the targets are.
        labels: 0 for every image.
    """

    preprocessing: Preprocessing
    task: SpatialTask
    labels: Indices

    @property
    def spatial_task(self) -> SpatialTask:
        """The task."""
        return self.task

    def targets(self, indices: Indices) -> Targets:
        """The targets of the inputs at ``indices``.

        Raises:
            UnreadableImagesError: targets that cannot be read; the first few are named.
        """
        found, bad = [], []
        for index in indices.tolist():
            try:
                found.append(self.task.fitted(self.target(index, 0), self.preprocessing))
            except UnreadableImageError as error:
                bad.append(str(error))
        if bad:
            raise UnreadableImagesError(f"cannot read {names(bad, '; ')}; replace or remove them")
        return self.task.collated(found)
