"""The archives of CIFAR-10 and CIFAR-100 in their binary version.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009). The version for Python is pickled, and nothing
is ever unpickled here.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnstretch.errors import FileError, UsageError, first_line
from nnstretch.support.image_size import ImageSize
from nnstretch.training.data.preprocessing import Pixels, Preprocessing
from nnstretch.training.data.split import Dataset, ImagesInMemory, Indices, dataset_of, held_out

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class Archive:
    """What one of the archives holds.

    Attributes:
        name: of the data set.
        download: file name of the binary version.
        train, test: names of its files of images.
        class_file: with the names of the classes.
        classes: number of classes.
        label_bytes: per image; the last one is the class.
        mean, std: of the training images.
    """

    name: str
    download: str
    train: tuple[str, ...]
    test: str
    class_file: str
    classes: int
    label_bytes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class PixelSplit(ImagesInMemory):
    """Whole images in memory.

    Attributes:
        stored: uint8, ``N x H x W x C``.
        labels: the class of every image.
        preprocessing: makes inputs of them.
    """

    stored: Pixels
    labels: Indices
    preprocessing: Preprocessing

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``."""
        whole: Pixels = self.stored[index]
        return whole


def load_archive(archive: Archive, argument: str, size: ImageSize, channels: int | None, split_seed: int) -> Dataset:
    """60,000 photographs of 32 x 32, 10,000 of them for testing and a tenth of the others for validation.

    Args:
        archive: which of the two.
        argument: path of the archive, or of a folder with its files.
        size: of the inputs.
        channels: 1, or 3 (default).
        split_seed: draws the validation images.

    Raises:
        UsageError: there is no path.
        FileError: files are missing, or not of the binary version.
    """
    if not argument:
        raise UsageError(f"the data set {archive.name} needs a path; write {archive.name}:PATH/{archive.download}")
    files = _files(Path(argument).expanduser(), archive)
    channels = channels or 3
    mean = archive.mean if channels == 3 else (sum(archive.mean) / 3,)
    std = archive.std if channels == 3 else (sum(archive.std) / 3,)
    preprocessing = Preprocessing(size, channels, mean, std, crop_pct=1.0, interpolation="bicubic")
    train, test = (
        _split([files[name] for name in members], archive, preprocessing)
        for members in (archive.train, (archive.test,))
    )
    splits, _ = held_out(train, {"test": test}, split_seed, argument)
    given = files.get(archive.class_file, b"").decode("utf-8", "replace").split()
    class_names = given if len(given) == archive.classes else [str(label) for label in range(archive.classes)]
    return dataset_of(f"{archive.name}:{argument}", tuple(class_names), splits)


def _files(path: Path, archive: Archive) -> Mapping[str, bytes]:
    """Contents of the files of an archive or folder by name.

    Raises:
        FileError: some are missing or unreadable.
    """
    wanted = (*archive.train, archive.test)
    try:
        found = _folder_files(path, archive) if path.is_dir() else _archive_files(path, archive)
    except (OSError, EOFError, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise FileError(f"cannot read {path}: {reason}; give {archive.download} or a folder with its files") from error
    missing = [name for name in wanted if name not in found]
    if missing:
        raise FileError(
            f"{path} has no {missing[0]}; the binary version of {archive.name} ({archive.download}) is wanted, which needs no "
            "unpickling"
        )
    return found


def _folder_files(path: Path, archive: Archive) -> dict[str, bytes]:
    names = (*archive.train, archive.test, archive.class_file)
    inside = [path, *sorted(child for child in path.iterdir() if child.is_dir())]  # the archive has a folder of its own
    return {name: (folder / name).read_bytes() for folder in inside for name in names if (folder / name).is_file()}


def _archive_files(path: Path, archive: Archive) -> dict[str, bytes]:
    names = (*archive.train, archive.test, archive.class_file)
    found: dict[str, bytes] = {}
    with tarfile.open(path) as opened:
        for member in opened:
            name = Path(member.name).name
            if name in names and member.isfile():
                content = opened.extractfile(member)
                assert content is not None
                found[name] = content.read()
    return found


def _split(contents: list[bytes], archive: Archive, preprocessing: Preprocessing) -> PixelSplit:
    """The images of files: for each one its labels, then its red, green and blue values.

    Raises:
        FileError: a file is truncated, or a label out of range.
    """
    record = archive.label_bytes + _PIXELS
    if any(len(content) % record or not content for content in contents):
        raise FileError(
            f"the files of {archive.name} are truncated: records of {record} bytes are wanted; unpack them again"
        )
    rows = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, record)
    labels = rows[:, archive.label_bytes - 1].astype(np.int64)
    if labels.max() >= archive.classes:
        raise FileError(f"{archive.name} has the label {labels.max()}; 0 to {archive.classes - 1} are wanted")
    pixels = rows[:, archive.label_bytes :].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return PixelSplit(np.ascontiguousarray(pixels), labels, preprocessing)
