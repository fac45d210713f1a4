"""``masks:PATH``: images with a mask each, for segmentation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import FileError, UsageError, first_line
from nnstretch.support.image_size import ImageSize
from nnstretch.support.words import counted
from nnstretch.training.cores import usable_cores
from nnstretch.training.data.image_files import decode, header_size
from nnstretch.training.data.preprocessing import Pixels, photo_preprocessing, pillow
from nnstretch.training.data.sources.folder import held_out_folders, images_of, subfolders
from nnstretch.training.data.split import (
    Dataset,
    RawImages,
    SpatialImages,
    UnreadableImageError,
    dataset_of,
    held_out,
    names,
)
from nnstretch.training.tasks.segmentation import Mask, Segmentation, mask_fault

_TRAIN_FOLDER, _IMAGES, _MASKS, _CLASSES = "train", "images", "masks", "classes.txt"
_MASK_SUFFIX = ".png"


def load(argument: str, size: ImageSize, channels: int | None, split_seed: int) -> Dataset:
    """Images in ``PATH/train/images/`` and their masks, PNG files of the same names, in ``PATH/train/masks/``.

    ``val`` and ``test`` beside ``train`` may be absent, as with ``folder:PATH``. ``PATH`` may also hold ``images`` and
    ``masks`` itself: then all of them are training images. A line of ``PATH/classes.txt`` names a class; without that file,
    all masks are read once for the highest class.

    Raises:
        UsageError: there is no PATH.
        FileError: a folder, an image or a mask is missing.
    """
    if not argument:
        raise UsageError(f"the data set masks needs a path; write masks:PATH for {_layout('PATH/train')}")
    root = Path(argument).expanduser()
    pillow()
    if not root.is_dir():
        raise FileError(f"{root} is no folder; wanted {_layout(root / _TRAIN_FOLDER)}")
    found = subfolders(root)
    whole = _IMAGES in found and _TRAIN_FOLDER not in found
    if not whole and _TRAIN_FOLDER not in found:
        raise FileError(f"{root} is no folder of masks: wanted {_layout(root / _TRAIN_FOLDER)}")
    task, preprocessing = Segmentation(), photo_preprocessing(size, channels or 3)
    folders = [root] if whole else [root / name for name in (_TRAIN_FOLDER, *held_out_folders(root, found))]
    files = {folder.name: _files(folder) for folder in folders}
    class_names = _class_names(root, folders, files, task)
    splits = {
        folder.name: MaskSplit(
            preprocessing=preprocessing,
            task=task,
            labels=np.zeros(len(files[folder.name]), np.int64),
            root=folder,
            files=files[folder.name],
            num_classes=len(class_names),
        )
        for folder in folders
    }
    train, *others = splits.values()
    given: Mapping[str, RawImages] = dict(zip(list(splits)[1:], others, strict=True))
    three, note = held_out(train, given, split_seed, str(root))
    return dataset_of(f"masks:{argument}", class_names, three, note, task)


@dataclass(frozen=True, eq=False)
class MaskSplit(SpatialImages):
    """Image files and their masks, decoded at every access.

    Attributes:
        root: has the folders ``images`` and ``masks``.
        files: names of the images, encoded.
        num_classes: number of classes.
    """

    root: Path
    files: NDArray[np.bytes_]
    num_classes: int

    def image_name(self, index: int) -> str:
        """The path of the file."""
        return str(self.root / _IMAGES / os.fsdecode(bytes(self.files[index])))

    def raw(self, index: int, epoch: int) -> Pixels:
        """The decoded image."""
        name = self.image_name(index)
        return decode(Path(name), name, self.preprocessing.channels)

    @property
    def has_headers(self) -> bool:
        """Those of both files state sizes."""
        return True

    def header_fault(self, index: int) -> str:
        """Whether image and mask differ in size."""
        name, mask = self.image_name(index), _mask_path(self.root, self.files[index])
        with _opened_mask(mask) as image:
            size = (image.height, image.width)
        return mask_fault(size, *header_size(Path(name), name))

    def target(self, index: int, epoch: int) -> Mask:
        """The mask.

        Raises:
            UnreadableImageError: it cannot be decoded.
            FileError: it has a value that is no class.
        """
        path = _mask_path(self.root, self.files[index])
        mask = _mask(path)
        wrong = mask[(mask >= self.num_classes) & (mask != self.task.fill)]
        if wrong.size:
            raise FileError(
                f"{path} has the value {wrong.flat[0]}; 0 to {self.num_classes - 1}, and {self.task.fill} for pixels that do "
                "not count, are wanted"
            )
        return mask


def _layout(folder: str | Path) -> str:
    """What a folder with the images of a split holds, for messages."""
    return f"images in {folder}/{_IMAGES} (NAME.jpg or others), and a mask of each in {folder}/{_MASKS} (NAME{_MASK_SUFFIX})"


def _files(folder: Path) -> NDArray[np.bytes_]:
    """Names of the images of a folder, which all have a mask.

    Raises:
        FileError: there are none, or one has no mask.
    """
    found = images_of(folder / _IMAGES) if (folder / _IMAGES).is_dir() else []
    if not found:
        raise FileError(f"{folder / _IMAGES} has no images; wanted {_layout(folder)}")
    files = np.array([os.fsencode(name) for name in found])
    present = set(images_of(folder / _MASKS)) if (folder / _MASKS).is_dir() else set()
    absent = [str(path) for file in files if (path := _mask_path(folder, file)).name not in present]
    if absent:
        lacking = f"{len(absent)} of {counted(len(files), 'image')} of {folder} lack a mask"
        raise FileError(f"{lacking}: there is no {names(absent)}; every image wants a PNG file of its name")
    return files


def _mask_path(root: Path, file: NDArray[np.bytes_]) -> Path:
    return root / _MASKS / Path(os.fsdecode(bytes(file))).with_suffix(_MASK_SUFFIX)


def _mask(path: Path) -> Mask:
    """The values of a mask file, grey or with a palette.

    Raises:
        UnreadableImageError: it is no such image.
    """
    with _opened_mask(path) as image:
        return np.array(image).astype(np.uint8)


@contextmanager
def _opened_mask(path: Path) -> Iterator[Any]:
    """A mask file as an image of Pillow, whose pixels are read when they are used.

    Raises:
        UnreadableImageError: it is no such image, or its pixels cannot be decoded.
    """
    try:
        with pillow().open(path) as image:
            if image.mode not in {"1", "L", "P"}:
                raise UnreadableImageError(f"{path} (mode {image.mode}; a mask has one byte per pixel, its class)")
            yield image
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, UnreadableImageError):
            raise
        raise UnreadableImageError(f"{path} ({first_line(error)})") from error


def _listed_names(file: Path) -> tuple[str, ...]:
    """The names in the lines of a file; the line says which class has it.

    Raises:
        FileError: the file cannot be read, is empty, or has an empty line between others.
    """
    try:
        names = [line.strip() for line in file.read_text(encoding="utf-8").rstrip().splitlines()]
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{file} is no text in UTF-8; save it as such") from error
    if not names or not all(names):
        raise FileError(f"{file} has an empty line; every line is the name of a class, the first that of 0")
    return tuple(names)


def _class_names(
    root: Path, folders: Sequence[Path], files: Mapping[str, NDArray[np.bytes_]], task: Segmentation
) -> tuple[str, ...]:
    listed = root / _CLASSES
    if listed.is_file():
        return _listed_names(listed)

    def highest(path: Path) -> int:
        return int(task.classes_in(_mask(path)).max(initial=0))

    paths = [_mask_path(folder, file) for folder in folders for file in files[folder.name]]
    with ThreadPoolExecutor(usable_cores()) as pool:
        return tuple(str(number) for number in range(max(pool.map(highest, paths)) + 1))
