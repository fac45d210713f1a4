"""What a network says of an image: its kind follows from the shapes of its outputs and from the metadata of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import FileError, ModelError, UsageError
from nnstretch.support.image_size import size_of
from nnstretch.training.data.image_files import decode
from nnstretch.training.data.preprocessing import (
    Images,
    Pixels,
    Preprocessing,
    normalise,
    photo_preprocessing,
)
from nnstretch.training.data.split import UnreadableImageError
from nnstretch.vision.classes import ClassShare, class_name, most_pixels, most_probable, stated_names
from nnstretch.vision.detection import CONFIDENCE, OVERLAP, Detections, DetectorForm, detections, detector_form
from nnstretch.vision.drawing import draw_boxes, draw_classes
from nnstretch.vision.letterbox import Letterbox


class Kind(Enum):
    """What outputs say of an image; the values are for messages."""

    DETECTIONS = "boxes"
    CLASSES = "classes of the whole image"
    CLASS_MAP = "a class map"
    OTHER = "neither classes nor boxes"

    @property
    def is_drawn(self) -> bool:
        """Whether there is a picture of it."""
        return self in {Kind.DETECTIONS, Kind.CLASS_MAP}


@dataclass(frozen=True)
class ImageModel:
    """A network that reads one image.

    Attributes:
        input: name of the input.
        shape: of the input, ``1 x C x H x W`` with 1 or 3 channels.
        outputs: shapes by name.
        preprocessing: as the file states it; None where it does not.
        names: of the classes, by index; empty where the file has none.
    """

    input: str
    shape: tuple[int, int, int, int]
    outputs: Mapping[str, tuple[int, ...]]
    preprocessing: Preprocessing | None
    names: Mapping[int, str]

    @cached_property
    def detector(self) -> DetectorForm | None:
        """How its boxes are read, if it is a detector."""
        return detector_form(self.outputs, self.shape[2:], len(self.names) or None)

    @property
    def kind(self) -> Kind:
        """What its first output says of an image."""
        if self.detector is not None:
            return Kind.DETECTIONS
        shape = next(iter(self.outputs.values()), ())
        if len(shape) >= 2 and shape[1] > 1 and all(size == 1 for axis, size in enumerate(shape) if axis != 1):
            return Kind.CLASSES
        if len(shape) == 4 and shape[0] == 1 and shape[1] > 1:
            return Kind.CLASS_MAP
        return Kind.OTHER

    @property
    def others(self) -> str:
        """A line on outputs beside the first one, where that alone is shown; else empty."""
        first, *rest = self.outputs or ("",)
        if not rest or self.kind not in {Kind.CLASSES, Kind.CLASS_MAP}:
            return ""
        return f"the classes are those of output {first}; -o FILE.npz writes {', '.join(rest)}, too"

    @property
    def assumption(self) -> str:
        """A line on the preprocessing where the file states none; else empty."""
        if self.preprocessing is not None:
            return ""
        if self.detector is not None:
            return "the file states no preprocessing: the image is letterboxed, its values are 0 … 1"
        return "the file states no preprocessing: that of ImageNet's photographs is assumed"


def image_model(
    inputs: Sequence[tuple[str, Sequence[int]]],
    outputs: Mapping[str, Sequence[int]],
    metadata: Mapping[str, Any],
    preprocessing: Preprocessing | None,
) -> ImageModel:
    """A network that reads one image.

    Args:
        inputs: names and shapes of the network's inputs.
        outputs: shapes by name.
        metadata: of its file.
        preprocessing: that its file states, if any.

    Raises:
        UsageError: the network does not read one image.
    """
    if len(inputs) != 1:
        raise UsageError(
            f"--image needs a network with one input; it has {len(inputs)}; give them with --input NAME=FILE"
        )
    ((name, shape),) = inputs
    if len(shape) != 4 or shape[0] != 1 or shape[1] not in (1, 3) or not all(isinstance(n, int) for n in shape):
        sizes = ",".join(map(str, shape))
        raise UsageError(
            f"--image needs an input 1,3,H,W or 1,1,H,W; {name!r} is {sizes}; give it with --input NAME=FILE"
        )
    batch, channels, height, width = shape
    shapes = {output: tuple(sizes) for output, sizes in outputs.items()}
    return ImageModel(name, (batch, channels, height, width), shapes, preprocessing, stated_names(metadata))


@dataclass(frozen=True)
class Answer:
    """What a network says of an image.

    Attributes:
        names: of classes, by index.
        detections: boxes in pixels of the image, the most probable first; None if the network is no detector.
        classes: the most probable classes of the image, or the classes of most pixels with their shares.
        picture: ``H x W x 3``: boxes, or a class map over the input; None if there is nothing to draw.
    """

    names: Mapping[int, str]
    detections: Detections | None = None
    classes: tuple[ClassShare, ...] = ()
    picture: Pixels | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object: `detections` with boxes in pixels (left, top, right, bottom), or `classes`."""
        if self.detections is not None:
            rows = [
                {**self._named(int(index)), "score": _rounded(score, 4), "box": [_rounded(side, 1) for side in box]}
                for box, score, index in zip(*self.detections, strict=True)
            ]
            return {"detections": rows}
        if self.classes:
            return {"classes": [{**self._named(one.number), "share": _rounded(one.share, 4)} for one in self.classes]}
        return {}

    def _named(self, number: int) -> dict[str, Any]:
        return {"class": number, "name": class_name(self.names, number)}


