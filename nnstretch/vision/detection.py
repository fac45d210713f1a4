"""Boxes of detectors: the forms in which exporters write them, and the suppression of boxes that overlap.

Coordinates are pixels of the input. The forms, for A candidates and C classes:

====================  ================================================================================================
1, 4+C, A             centre x, centre y, width, height, then a probability per class (YOLOv8, YOLO11). More channels
                      than 4 + the stated number of classes are of masks or key points, and are not read.
1, A, 5+C             centre x, centre y, width, height, probability of any object, then one per class (YOLOv5, YOLOv7)
1, M, 6               left, top, right, bottom, probability, class (YOLOv10, YOLO26, exports with suppression)
M, 4 · M · M          boxes, integer classes and probabilities as three outputs (torchvision)
====================  ================================================================================================

A is the number of cells of maps at strides 8, 16 and 32, with maps at 4 or 64 as well or without that at 8, or three times
that: other outputs of rank 3 are no boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

Boxes = NDArray[np.float32]
"""``M x 4``: left, top, right, bottom."""

CONFIDENCE, OVERLAP = 0.25, 0.7
"""Usual least probability of a box, and largest intersection over union of two boxes of a class."""
MOST_BOXES = 300
"""Boxes of an image that are kept, those with the highest probabilities."""
_MOST_FINAL = 1000  # rows of an output that holds boxes after suppression
_ANCHORS = (1, 3)  # candidates per cell
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))
"""Of the maps of detectors: the usual ones, those for large or for small objects, and of small networks."""


class Detections(NamedTuple):
    """Boxes of an image, the most probable first.

    Attributes:
        boxes: ``M x 4``: left, top, right, bottom.
        scores: ``M`` probabilities.
        classes: ``M`` indices of classes.
    """

    boxes: Boxes
    scores: NDArray[np.float32]
    classes: NDArray[np.int64]

    def chosen(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Detections:
        """Some of the boxes, by a mask or by their indices."""
        return Detections(self.boxes[rows], self.scores[rows], self.classes[rows])


@dataclass(frozen=True)
class DetectorForm:
    """How the outputs of a detector are read.

    Attributes:
        kind: "classes" (1, 4+C, A), "objects" (1, A, 5+C), "rows" (1, M, 6) or "lists" (three outputs).
        outputs: names of the outputs that are read; of "lists" boxes, classes and probabilities.
        classes: number of classes, where the file states it.
    """

    kind: str
    outputs: tuple[str, ...]
    classes: int | None = None


def detector_form(
    outputs: Mapping[str, Sequence[int]], input_size: tuple[int, int], classes: int | None
) -> DetectorForm | None:
    """The form of a detector's outputs; None if they are no boxes.

    Args:
        outputs: shapes by name.
        input_size: height and width of the input in pixels.
        classes: number of classes that the file states, if any.
    """
    if (lists := _lists(outputs)) is not None:
        return lists
    cells = {
        anchors * sum(-(-input_size[0] // stride) * -(-input_size[1] // stride) for stride in strides)
        for anchors in _ANCHORS
        for strides in STRIDES
    }
    for name, shape in outputs.items():
        if len(shape) != 3 or shape[0] != 1:
            continue
        if shape[2] in cells and shape[1] > 4 and (classes is None or shape[1] >= 4 + classes):
            return DetectorForm("classes", (name,), classes)
        if shape[1] in cells and shape[2] > 5:
            return DetectorForm("objects", (name,), classes)
        if shape[2] == 6 and shape[1] <= _MOST_FINAL:
            return DetectorForm("rows", (name,), classes)
    return None


def _lists(outputs: Mapping[str, Sequence[int]]) -> DetectorForm | None:
    """Three outputs with boxes, classes and probabilities of as many rows."""
    found: dict[str, str] = {}
    for name, shape in outputs.items():
        plain = name.lower()
        if len(shape) == 2 and shape[1] == 4 and "box" in plain:
            found["boxes"] = name
        elif len(shape) == 1 and ("label" in plain or "class" in plain):
            found["classes"] = name
        elif len(shape) == 1 and "score" in plain:
            found["scores"] = name
    if len(found) < 3:
        return None
    return DetectorForm("lists", (found["boxes"], found["classes"], found["scores"]))


def candidates(form: DetectorForm, outputs: Mapping[str, NDArray[np.float32]]) -> Detections:
    """All candidates of an image, each with its most probable class.

    Args:
        form: of the outputs.
        outputs: by name, of one image.
    """
    values = [outputs[name] for name in form.outputs]
    if form.kind == "lists":
        boxes, classes, scores = values
        return Detections(boxes.astype(np.float32), scores.astype(np.float32), classes.astype(np.int64))
    rows = values[0][0].astype(np.float32)
    if form.kind == "rows":
        return Detections(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64))
    if form.kind == "classes":
        rows = rows.T
        of_classes = rows[:, 4 : None if form.classes is None else 4 + form.classes]
    else:
        of_classes = rows[:, 5:] * rows[:, 4:5]
    best = of_classes.argmax(axis=1)
    scores = np.take_along_axis(of_classes, best[:, None], axis=1)[:, 0]
    half = rows[:, 2:4] / 2
    return Detections(np.concatenate((rows[:, :2] - half, rows[:, :2] + half), axis=1), scores, best.astype(np.int64))


def detections(
    form: DetectorForm,
    outputs: Mapping[str, NDArray[np.float32]],
    confidence: float = CONFIDENCE,
    overlap: float = OVERLAP,
) -> Detections:
    """The boxes of an image after suppression.

    Args:
        form: of the outputs.
        outputs: by name, of one image.
        confidence: least probability.
        overlap: largest intersection over union of two boxes of a class; of more, the most probable stays. Outputs that hold
            the boxes after suppression are not suppressed again.
    """
    found = candidates(form, outputs)
    sure = np.isfinite(found.scores) & np.isfinite(found.boxes).all(axis=1) & (found.scores >= confidence)
    found = found.chosen(sure)
    if form.kind in ("classes", "objects"):
        found = found.chosen(suppressed(found, overlap))
    return found.chosen(np.argsort(-found.scores, kind="stable")[:MOST_BOXES])


def suppressed(found: Detections, overlap: float) -> NDArray[np.int64]:
    """Indices of the boxes that no more probable box of their class overlaps by more than `overlap`."""
    if not len(found.scores):
        return np.zeros(0, np.int64)
    session = ort.InferenceSession(_suppression().SerializeToString(), providers=["CPUExecutionProvider"])
    # Boxes of different classes lie apart, so that one class holds all of them.
    extent = float(np.abs(found.boxes).max()) * 2 + 1
    apart = found.boxes + (found.classes[:, None] * extent).astype(np.float32)
    feeds = {
        "boxes": apart[None],
        "scores": found.scores[None, None],
        "most": np.array([len(found.scores)], np.int64),
        "overlap": np.array([overlap], np.float32),
    }
    (selected,) = session.run(None, feeds)
    return np.asarray(selected[:, 2], np.int64)


def _suppression() -> onnx.ModelProto:
    """A model of one NonMaxSuppression."""
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["selected"])
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, "M", 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1, "M"]),
        helper.make_tensor_value_info("most", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("overlap", TensorProto.FLOAT, [1]),
    ]
    output = helper.make_tensor_value_info("selected", TensorProto.INT64, ["K", 3])
    graph = helper.make_graph([node], "suppression", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
