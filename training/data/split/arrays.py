"""Splits of inputs that lie in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nnstretch.errors import UsageError
from nnstretch.training.data.preprocessing import Images, Pixels, Preprocessing, normalise
from nnstretch.training.data.split.base import Indices, TensorImages


@dataclass(frozen=True)
class ArraySplit(TensorImages):
    """Inputs held in memory.

    Attributes:
        pixels: the inputs.
        labels: their classes.
        preprocessing: that made them; None where it is not known.
    """

    pixels: Images
    labels: Indices
    preprocessing: Preprocessing | None = None

    @property
    def in_memory(self) -> bool:
        """It is."""
        return True

    def __len__(self) -> int:
        return len(self.labels)

    def arrays(self, indices: Indices) -> Images:
        """The images at ``indices``."""
        return np.take(self.pixels, indices, axis=0)

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``, of the size that inputs have."""
        if self.preprocessing is None:
            return super().raw(index, epoch)
        whole: Pixels = self.preprocessing.denormalised(self.pixels[index : index + 1])[0]
        return whole

    def preprocessed(self, preprocessing: Preprocessing) -> ArraySplit:
        """The same images with another preprocessing: the inputs so far are taken for whole images.

        Raises:
            UsageError: the preprocessing so far is not known.
        """
        before = self.preprocessing
        if before is None:
            raise UsageError("images in memory without a preprocessing cannot be given another one")
        if before == preprocessing:
            return self
        if replace(before, mean=preprocessing.mean, std=preprocessing.std) == preprocessing:
            mean, std = (np.array(values, np.float32).reshape(1, -1, 1, 1) for values in (before.mean, before.std))
            pixels = normalise(self.pixels * std + mean, preprocessing.mean, preprocessing.std)
        else:
            whole = before.denormalised(self.pixels)
            pixels = preprocessing.normalised(np.stack([preprocessing.pixels(image) for image in whole]))
        return ArraySplit(pixels, self.labels, preprocessing)
