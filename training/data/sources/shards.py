"""``shards:PATTERN``: WebDataset shards, tar files of images and labels, on a local disk.

The members of a sample have one name and different endings: an image and its class, `0001.jpg` and `0001.cls`. An index of
places in the files is built once, so any image can be read at any time: order and resume are exact.
"""

from __future__ import annotations

import glob
import re
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import FileError, UsageError, first_line
from nnstretch.support.image_size import ImageSize
from nnstretch.support.settings import atomic_write, cache_dir
from nnstretch.training.data.image_files import decode
from nnstretch.training.data.preprocessing import Pixels, Preprocessing, photo_preprocessing, pillow
from nnstretch.training.data.split import (
    Dataset,
    Indices,
    RawImages,
    UnreadableImageError,
    dataset_of,
    held_out,
    names,
)

_IMAGES = (".jpg", ".jpeg", ".png", ".webp")
_LABEL = ".cls"
_LONGEST_LABEL = 32  # bytes
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS = 100_000
# Names of folders, and parts of names of files, that say what images are for.
_PURPOSES = {
    "train": frozenset({"train", "training"}),
    "val": frozenset({"val", "valid", "validation"}),
    "test": frozenset({"test"}),
}


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """Where the samples of a tar file are.

    Attributes:
        keys: names of the samples, without endings.
        offsets, sizes: of the images in the file, in bytes.
        labels: classes.
    """

    keys: NDArray[np.str_]
    offsets: Indices
    sizes: Indices
    labels: Indices


def load(argument: str, size: ImageSize, channels: int | None, split_seed: int) -> Dataset:
    """The samples of all tar files that match ``argument``.

    PATTERN is a path with ``{000..009}`` for numbers, or with ``*`` and ``?``. Files with `val` or `test` as a word of
    their name, or as the name of their folder, are the validation and the test split; where one or both are missing, see
    `split.held_out`.

    Raises:
        UsageError: there is no PATTERN, or it cannot be understood.
        FileError: no file matches, or one cannot be read.
    """
    if not argument:
        raise UsageError("the data set shards needs a pattern; write shards:PATH/train-{000..009}.tar")
    pillow()
    preprocessing = photo_preprocessing(size, channels or 3)
    files: dict[str, list[Path]] = {"train": [], "val": [], "test": []}
    for path in _matching(argument):
        files[_purpose(path)].append(path)
    if not files["train"]:
        raise FileError(
            f"all shards of {argument} are for validation or testing, by their names; training images are wanted"
        )
    train = _split(files["train"], preprocessing)
    classes = _classes(train, argument)
    given = {name: _split(files[name], preprocessing) for name in ("val", "test") if files[name]}
    splits, note = held_out(train, given, split_seed, argument)
    return dataset_of(f"shards:{argument}", tuple(str(label) for label in range(classes)), splits, note)


@dataclass(frozen=True, eq=False)
class ShardSplit(RawImages):
    """Samples in tar files, read and decoded at every access.

    Attributes:
        files: the tar files.
        file_numbers: number of the file of every image.
        keys: names of the samples.
        offsets, sizes: of the images in their files, in bytes.
        labels: the class of every image.
        preprocessing: makes inputs of them.
    """

    files: tuple[Path, ...]
    file_numbers: Indices
    keys: NDArray[np.str_]
    offsets: Indices
    sizes: Indices
    labels: Indices
    preprocessing: Preprocessing

    def image_name(self, index: int) -> str:
        """The tar file and the sample in it."""
        return f"{self.files[self.file_numbers[index]]}:{self.keys[index]}"

    def raw(self, index: int, epoch: int) -> Pixels:
        """The decoded image.

        Raises:
            UnreadableImageError: it is no whole image, or the tar file cannot be read any more.
        """
        path = self.files[self.file_numbers[index]]
        name = self.image_name(index)
        size = int(self.sizes[index])
        try:
            with path.open("rb") as file:
                file.seek(int(self.offsets[index]))
                content = file.read(size)
        except OSError as error:
            raise UnreadableImageError(f"{name} ({error.strerror})") from error
        if len(content) < size:
            raise UnreadableImageError(f"{name} (the file became shorter)")
        return decode(content, name, self.preprocessing.channels)


def _matching(pattern: str) -> list[Path]:
    """The files of a pattern, in the order of their names.

    Raises:
        UsageError: it is for URLs or compressed files, or has an impossible range.
        FileError: there are none.
    """
    if "://" in pattern or pattern.startswith("pipe:"):
        raise UsageError(f"{pattern} is no local path; copy the shards to a disk and give their pattern")
    expanded = list(_numbered(str(Path(pattern).expanduser())))
    found: list[Path] = []
    for one in expanded:
        matches = sorted(glob.glob(one)) if glob.has_magic(one) else [one]  # noqa: PTH207 (patterns may be absolute)
        found += map(Path, matches)
    missing = [str(path) for path in found if not path.is_file()]
    if not found or missing:
        what = f"{len(missing)} of {len(found)} files are missing: {names(missing)}" if missing else "no file matches"
        raise FileError(f"shards {pattern}: {what}; write a pattern such as train-{{000..009}}.tar or train-*.tar")
    return list(dict.fromkeys(found))


