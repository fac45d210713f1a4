"""Splits of labelled images, and data sets for classification.

All images are float32 ``N x C x S x S`` tensors, normalised by the data set's mean and standard deviation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nnstretch.errors import UsageError


class Split(Protocol):
    """Labelled images with access by index."""

    @property
    def labels(self) -> Tensor:
        """The class of every image: int64, ``N``."""

    def __len__(self) -> int:
        """Number of images."""

    def images(self, indices: Tensor) -> Tensor:
        """The images at ``indices`` (int64): float32, ``len(indices) x C x S x S``."""


@dataclass(frozen=True)
class Dataset:
    """A data set for classification.

    Attributes:
        name: the text that :func:`load_dataset` read.
        num_classes: number of classes; labels are 0 … ``num_classes - 1``.
        channels: channels of an image.
        image_size: side of the square images in pixels.
        class_names: names of the classes.
        mean, std: statistics of the normalisation of pixels (0 … 1), per channel.
        train, test: disjoint sets of images.
    """

    name: str
    num_classes: int
    channels: int
    image_size: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Split
    test: Split


@dataclass(frozen=True)
class TensorSplit:
    """Images held in memory."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    def images(self, indices: Tensor) -> Tensor:
        """The images at ``indices``."""
        return self.pixels[indices]


def batches(split: Split, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All images and labels of ``split`` in order, ``batch`` at a time; the last batch may be smaller."""
    if batch < 1:
        raise UsageError(f"a batch of {batch} images was asked for; give 1 or more")
    for start in range(0, len(split), batch):
        indices = torch.arange(start, min(start + batch, len(split)))
        yield split.images(indices), split.labels[indices]


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Pixels ``N x C x S x S`` minus ``mean``, divided by ``std``, per channel."""
    shape = (1, -1, 1, 1)
    return (pixels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


def stratified_split(labels: Tensor, test_share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices for training and for testing, both ascending; ``test_share`` of every class goes to the tests."""
    generator = torch.Generator().manual_seed(seed)
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        in_test[members[order[: round(test_share * len(members))]]] = True
    return (~in_test).nonzero().flatten(), in_test.nonzero().flatten()
