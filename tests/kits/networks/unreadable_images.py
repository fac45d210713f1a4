"""Whole images of random pixels. Some of them cannot be decoded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nnstretch.training.data.preprocessing import Pixels, Preprocessing
from nnstretch.training.data.split import Dataset, Indices, RawImages, UnreadableImageError, dataset_of


@dataclass(frozen=True, eq=False)
class Made(RawImages):
    """Images of random pixels; those of `bad` cannot be decoded."""

    labels: Indices
    preprocessing: Preprocessing
    bad: frozenset[int] = frozenset()

    def raw(self, index: int, epoch: int) -> Pixels:
        if index in self.bad:
            raise UnreadableImageError(f"{index}.jpg (truncated)")
        generator = np.random.default_rng([index, epoch])
        side, channels = max(self.preprocessing.shape), self.preprocessing.channels
        return generator.integers(0, 256, (int(generator.integers(side, 2 * side)), side + 4, channels), dtype=np.uint8)


def made(count: int = 44, channels: int = 3, bad: frozenset[int] = frozenset(), side: int = 16) -> Dataset:
    """A data set of four classes: `count` training images, four to validate and the same four to test."""
    preprocessing = Preprocessing(side, channels, (0.5,) * channels, (0.25,) * channels)
    split = Made(np.arange(count) % 4, preprocessing, bad)
    held_out = replace(split, labels=split.labels[:4], bad=frozenset())
    return dataset_of("made", ("a", "b", "c", "d"), (split, held_out, held_out))