def _numbered(pattern: str) -> Iterator[str]:
    """The texts of a pattern with ranges such as ``{000..009}``."""
    match = _RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    first, last = match.groups()
    if not int(first) <= int(last) < int(first) + _MOST_SHARDS:
        raise UsageError(f"shards {pattern}: the range {match.group()} holds no files, or too many")
    for number in range(int(first), int(last) + 1):
        yield from _numbered(f"{pattern[: match.start()]}{number:0{len(first)}}{pattern[match.end() :]}")


def _purpose(path: Path) -> str:
    """`train`, `val` or `test`, by the name of a file, and else by that of its folder."""
    for parts in (set(re.split(r"[^a-z]+", path.stem.lower())), {path.parent.name.lower()}):
        for name, words in _PURPOSES.items():
            if words & parts:
                return name
    return "train"


def _split(files: Sequence[Path], preprocessing: Preprocessing) -> ShardSplit:
    indices = [_cached_index(path) for path in files]
    numbers = [np.full(len(index.labels), number, np.int64) for number, index in enumerate(indices)]
    keys, offsets, sizes, labels = (
        np.concatenate([getattr(index, name) for index in indices]) for name in ("keys", "offsets", "sizes", "labels")
    )
    return ShardSplit(tuple(files), np.concatenate(numbers), keys, offsets, sizes, labels, preprocessing)


def _classes(train: ShardSplit, pattern: str) -> int:
    """Number of classes.

    Raises:
        FileError: the labels are not 0 and up, without large gaps.
    """
    highest, kinds = int(train.labels.max()), len(np.unique(train.labels))
    if highest >= len(train):
        raise FileError(
            f"shards {pattern}: {kinds} different labels up to {highest} for {len(train)} images; classes are numbered from 0"
        )
    return highest + 1


def _cached_index(path: Path) -> ShardIndex:
    """The index of a tar file, from the cache if the file has the size and the time of change that it had."""
    try:
        status = path.stat()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    stamp = np.array([status.st_size, status.st_mtime_ns], np.int64)
    cached = cache_dir("shards") / f"{sha256(str(path.resolve()).encode()).hexdigest()[:32]}.npz"
    try:
        with np.load(cached, allow_pickle=False) as stored:
            if np.array_equal(stored["stamp"], stamp):
                return ShardIndex(*(stored[name] for name in ("keys", "offsets", "sizes", "labels")))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # absent or damaged: it is made again
    index = index_shard(path)
    with suppress(FileError), atomic_write(cached) as file:
        np.savez(file, stamp=stamp, keys=index.keys, offsets=index.offsets, sizes=index.sizes, labels=index.labels)
    return index


def index_shard(path: Path) -> ShardIndex:
    """Reads the headers and labels of a tar file.

    Raises:
        FileError: it is truncated, compressed or no tar file; or a sample lacks its image or its label.
    """
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    size = path.stat().st_size
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                if member.offset_data + member.size > size:
                    raise tarfile.ReadError("unexpected end of data")
                key, ending = _key(member.name)
                if ending in _IMAGES:
                    images[key] = member.offset_data, member.size
                elif ending == _LABEL:
                    labels[key] = _label(archive, member, path)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise FileError(f"{path} is no whole, uncompressed tar file ({first_line(error)}); copy it again") from error
    if not images:
        raise FileError(f"{path} has no images ({', '.join(_IMAGES)})")
    lacking = [f"{key}{_LABEL}" for key in images if key not in labels]
    lacking += [f"an image beside {key}{_LABEL}" for key in labels if key not in images]
    if lacking:
        raise FileError(f"{path} lacks {names(lacking)}; every sample has an image and its class")
    places = np.array(list(images.values()), np.int64)
    classes = np.array([labels[key] for key in images], np.int64)
    return ShardIndex(np.array(list(images)), places[:, 0], places[:, 1], classes)


def _key(name: str) -> tuple[str, str]:
    """Name of a sample and ending of one of its members: the ending begins at the first dot of the file's name."""
    path = PurePosixPath(name)
    stem, dot, ending = path.name.partition(".")
    return str(path.with_name(stem)) if stem else name, f"{dot}{ending}".lower()


def _label(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> int:
    opened = archive.extractfile(member)
    assert opened is not None
    text = opened.read(_LONGEST_LABEL)
    try:
        label = int(text)
    except ValueError:
        label = -1
    if not 0 <= label < 2**31:
        raise FileError(f"{path}: {member.name} is {text!r}; the number of a class, from 0, is wanted")
    return label