def _rounded(value: float | np.floating[Any], digits: int) -> float:
    return round(float(value), digits)


@dataclass(frozen=True)
class ImageInput:
    """An image for a network.

    Attributes:
        model: the network.
        raw: the decoded image, ``H x W x C``.
    """

    model: ImageModel
    raw: Pixels

    @property
    def letterbox(self) -> Letterbox:
        """Its place in the input of a detector."""
        return Letterbox((self.raw.shape[0], self.raw.shape[1]), self.model.shape[2:])

    @property
    def feeds(self) -> dict[str, Images]:
        """The input by its name."""
        channels, stated = self.model.shape[1], self.model.preprocessing
        if self.model.detector is not None:
            values = self.letterbox.values(self.raw, channels)
            return {self.model.input: values if stated is None else normalise(values, stated.mean, stated.std)}
        return {self.model.input: self._cut.normalised(self._cut.pixels(self.raw)[None])}

    @property
    def _cut(self) -> Preprocessing:
        """The preprocessing of a network that is no detector.

        Raises:
            ModelError: that of the file is for another input.
        """
        _, channels, height, width = self.model.shape
        found = self.model.preprocessing or photo_preprocessing(size_of(height, width), channels)
        if (*found.shape, found.channels) != (height, width, channels):
            raise ModelError(
                f"the file states a preprocessing to {found.channels}×{found.shape[0]}×{found.shape[1]}, its input is "
                f"{channels}×{height}×{width}; compile or export it again for this size"
            )
        return found

    def answer(
        self, outputs: Mapping[str, NDArray[np.float32]], confidence: float = CONFIDENCE, overlap: float = OVERLAP
    ) -> Answer:
        """What the outputs of a run say of the image.

        Args:
            outputs: by name.
            confidence: least probability of a box.
            overlap: largest intersection over union of two boxes of a class.
        """
        names, kind = self.model.names, self.model.kind
        if (form := self.model.detector) is not None:
            found = detections(form, outputs, confidence, overlap)
            found = found._replace(boxes=self.letterbox.in_image(found.boxes))
            return Answer(names, found, picture=draw_boxes(self.raw, found, names))
        first = next(iter(self.model.outputs), "")
        if kind is Kind.CLASSES:
            return Answer(names, classes=tuple(most_probable(outputs[first])))
        if kind is Kind.CLASS_MAP:
            classes = outputs[first][0].argmax(axis=0)
            picture = draw_classes(self._cut.pixels(self.raw), classes)
            return Answer(names, classes=tuple(most_pixels(classes)), picture=picture)
        return Answer(names)


def read_image(path: Path, channels: int) -> Pixels:
    """The pixels of an image file: ``H x W x channels``.

    Raises:
        FileError: it is missing or no whole image.
    """
    try:
        return decode(path, str(path), channels)
    except UnreadableImageError as error:
        raise FileError(f"cannot read {error}; give a PNG, JPEG, WebP, BMP or TIFF file") from error
