"""Images of the accuracy studies: those of the data sets `textures` and `shapes`, generated once and kept in files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import FileError
from nnstretch.support.locks import locked
from nnstretch.support.settings import atomic_write
from nnstretch.training.cores import usable_cores
from nnstretch.training.data import load_dataset
from nnstretch.training.data.preprocessing import Images, Pixels, Preprocessing
from nnstretch.training.data.sources.shapes import ShapeSplit
from nnstretch.training.data.sources.textures import TextureSplit
from nnstretch.training.data.split import Dataset, ImagesInMemory, Indices, RawImages, SpatialImages

_LOOKED_AT = 44
_LOCK = ".lock"


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """The images of a split that generates them, in files; those of an epoch are generated at their first use.

    Attributes:
        source: generates them.
        folder: one file per epoch.
    """

    source: TextureSplit | ShapeSplit
    folder: Path
    _open: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def epoch(self, epoch: int) -> NDArray[np.uint8]:
        """All images of an epoch: ``N x S x S x 3``."""
        epoch = epoch if self.source.endless else 0
        if epoch not in self._open:
            if not self.file(epoch).exists():
                self.write(epoch)
            self._open[epoch] = np.load(self.file(epoch), mmap_mode="r")
        return self._open[epoch]

    def missing(self, epochs: int) -> Iterator[int]:
        """Those of the first epochs whose images have no file."""
        for epoch in range(epochs if self.source.endless else 1):
            if not self.file(epoch).exists():
                yield epoch

    def file(self, epoch: int) -> Path:
        """The file of an epoch."""
        return self.folder / f"epoch-{epoch}.npy"

    def write(self, epoch: int) -> None:
        """Generates the images of an epoch and writes its file.

        Raises:
            FileError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.file(epoch)) as file:
            np.save(file, np.stack([self.source.raw(index, epoch) for index in range(len(self.source))]))


@dataclass(frozen=True, eq=False)
class StoredSplit(ImagesInMemory):
    """Generated images of classes.

    Attributes:
        labels: the class of every image.
        preprocessing: of the generated images.
        files: their files.
    """

    labels: Indices
    preprocessing: Preprocessing
    files: ImageFiles

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``."""
        pixels: Pixels = self.files.epoch(epoch)[index]
        return pixels

    def arrays(self, indices: Indices) -> Images:
        """The images at ``indices`` of the first epoch, as inputs."""
        return self.preprocessing.normalised(self.files.epoch(0)[indices])


@dataclass(frozen=True, eq=False)
class StoredScenes(ImagesInMemory, SpatialImages):
    """Generated images with boxes or masks, which cost little to draw and are not stored.

    Attributes:
        files: of the images.
    """

    files: ImageFiles

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``."""
        pixels: Pixels = self.files.epoch(epoch)[index]
        return pixels

    def target(self, index: int, epoch: int) -> Any:
        """Its boxes or mask."""
        return self.files.source.target(index, epoch)


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
    return _stored(load_dataset(data, size), folder, "", (epoch_images, held_out, held_out))


def stored_shapes(
    folder: Path, size: int, epoch_images: int, held_out: int | None = None, targets: str = "boxes"
) -> Dataset:
    """The data set `shapes` with images kept in a folder: the same files for boxes and masks.

    Args:
        folder: of the files, with a folder for every size, number and look of images.
        size: side of the images.
        epoch_images: training images per epoch.
        held_out: number of validation images and of test images; None: all.
        targets: "boxes" or "masks".
    """
    return _stored(load_dataset(f"shapes:{targets}", size), folder, "shapes-", (epoch_images, held_out, held_out))


def _stored(dataset: Dataset, folder: Path, prefix: str, counts: Sequence[int | None]) -> Dataset:
    """A generated data set whose splits, with the first images of each, have files."""
    splits: dict[str, Any] = {name: _split(files) for name, files in _files(dataset, folder, prefix, counts)}
    return replace(dataset, **splits)


def _split(files: ImageFiles) -> StoredSplit | StoredScenes:
    source = files.source
    if isinstance(source, ShapeSplit):
        return StoredScenes(source.preprocessing, source.task, source.labels, files)
    return StoredSplit(source.labels, source.preprocessing, files)


def _files(
    dataset: Dataset, folder: Path, prefix: str, counts: Sequence[int | None]
) -> Iterator[tuple[str, ImageFiles]]:
    """Name and files of every split of a generated data set, with its first images."""
    for name, count in zip(("train", "validation", "test"), counts, strict=True):
        source = getattr(dataset, name)
        assert isinstance(source, TextureSplit | ShapeSplit)
        source = replace(source, labels=source.labels[:count])
        kind = f"{prefix}{name}-{source.preprocessing.shape[0]}-{len(source)}-{look(source)}"
        yield name, ImageFiles(source, folder / kind)


class _Missing:
    """Files of images that are to be written, for the workers of a data loader: they end with their parent."""

    def __init__(self, dataset: Dataset, epochs: int) -> None:
        splits = (dataset.test, dataset.validation, dataset.train)
        self._places = [
            (split.files, epoch)
            for split in splits
            if isinstance(split, StoredSplit | StoredScenes)
            for epoch in split.files.missing(epochs)
        ]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> FileError | None:
        """Writes a file; returns what the caller is to raise."""
        files, epoch = self._places[number]
        try:
            files.write(epoch)
        except FileError as error:
            return error
        return None


def generate(dataset: Dataset, folder: Path, epochs: int) -> None:
    """Writes the images of the first epochs and those held out, where they have no files, by all cores.

    Processes that share the folder take turns, so that each file is written once.

    Args:
        dataset: of `stored_textures` or `stored_shapes`.
        folder: of its files.
        epochs: number of epochs.

    Raises:
        FileError: a file cannot be written.
    """
    if not len(_Missing(dataset, epochs)):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("ab") as lock, locked(lock):
        missing = _Missing(dataset, epochs)  # another process may have written them meanwhile
        if len(missing):
            _write_all(missing)


def _write_all(missing: _Missing) -> None:
    """Writes files, by all cores."""
    import torch
    from torch.utils.data import DataLoader

    from nnstretch.training.data.loader import leave_signals

    workers: DataLoader[FileError | None] = DataLoader(
        missing,  # type: ignore[arg-type]
        batch_size=None,
        num_workers=min(usable_cores(), len(missing)),
        multiprocessing_context="fork",
        worker_init_fn=leave_signals,
        generator=torch.Generator(),  # else it draws from torch's global generator
    )
    for error in workers:
        if error is not None:
            raise error


def look(source: RawImages) -> str:
    """A text that changes with patterns and difficulty of generated images, and not with the last bits of sines."""
    levels = (source.raw(index, 0).mean() for index in range(min(_LOOKED_AT, len(source))))
    return hashlib.sha256(" ".join(f"{level:.0f}" for level in levels).encode()).hexdigest()[:8]
