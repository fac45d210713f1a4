"""Detection: an image has boxes with classes. Outputs are what the network's own head writes.

Targets are float32 ``N x M x 5``: left, top, right, bottom in pixels of the input, and class. Rows of class -1 fill up.

How outputs become a loss and boxes is the network's own affair: a `DetectionHead`, one of `HEADS` or from a function of the
user's (`FILE.py:FACTORY`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import import_file
from nnstretch.support.image_size import ImageSize
from nnstretch.support.measures import MEAN_AP
from nnstretch.training.tasks.base import Scorer, SpatialTask, Targets, as_array

if TYPE_CHECKING:
    from torch import Tensor

    from nnstretch.training.data.preprocessing import Preprocessing

HEADS: Mapping[str, str] = {"yolo": "nnstretch.training.tasks.yolo:YoloHead"}
"""Name of a head -> the module and the class or function that makes it."""

_LEAST_SIDE = 1.0  # pixels: a crop leaves no thinner part of a box
_NO_CLASS = -1

Rows = NDArray[np.float32]
"""Boxes: ``M x 5``: left, top, right, bottom in pixels, class."""


class Boxes(NamedTuple):
    """The boxes of an image.

    Attributes:
        rows: the boxes.
        height, width: of the image in pixels.
    """

    rows: Rows
    height: int
    width: int


@runtime_checkable
class DetectionHead(Protocol):
    """The network's own loss, and how boxes follow from its outputs."""

    def loss(self, outputs: Any, boxes: Tensor) -> Tensor:
        """The mean loss of a batch, a scalar with gradients.

        Args:
            outputs: what the network returns, in float32.
            boxes: ``N x M x 5``, on the same device; rows of class -1 are none.
        """

    def detections(self, outputs: Any) -> Sequence[Tensor]:
        """The boxes that the network finds in each image, without duplicates.

        Args:
            outputs: what the network returns, in float32, on the CPU.

        Returns:
            For each image ``K x 6``: left, top, right, bottom in pixels of the input, score, class.
        """


@runtime_checkable
class CheckingHead(DetectionHead, Protocol):
    """A head that knows the form of the outputs."""

    def check_outputs(self, outputs: Any, images: int) -> None:
        """Checks the form of outputs, tensors or arrays, for a number of images.

        Raises:
            ModelError: they are of another form.
        """


