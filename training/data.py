"""Data sets, named by text: ``digits`` and ``folder:PATH``.

All images come as float32 ``N x C x S x S`` tensors, normalised by the data set's mean and standard deviation.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nnstretch.errors import FileError, MissingExtraError, UsageError

DEFAULT_SIZE = 64
_DIGITS_TEST_SHARE = 0.3
_IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp"})
_TEST_FOLDERS = ("val", "test")
# Of ImageNet's training images, which stand in well for any photographs.
_PHOTO_MEAN = (0.485, 0.456, 0.406)
_PHOTO_STD = (0.229, 0.224, 0.225)
# The shorter side is resized to this times the image size before the centre is cut out: 256 for 224.
_RESIZE_RATIO = 256 / 224
_DECODER_THREADS = 4
_NAMED_FILES = 3


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


@dataclass(frozen=True)
class FolderSplit:
    """Image files, decoded each time they are asked for."""

    files: tuple[Path, ...]
    labels: Tensor
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        """Number of images."""
        return len(self.files)

    def images(self, indices: Tensor) -> Tensor:
        """The images at ``indices``: shorter side resized, centre cut out, normalised.

        Raises:
            FileError: files that are no readable images; the first few are named.
        """
        files = [self.files[index] for index in indices.tolist()]
        with ThreadPoolExecutor(_DECODER_THREADS) as pool:
            decoded = list(pool.map(self._decode, files))
        bad = [outcome for outcome in decoded if isinstance(outcome, str)]
        if bad:
            more = f" and {len(bad) - _NAMED_FILES} more" if len(bad) > _NAMED_FILES else ""
            raise FileError(
                f"cannot read {'; '.join(bad[:_NAMED_FILES])}{more}; replace or remove what is no whole image"
            )
        pixels = torch.stack([torch.from_numpy(outcome) for outcome in decoded]).movedim(-1, 1)
        return _normalise(pixels.float() / 255, self.mean, self.std)

    def _decode(self, file: Path) -> np.ndarray[Any, np.dtype[np.uint8]] | str:
        """``S x S x C`` pixels, or the file's name and why it cannot be read."""
        image_module = _pillow()
        resized = max(self.image_size, round(self.image_size * _RESIZE_RATIO))
        try:
            with image_module.open(file) as opened:
                image = opened.convert("L" if self.channels == 1 else "RGB")
        except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
            return f"{file} ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        factor = resized / min(image.size)
        image = image.resize(
            (max(resized, round(image.width * factor)), max(resized, round(image.height * factor))),
            image_module.Resampling.BILINEAR,
        )
        left, top = (image.width - self.image_size) // 2, (image.height - self.image_size) // 2
        image = image.crop((left, top, left + self.image_size, top + self.image_size))
        pixels: np.ndarray[Any, np.dtype[np.uint8]] = np.array(image, dtype=np.uint8)
        return pixels.reshape(self.image_size, self.image_size, self.channels)


def load_dataset(
    source: str, image_size: int | None = None, channels: int | None = None, split_seed: int = 0
) -> Dataset:
    """The data set that ``source`` names.

    ``digits``: the handwritten digits that ship with scikit-learn, 1797 grey images of 8 x 8 in 10 classes, enlarged
    smoothly; 70 % of every class are for training, 30 % for testing, drawn with ``split_seed``.

    ``folder:PATH``: image files in ``PATH/train/CLASS/`` and ``PATH/val/CLASS/`` (or ``test``).

    Args:
        source: the text.
        image_size: side of the images in pixels; 64 if left out.
        channels: 1 (grey) or 3; left out, 1 for digits (3 repeats the one) and 3 for folders.
        split_seed: draws the split of a data set that has none of its own.

    Raises:
        UsageError: an unknown source, or a size or number of channels that cannot be.
        FileError: a folder that is missing or has no images.
        MissingExtraError: scikit-learn or pillow is not installed.
    """
    size = DEFAULT_SIZE if image_size is None else image_size
    if size < 8:
        raise UsageError(f"images of {size} x {size} pixels are too small; give 8 or more")
    if channels not in {None, 1, 3}:
        raise UsageError(f"{channels} channels were asked for; images have 1 or 3")
    kind, _, path = source.partition(":")
    if source == "digits":
        return _digits(size, channels or 1, split_seed)
    if kind == "folder" and path:
        return _folder(source, Path(path).expanduser(), size, channels or 3)
    raise UsageError(f"no data set is called {source!r}; there are digits and folder:PATH")


