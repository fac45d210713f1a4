"""Images of the accuracy study: those of the data set `textures`, generated once and kept in files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.support.settings import atomic_write
from nnstretch.training.data import load_dataset
from nnstretch.training.data.preprocessing import Images, Pixels, Preprocessing
from nnstretch.training.data.sources.textures import TextureSplit
from nnstretch.training.data.split import Dataset, ImagesInMemory, Indices, RawImages

_LOOKED_AT = 44


@dataclass(frozen=True, eq=False)
class StoredSplit(ImagesInMemory):
    """Generated images; those of an epoch are generated at their first use.

    Attributes:
        labels: the class of every image.
        preprocessing: of the generated images.
        source: generates them.
        folder: one file per epoch.
    """

    labels: Indices
    preprocessing: Preprocessing
    source: TextureSplit
    folder: Path
    _open: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``."""
        pixels: Pixels = self._epoch(epoch)[index]
        return pixels

    def arrays(self, indices: Indices) -> Images:
        """The images at ``indices`` of the first epoch, as inputs."""
        return self.preprocessing.normalised(self._epoch(0)[indices])

    def _epoch(self, epoch: int) -> NDArray[np.uint8]:
        """All images of an epoch: ``N x S x S x 3``."""
        epoch = epoch if self.source.endless else 0
        if epoch not in self._open:
            path = self.folder / f"epoch-{epoch}.npy"
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as file:
                    np.save(file, np.stack([self.source.raw(index, epoch) for index in range(len(self))]))
            self._open[epoch] = np.load(path, mmap_mode="r")
        return self._open[epoch]


def stored_textures(
    folder: Path, size: int, epoch_images: int, held_out: int | None = None, data: str = "textures"
) -> Dataset:
    """The data set `textures` with images kept in a folder.

    Args:
        folder: of the files, with a folder for every size, number and look of images.
        size: side of the images.
        epoch_images: training images per epoch.
        held_out: number of validation images and of test images; None: all.
        data: "textures" or "textures:CLASSES".
    """
    dataset = load_dataset(data, size)
    splits: dict[str, Any] = {}
    for name, count in (("train", epoch_images), ("validation", held_out), ("test", held_out)):
        source = getattr(dataset, name)
        assert isinstance(source, TextureSplit)
        source = replace(source, labels=source.labels[:count])
        kind = f"{name}-{size}-{len(source)}-{look(source)}"
        splits[name] = StoredSplit(source.labels, source.preprocessing, source, folder / kind)
    return replace(dataset, **splits)


def look(source: RawImages) -> str:
    """A text that changes with patterns and difficulty of generated images, and not with the last bits of sines."""
    levels = (source.raw(index, 0).mean() for index in range(min(_LOOKED_AT, len(source))))
    return hashlib.sha256(" ".join(f"{level:.0f}" for level in levels).encode()).hexdigest()[:8]