@dataclass(frozen=True)
class Detection(SpatialTask):
    """The head's own loss; COCO's mean average precision.

    Attributes:
        head: of the network; None is enough to look at the data.
    """

    name = "detection"
    measure, key = MEAN_AP
    head: DetectionHead | None = None

    @property
    def known_head(self) -> DetectionHead:
        """The head.

        Raises:
            UsageError: there is none.
        """
        if self.head is None:
            raise UsageError(
                f"detection needs the network's own loss and decoding; give --head {_usage()} "
                "(docs/how-to/networks/dense.md)"
            )
        return self.head

    def check_outputs(self, outputs: Any, images: int, num_classes: int) -> None:
        """Leaves it to the head, but for its presence."""
        if isinstance(self.known_head, CheckingHead):
            self.known_head.check_outputs(outputs, images)

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """The head's."""
        return self.known_head.loss(outputs, targets)

    def scorer(self, num_classes: int) -> AveragePrecision:
        """COCO's average precisions."""
        return AveragePrecision(num_classes, self.known_head)

    # -- targets -------------------------------------------------------------------------------------------------

    def fitted(self, raw: Boxes, preprocessing: Preprocessing) -> Boxes:
        """The boxes scaled, moved and cut as their image is, without those thinner than a pixel then."""
        resized, corner = preprocessing.crop_of(raw.height, raw.width)
        scale = np.array((resized[1] / raw.width, resized[0] / raw.height) * 2, np.float32)
        rows = raw.rows.copy()
        rows[:, :4] = rows[:, :4] * scale - np.array((corner[1], corner[0]) * 2, np.float32)
        height, width = preprocessing.shape
        return Boxes(_inside(rows, height, width), height, width)

    def wrapped(self, raw: Boxes, library: Any) -> Any:
        """Boxes of torchvision, and their classes."""
        import torch

        boxes = torch.from_numpy(raw.rows[:, :4].copy())
        found = library.BoundingBoxes(boxes, format="XYXY", canvas_size=(raw.height, raw.width))
        return found, torch.from_numpy(raw.rows[:, 4:].copy())

    def unwrapped(self, wrapped: Any) -> Boxes:
        """The boxes inside the image."""
        boxes, classes = wrapped
        height, width = boxes.canvas_size
        rows = np.concatenate((as_array(boxes), as_array(classes)), axis=1).astype(np.float32)
        return Boxes(_inside(rows, height, width), height, width)

    def collated(self, targets: Sequence[Boxes]) -> Targets:
        """The boxes, filled up to the largest number of them, and to one: float32 ``N x M x 5``."""
        most = max(1, *(len(one.rows) for one in targets))
        found = np.zeros((len(targets), most, 5), np.float32)
        found[..., 4] = _NO_CLASS
        for rows, one in zip(found, targets, strict=True):
            rows[: len(one.rows)] = one.rows
        return found

    def check_size(self, raw: Boxes, height: int, width: int) -> str:
        """Boxes say for which size of image they are."""
        if (raw.height, raw.width) == (height, width):
            return ""
        boxes = f"its boxes are for {raw.width}×{raw.height}"
        return f"the image has {width}×{height} pixels, {boxes}; make them of one size"

    def classes_in(self, raw: Boxes) -> NDArray[np.int64]:
        """The classes of the boxes."""
        return np.unique(raw.rows[:, 4]).astype(np.int64)


def _inside(rows: Rows, height: int, width: int) -> Rows:
    """What of boxes lies in an image."""
    rows[:, [0, 2]] = rows[:, [0, 2]].clip(0, width)
    rows[:, [1, 3]] = rows[:, [1, 3]].clip(0, height)
    kept = ((rows[:, 2] - rows[:, 0]) >= _LEAST_SIDE) & ((rows[:, 3] - rows[:, 1]) >= _LEAST_SIDE)
    return rows[kept]


class AveragePrecision(Scorer):
    """COCO's average precision, by pycocotools: the mean over classes and over overlaps of 50 to 95 %.

    Sizes are those of inputs, so only areas of all sizes are reported.
    """

    def __init__(self, num_classes: int, head: DetectionHead) -> None:
        self._classes, self._head = num_classes, head
        self._wanted: list[Rows] = []
        self._found: list[NDArray[np.float32]] = []

    def add(self, outputs: Any, targets: Targets) -> None:
        """Keeps the boxes of a batch."""
        import torch
        from torch.utils import _pytree

        tensors = _pytree.tree_map(lambda value: torch.from_numpy(np.ascontiguousarray(value)), outputs)
        with torch.no_grad():
            found = [as_array(one).astype(np.float32).reshape(-1, 6) for one in self._head.detections(tensors)]
        if len(found) != len(targets):
            raise UsageError(
                f"the head found boxes for {len(found)} images of {len(targets)}; detections must return one tensor "
                "per image"
            )
        self._found += found
        self._wanted += [rows[rows[:, 4] != _NO_CLASS] for rows in targets]

    def merge(self, other: AveragePrecision) -> None:
        """Adds the boxes."""
        self._wanted += other._wanted
        self._found += other._found

    def measures(self) -> dict[str, float]:
        """Average precision over all overlaps, and at 50 and 75 %."""
        precision = self._precision()
        keys = {Detection.key: precision, "map50": precision[:1], "map75": precision[5:6]}
        return {key: _mean(values) or 0.0 for key, values in keys.items()}

    def per_class(self) -> list[float | None]:
        """Average precision of every class."""
        precision = self._precision()
        return [_mean(precision[:, :, number]) for number in range(self._classes)]

    def _precision(self) -> NDArray[np.float64]:
        """Precision by overlap, recall and class; -1 for classes without boxes."""
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        if not any(map(len, self._wanted)):
            return np.full((10, 101, self._classes), -1.0)
        with redirect_stdout(StringIO()):  # the library prints its progress
            wanted = COCO()
            wanted.dataset = {
                "info": {},
                "images": [{"id": number} for number in range(len(self._wanted))],
                "categories": [{"id": number} for number in range(self._classes)],
                "annotations": _annotations(self._wanted),
            }
            wanted.createIndex()
            found = COCO()
            found.dataset = {**wanted.dataset, "annotations": _annotations(self._found)}
            found.createIndex()
            evaluation = COCOeval(wanted, found, "bbox")
            evaluation.params.areaRng, evaluation.params.areaRngLbl = evaluation.params.areaRng[:1], ["all"]
            evaluation.evaluate()
            evaluation.accumulate()
        precision: NDArray[np.float64] = evaluation.eval["precision"][:, :, :, 0, -1]
        return precision


