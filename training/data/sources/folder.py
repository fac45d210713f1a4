"""``folder:PATH``: image files in one folder per class."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import FileError, UsageError
from nnstretch.support.image_size import ImageSize
from nnstretch.training.data.image_files import SUFFIXES, decode
from nnstretch.training.data.preprocessing import Pixels, Preprocessing, photo_preprocessing, pillow
from nnstretch.training.data.split import Dataset, Indices, RawImages, dataset_of, held_out

_TRAIN_FOLDER = "train"
_VALIDATION_FOLDERS = ("val", "valid", "validation")
_TEST_FOLDER = "test"


def load(argument: str, size: ImageSize, channels: int | None, split_seed: int) -> Dataset:
    """Image files in ``PATH/train/CLASS/``, ``PATH/val/CLASS/`` and ``PATH/test/CLASS/``; ``argument`` is PATH.

    One of ``val`` and ``test`` may be absent. The other is then the test split, as with ImageNet, and the validation split is
    a stratified share of ``train``, drawn with ``split_seed``. Where both are absent, the test split is such a share, too.

    Raises:
        UsageError: there is no PATH.
        FileError: a folder is missing or has no images.
    """
    if not argument:
        raise UsageError("the data set folder needs a path; write folder:PATH")
    root = Path(argument).expanduser()
    pillow()
    preprocessing = photo_preprocessing(size, channels or 3)
    folders = subfolders(root)
    if _TRAIN_FOLDER not in folders:
        raise FileError(
            f"{root} is no folder data set: wanted {root}/train/CLASS and {root}/val/CLASS (or test), with images in them"
        )
    class_names = tuple(subfolders(root / _TRAIN_FOLDER))
    train = _split(root / _TRAIN_FOLDER, class_names, preprocessing)
    given = {name: _split(root / name, class_names, preprocessing) for name in held_out_folders(root, folders)}
    splits, note = held_out(train, given, split_seed, str(root))
    return dataset_of(f"folder:{argument}", class_names, splits, note)


@dataclass(frozen=True, eq=False)
class FolderSplit(RawImages):
    """Image files, decoded at every access.

    Attributes:
        root: the folder that they are in.
        files: their paths in `root`, encoded. An array, because workers copy the pages of Python objects that they read.
        labels: the class of every image.
        preprocessing: makes inputs of them.
    """

    root: Path
    files: NDArray[np.bytes_]
    labels: Indices
    preprocessing: Preprocessing

    def image_name(self, index: int) -> str:
        """The path of the file."""
        return str(self.root / os.fsdecode(bytes(self.files[index])))

    def class_text(self, index: int) -> str:
        """The class of an image by the name of its folder."""
        return f"class {Path(self.image_name(index)).parent.name!r}"

    def raw(self, index: int, epoch: int) -> Pixels:
        """The decoded file.

        Raises:
            UnreadableImageError: it is no whole image.
        """
        name = self.image_name(index)
        return decode(Path(name), name, self.preprocessing.channels)


def unlabelled(path: Path, preprocessing: Preprocessing) -> FolderSplit:
    """All image files in a folder and the folders in it, in the order of their paths; labels are 0.

    Raises:
        FileError: the folder cannot be listed or has no images.
    """
    found: list[bytes] = []
    for folder, inside, files in os.walk(path, onerror=_refuse):
        inside[:] = [name for name in inside if not name.startswith(".")]
        found += [os.fsencode((Path(folder) / name).relative_to(path)) for name in _images(files)]
    if not found:
        raise FileError(f"{path} has no images ({', '.join(sorted(SUFFIXES))})")
    return FolderSplit(path, np.array(sorted(found)), np.zeros(len(found), np.int64), preprocessing)


def has_splits(path: Path) -> bool:
    """Whether a folder is divided into splits, as those of data sets are.

    Raises:
        FileError: it cannot be listed.
    """
    return _TRAIN_FOLDER in subfolders(path)


def held_out_folders(root: Path, folders: list[str]) -> list[str]:
    """Names of the folders with images that are not trained on.

    Raises:
        FileError: several of one kind.
    """
    validation = [name for name in _VALIDATION_FOLDERS if name in folders]
    if len(validation) > 1:
        raise FileError(f"{root} has the folders {' and '.join(validation)}; keep one of them")
    return [*validation, *([_TEST_FOLDER] if _TEST_FOLDER in folders else [])]


def _split(folder: Path, class_names: tuple[str, ...], preprocessing: Preprocessing) -> FolderSplit:
    """The images of a folder that has one folder per class.

    Raises:
        FileError: it has none, or has a class that the training images lack, or one without images.
    """
    classes = subfolders(folder)
    if not classes:
        raise FileError(f"{folder} has no folders; one folder of images per class is wanted")
    unknown = [name for name in classes if name not in class_names]
    if unknown:
        raise FileError(
            f"{folder} has the class {unknown[0]!r} that {folder.parent / _TRAIN_FOLDER} has not; both need the same folders"
        )
    files: list[bytes] = []
    labels: list[int] = []
    for name in classes:
        found = images_of(folder / name)
        if not found:
            raise FileError(
                f"{folder / name} has no images ({', '.join(sorted(SUFFIXES))}); add some or remove the folder"
            )
        files += [os.fsencode(f"{name}/{file}") for file in found]
        labels += [class_names.index(name)] * len(found)
    return FolderSplit(folder, np.array(files), np.array(labels, np.int64), preprocessing)


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted; hidden ones are left out.

    Raises:
        FileError: it cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))
    except FileNotFoundError as error:
        raise FileError(
            f"{folder} is no folder data set: it does not exist; wanted {folder}/train/CLASS with images in it"
        ) from error
    except (OSError, ValueError) as error:
        _refuse(error)
        raise


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def images_of(folder: Path) -> list[str]:
    """Names of the image files in a folder, sorted.

    Raises:
        FileError: it cannot be listed.
    """
    return _images(_entries(folder))


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 (names alone, for many files)
    except OSError as error:
        _refuse(error)
        raise


def _images(files: list[str]) -> list[str]:
    """The image files among names, sorted; hidden ones, such as those that macOS leaves beside copies, are left out."""
    return sorted(name for name in files if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."))


def _refuse(error: OSError | ValueError) -> None:
    place = getattr(error, "filename", None) or "the folder"
    raise FileError(f"cannot list {place}: {getattr(error, 'strerror', None) or error}") from error
