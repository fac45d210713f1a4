"""What a split of labelled images offers, and how messages name its images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import FileError, UsageError
from nnstretch.training.data.preprocessing import Images, Pixels
from nnstretch.training.tasks.base import Targets

if TYPE_CHECKING:
    from torch import Tensor

Indices = NDArray[np.int64]
"""Positions of images in a split, or classes of images: ``N``."""

_NAMED_FILES = 3


class UnreadableImageError(FileError):
    """An image that cannot be decoded. Its message is the image's name and the reason, such as ``a/1.jpg (truncated)``."""


class UnreadableImagesError(FileError):
    """Images of a batch that cannot be decoded, or their targets. Its message names the first few."""


class Split(Protocol):
    """Labelled images with access by index."""

    @property
    def labels(self) -> Indices:
        """The class of every image: int64, ``N``."""

    def __len__(self) -> int:
        """Number of images."""

    def arrays(self, indices: Indices) -> Images:
        """The images at ``indices`` as inputs: ``len(indices) x C x H x W``, contiguous, the caller's to change."""

    def images(self, indices: Tensor) -> Tensor:
        """`arrays` as a tensor; ``indices`` are int64, on the CPU."""

    def targets(self, indices: Indices) -> Targets:
        """What outputs for the images at ``indices`` are compared to: the labels, or what the data set's task says."""

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index`` before it is resized and cropped: uint8 ``H x W x C``, 1 or 3 channels, not to be changed.

        A split that generates images has others in every ``epoch`` (from 0).
        """


class TensorImages:
    """Base class of splits: gives their images as tensors."""

    @property
    def in_memory(self) -> bool:
        """Whether an image costs so little that no other process should load it."""
        return False

    def image_name(self, index: int) -> str:
        """What messages call the image at ``index``: its file, or else its number."""
        return str(index)

    def images(self: Split, indices: Tensor) -> Tensor:
        """`arrays` as a tensor; ``indices`` are int64, on the CPU."""
        import torch

        return torch.from_numpy(self.arrays(indices.numpy()))

    def targets(self: Split, indices: Indices) -> Targets:
        """The labels at ``indices``."""
        return self.labels[indices]

    def raw(self, index: int, epoch: int) -> Pixels:
        """Refuses: the split has preprocessed images only."""
        raise UsageError(
            "these images are preprocessed already; train without scale, aa and color_jitter, which need whole images"
        )


def batches(split: Split, batch: int) -> Iterator[tuple[Images, Targets]]:
    """All images and targets of ``split`` in order, ``batch`` at a time; the last batch may be smaller."""
    if batch < 1:
        raise UsageError(f"a batch of {batch} images was asked for; give 1 or more")
    for start in range(0, len(split), batch):
        indices = np.arange(start, min(start + batch, len(split)))
        yield split.arrays(indices), split.targets(indices)


def image_names(split: Split, indices: Indices, most: int) -> str:
    """What messages call the first images at ``indices``, on one line: their files, where the split has files.

    Args:
        split: with the images; a split without `image_name` has numbers alone.
        indices: of the images.
        most: that are named; `` …`` stands for the others.
    """
    named = getattr(split, "image_name", str)
    return ", ".join(named(index) for index in indices[:most].tolist()) + (" …" if len(indices) > most else "")


def names(things: Sequence[str], separator: str = ", ", most: int = _NAMED_FILES) -> str:
    """The first few of many names and how many more there are, on one line."""
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return f"{separator.join(things[:most])}{more}"
