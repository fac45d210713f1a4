"""``folder:PATH``: image files in one folder per class."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnstretch.errors import FileError, MissingExtraError, UsageError
from nnstretch.training.data.split import Dataset, normalise

_IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp"})
_TEST_FOLDERS = ("val", "test")
# Statistics of ImageNet's training images, usual for any photographs.
_PHOTO_MEAN = (0.485, 0.456, 0.406)
_PHOTO_STD = (0.229, 0.224, 0.225)
# The shorter side is resized to this ratio times the image size before the centre crop: 256 for 224.
_RESIZE_RATIO = 256 / 224
_DECODER_THREADS = 4
_NAMED_FILES = 3


def load(argument: str, size: int, channels: int | None, split_seed: int) -> Dataset:
    """Image files in ``PATH/train/CLASS/`` and ``PATH/val/CLASS/`` (or ``test``); ``argument`` is PATH.

    Raises:
        UsageError: there is no PATH.
        FileError: a folder is missing or has no images.
        MissingExtraError: pillow is not installed.
    """
    if not argument:
        raise UsageError("the data set folder needs a path; write folder:PATH")
    root, channels = Path(argument).expanduser(), channels or 3
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
        name=f"folder:{argument}",
        num_classes=len(class_names),
        channels=channels,
        image_size=size,
        class_names=class_names,
        mean=mean,
        std=std,
        train=split(train_files),
        test=split(test_files),
    )


@dataclass(frozen=True)
class FolderSplit:
    """Image files, decoded at every access."""

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
        return normalise(pixels.float() / 255, self.mean, self.std)

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
