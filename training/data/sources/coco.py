"""``coco:PATH``: images with boxes in COCO's JSON, for detection."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import FileError, UsageError, first_line
from nnstretch.support.image_size import ImageSize
from nnstretch.support.json_text import json_fault
from nnstretch.training.data.image_files import decode, header_size
from nnstretch.training.data.preprocessing import Pixels, photo_preprocessing, pillow
from nnstretch.training.data.split import Dataset, RawImages, SpatialImages, dataset_of, held_out
from nnstretch.training.tasks.detection import Boxes, Detection

_NAMES = {"train": "train", "val": "val", "valid": "val", "test": "test"}


def load(argument: str, size: ImageSize, channels: int | None, split_seed: int) -> Dataset:
    """Images and annotations of training, validation and test.

    For a split NAME (``train``, ``val``, ``test``) the annotations are in ``PATH/NAME.json`` and the images in ``PATH/NAME/``.
    COCO's own ``PATH/annotations/instances_NAME2017.json`` and ``PATH/NAME2017/``, of any year, are found, too, and so is
    ``PATH/NAME/_annotations.coco.json`` with the images beside it. ``val`` and ``test`` may be absent, as with ``folder:PATH``.

    Boxes that stand for crowds are left out. Classes are numbered in the order of the categories' ids.

    Raises:
        UsageError: there is no PATH.
        FileError: a file is missing, is no JSON of COCO's, or names categories that the training images lack.
    """
    if not argument:
        raise UsageError("the data set coco needs a path; write coco:PATH")
    root = Path(argument).expanduser()
    pillow()
    found = _annotation_files(root)
    if "train" not in found:
        raise FileError(
            f"{root} has no annotations of training images: wanted {root}/train.json and {root}/train/*.jpg, or "
            f"{root}/annotations/instances_train2017.json and {root}/train2017/*.jpg"
        )
    content = {name: _content(file) for name, (file, _) in found.items()}
    names = _categories(content["train"], found["train"][0])
    for name, (file, _) in found.items():
        _check_categories(_categories(content[name], file), names, file, found["train"][0])
    classes = {identity: number for number, identity in enumerate(names)}
    preprocessing, task = photo_preprocessing(size, channels or 3), Detection()
    splits: dict[str, RawImages] = {}
    for name, (file, folder) in found.items():
        named = [one for one in content[name]["images"] if not isinstance(one, dict) or one.get("file_name")]
        images = _entries(named, {"id": _identity, "file_name": str, "height": int, "width": int}, file, "image")
        if not images:
            raise FileError(f"{file} names no images; add some")
        rows, starts = _rows(content[name], images, classes, file)
        if name == "train" and not len(rows):
            raise FileError(f"{file} has no boxes to learn from; add annotations")
        splits[name] = CocoSplit(
            preprocessing=preprocessing,
            task=task,
            labels=np.zeros(len(images), np.int64),
            root=folder,
            files=np.array([os.fsencode(one["file_name"]) for one in images]),
            sizes=np.array([(one["height"], one["width"]) for one in images], np.int64),
            rows=rows,
            starts=starts,
        )
    train = splits.pop("train")
    three, note = held_out(train, splits, split_seed, str(root))
    return dataset_of(f"coco:{argument}", tuple(names.values()), three, note, task)


@dataclass(frozen=True, eq=False)
class CocoSplit(SpatialImages):
    """Image files, decoded at every access, and their boxes.

    Attributes:
        root: the folder that the files are in.
        files: their paths in it, encoded.
        sizes: height and width of every image: int64 ``N x 2``.
        rows: the boxes of all images, as `Boxes` has them: float32 ``M x 5``.
        starts: of the boxes of every image among them, and the end of the last one: int64 ``N + 1``.
    """

    root: Path
    files: NDArray[np.bytes_]
    sizes: NDArray[np.int64]
    rows: NDArray[np.float32]
    starts: NDArray[np.int64]

    def image_name(self, index: int) -> str:
        """The path of the file."""
        return str(self.root / os.fsdecode(bytes(self.files[index])))

    def raw(self, index: int, epoch: int) -> Pixels:
        """The decoded image."""
        name = self.image_name(index)
        return decode(Path(name), name, self.preprocessing.channels)

    @property
    def has_headers(self) -> bool:
        """Those of images state sizes, and so do the annotations."""
        return True

    def header_fault(self, index: int) -> str:
        """Whether the image has another size than its boxes are for."""
        name = self.image_name(index)
        return self.task.check_size(self.target(index, 0), *header_size(Path(name), name))

    def target(self, index: int, epoch: int) -> Boxes:
        """The boxes."""
        height, width = self.sizes[index].tolist()
        return Boxes(self.rows[self.starts[index] : self.starts[index + 1]], height, width)


def _annotation_files(root: Path) -> dict[str, tuple[Path, Path]]:
    """Split -> its annotations and the folder of its images; training first.

    Raises:
        FileError: there is no such folder, or a split has several.
    """
    if not root.is_dir():
        raise FileError(f"{root} is no folder; wanted {root}/train.json and {root}/train/*.jpg")
    found: dict[str, tuple[Path, Path]] = {}
    for name, split in _NAMES.items():
        for file, folder in _candidates(root, name):
            if split in found:
                raise FileError(f"{root} has annotations of {split} in {found[split][0]} and {file}; keep one of them")
            found[split] = file, folder
    return found


def _candidates(root: Path, name: str) -> Iterator[tuple[Path, Path]]:
    beside = root / name / "_annotations.coco.json"
    for file, folder in ((root / f"{name}.json", root / name), (beside, root / name)):
        if file.is_file():
            yield file, folder
    for file in sorted((root / "annotations").glob(f"instances_{name}[0-9]*.json")):
        yield file, root / file.stem.removeprefix("instances_")


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
        for key in ("images", "annotations", "categories"):
            if not isinstance(content[key], list):
                raise TypeError(f"{key} is no list")
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{file} is no COCO annotation ({json_fault(error)}); an object with the lists images, "
            "annotations and categories is wanted"
        ) from error
    found: dict[str, Any] = content
    return found


def _identity(value: Any) -> Any:
    return value


def _entries(
    entries: Sequence[Any], kinds: Mapping[str, Callable[[Any], Any]], file: Path, what: str
) -> list[dict[str, Any]]:
    """These fields of all entries, each read as its kind.

    Raises:
        FileError: an entry is no object, or a field is missing or of another kind.
    """
    found = []
    for number, entry in enumerate(entries):
        try:
            found.append({name: kind(entry[name]) for name, kind in kinds.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"{file}: {what} {number} is damaged ({json_fault(error)}); {', '.join(kinds)} are wanted"
            ) from error
    return found


def _categories(content: Mapping[str, Any], file: Path) -> dict[int, str]:
    """Name of every category by its id, in the order of the ids.

    Raises:
        FileError: a category is damaged, or two have one id.
    """
    found: dict[int, str] = {}
    for one in _entries(content["categories"], {"id": int, "name": str}, file, "category"):
        if one["id"] in found:
            raise FileError(f"{file} has two categories with the id {one['id']}; give each its own")
        found[one["id"]] = one["name"]
    return dict(sorted(found.items()))


def _check_categories(some: Mapping[int, str], training: Mapping[int, str], file: Path, training_file: Path) -> None:
    """Refuses categories that mean something else than those of the training images; some may be missing.

    Raises:
        FileError: an id has another name there, or is unknown there.
    """
    for identity, name in some.items():
        if training.get(identity) != name:
            there = f"is {training[identity]} in" if identity in training else "is not in"
            raise FileError(
                f"{file}: category {identity} is {name}, and {there} {training_file}; give both the same categories"
            )


def _corners(box: Sequence[Any], image: Mapping[str, Any]) -> list[float]:
    """Left, top, right and bottom of a box, given by its corner and size.

    Raises:
        ValueError: it is no box with an area inside the image.
    """
    left, top, width, height = map(float, box)
    inside = (min(left + width, image["width"]) - max(left, 0.0), min(top + height, image["height"]) - max(top, 0.0))
    if not (math.isfinite(left + top + width + height) and min(width, height) >= 0 and min(inside) >= 0):
        raise ValueError(f"bbox {list(box)} of an image of {image['width']}×{image['height']} pixels")
    return [left, top, left + width, top + height]


def _rows(
    content: Mapping[str, Any], images: list[dict[str, Any]], classes: Mapping[int, int], file: Path
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The boxes of all images in the order of `images`, and where those of each begin.

    Raises:
        FileError: an annotation lacks a field, or names an unknown image or category.
    """
    places = {one["id"]: number for number, one in enumerate(images)}
    boxes: list[list[list[float]]] = [[] for _ in images]
    for annotation in content["annotations"]:
        if annotation.get("iscrowd"):
            continue
        try:
            label, place = classes[int(annotation["category_id"])], places[annotation["image_id"]]
            boxes[place].append([*_corners(annotation["bbox"], images[place]), label])
        except (KeyError, ValueError, TypeError) as error:
            raise FileError(
                f"{file}: annotation {annotation.get('id')} has an unknown image or category, or no bbox inside its image "
                f"({type(error).__name__}: {first_line(error)})"
            ) from error
    starts = np.cumsum([0, *map(len, boxes)])
    rows = np.array([row for image in boxes for row in image], np.float32).reshape(-1, 5)
    return rows, starts.astype(np.int64)