def batches(split: Split, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All images and labels of ``split`` in order, ``batch`` at a time; the last batch may be smaller."""
    if batch < 1:
        raise UsageError(f"a batch of {batch} images was asked for; give 1 or more")
    for start in range(0, len(split), batch):
        indices = torch.arange(start, min(start + batch, len(split)))
        yield split.images(indices), split.labels[indices]


def _normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    shape = (1, -1, 1, 1)
    return (pixels - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)


def _digits(size: int, channels: int, split_seed: int) -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError(
            "the digits data set comes with scikit-learn; pip install 'nnstretch[train]'"
        ) from error
    pixels_8x8, classes = load_digits(return_X_y=True)
    labels = torch.from_numpy(classes).long()
    small = torch.from_numpy(pixels_8x8).float().view(-1, 1, 8, 8) / 16
    pixels = functional.interpolate(small, size=(size, size), mode="bicubic", align_corners=False).clamp(0, 1)

    train, test = stratified_split(labels, _DIGITS_TEST_SHARE, split_seed)
    mean, std = float(pixels[train].mean()), float(pixels[train].std())
    pixels = _normalise(pixels, (mean,), (std,)).expand(-1, channels, -1, -1)
    return Dataset(
        name="digits",
        num_classes=10,
        channels=channels,
        image_size=size,
        class_names=tuple(str(digit) for digit in range(10)),
        mean=(mean,) * channels,
        std=(std,) * channels,
        train=TensorSplit(pixels[train], labels[train]),
        test=TensorSplit(pixels[test], labels[test]),
    )


def stratified_split(labels: Tensor, test_share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices for training and for testing, both ascending; ``test_share`` of every class goes to the tests."""
    generator = torch.Generator().manual_seed(seed)
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        in_test[members[order[: round(test_share * len(members))]]] = True
    return (~in_test).nonzero().flatten(), in_test.nonzero().flatten()


def _folder(source: str, root: Path, size: int, channels: int) -> Dataset:
    _pillow()
    test_root = next((root / name for name in _TEST_FOLDERS if (root / name).is_dir()), None)
    if not (root / "train").is_dir() or test_root is None:
        raise FileError(
            f"{root} is no folder data set: wanted {root}/train/CLASS/*.png and {root}/val/CLASS/*.png (or test)"
        )
    train_files = _list_images(root / "train")
    test_files = _list_images(test_root)
    class_names = tuple(train_files)
    unknown = [name for name in test_files if name not in train_files]
    if unknown:
        raise FileError(
            f"{test_root} has the class {unknown[0]!r} that {root / 'train'} has not; both need the same folders"
        )
    mean = _PHOTO_MEAN if channels == 3 else (sum(_PHOTO_MEAN) / 3,)
    std = _PHOTO_STD if channels == 3 else (sum(_PHOTO_STD) / 3,)

    def split(files: dict[str, list[Path]]) -> FolderSplit:
        pairs = [(file, class_names.index(name)) for name, members in files.items() for file in members]
        labels = torch.tensor([label for _, label in pairs])
        return FolderSplit(tuple(file for file, _ in pairs), labels, channels, size, mean, std)

    return Dataset(
        name=source,
        num_classes=len(class_names),
        channels=channels,
        image_size=size,
        class_names=class_names,
        mean=mean,
        std=std,
        train=split(train_files),
        test=split(test_files),
    )


def _list_images(root: Path) -> dict[str, list[Path]]:
    """Image files by class, both in the order of their names."""
    try:
        classes = sorted(path for path in root.iterdir() if path.is_dir())
        files = {
            folder.name: sorted(file for file in folder.iterdir() if file.suffix.lower() in _IMAGE_SUFFIXES)
            for folder in classes
        }
    except OSError as error:
        raise FileError(f"cannot list {root}: {error.strerror}") from error
    if not files:
        raise FileError(f"{root} has no folders; one folder of images per class is wanted")
    empty = [name for name, members in files.items() if not members]
    if empty:
        raise FileError(
            f"{root / empty[0]} has no images ({', '.join(sorted(_IMAGE_SUFFIXES))}); add some or remove the folder"
        )
    return files


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading image files needs pillow; pip install 'nnstretch[train]'") from error
    return Image