def _annotations(images: Sequence[NDArray[np.float32]]) -> list[dict[str, Any]]:
    """Boxes as COCO writes them; those of six columns have a score."""
    rows = [(number, row) for number, image in enumerate(images) for row in image.tolist()]
    return [
        {
            "id": position + 1,  # COCO takes 0 for no box
            "image_id": image,
            "category_id": int(row[-1]),
            "bbox": [row[0], row[1], row[2] - row[0], row[3] - row[1]],
            "area": (row[2] - row[0]) * (row[3] - row[1]),
            "iscrowd": 0,
            **({"score": row[4]} if len(row) > 5 else {}),
        }
        for position, (image, row) in enumerate(rows)
    ]


def _mean(values: NDArray[np.float64]) -> float | None:
    """The mean of what is known, in percent."""
    known = values[values > -1]
    return 100.0 * float(known.mean()) if known.size else None


def with_head(task: Detection, text: str, num_classes: int, image_size: ImageSize) -> Detection:
    """The task with a head of `HEADS`, or with the one that `FILE.py:FACTORY` makes.

    Args:
        task: detection.
        text: names the head or the function. Parameters `num_classes` and `image_size`, where it has them, get these values.
        num_classes: number of classes.
        image_size: of the inputs.

    Raises:
        UsageError: there is no such head or function, or what it returns is no head.
        ModelError: the file cannot be imported.
    """
    factory = _factory(text)
    values = {"num_classes": num_classes, "image_size": image_size}
    wanted = inspect.signature(factory).parameters
    given = {key: value for key, value in values.items() if key in wanted}
    try:
        inspect.signature(factory).bind(**given)
    except TypeError as error:
        raise UsageError(
            f"{text} cannot be called with num_classes and image_size alone ({error}); wrap it in a function"
        ) from error
    head = factory(**given)
    if not isinstance(head, DetectionHead):
        raise UsageError(f"{text} returned {type(head).__name__}; an object with loss and detections is wanted")
    return replace(task, head=head)


def _factory(text: str) -> Callable[..., Any]:
    """What makes the head that a text names.

    Raises:
        UsageError: there is none.
        ModelError: the file cannot be imported.
    """
    module, _, name = HEADS.get(text, "").partition(":")
    if module:
        made: Callable[..., Any] = getattr(import_module(module), name)
        return made
    file, _, name = text.rpartition(":")
    if not file.endswith(".py"):
        raise UsageError(f"--head {text!r} is not understood; write {_usage()}")
    factory = getattr(import_file(Path(file)), name, None)
    if not callable(factory):
        raise UsageError(f"{file} has no function {name!r} that makes a head; write FILE.py:FACTORY")
    found: Callable[..., Any] = factory
    return found


def _usage() -> str:
    """What `--head` takes."""
    return f"{', '.join(HEADS)} or FILE.py:FACTORY"
