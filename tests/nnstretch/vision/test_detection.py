"""Boxes of detectors against a plain suppression, and images letterboxed against the boxes that are scaled back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nnstretch.vision.classes import class_name, most_pixels, most_probable, stated_names
from nnstretch.vision.detection import Boxes, Detections, DetectorForm, detections, detector_form, suppressed
from nnstretch.vision.drawing import colour_of, draw_boxes, draw_classes
from nnstretch.vision.letterbox import BORDER, Letterbox

CELLS = 84
"""Of maps at strides 8, 16 and 32 of an input of 64 × 64."""


def overlap_of(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(width, 0.0) * max(height, 0.0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return float(common / (sum(areas) - common)) if common > 0 else 0.0


def plainly_suppressed(found: Detections, limit: float) -> set[int]:
    kept: list[int] = []
    for index in np.argsort(-found.scores, kind="stable"):
        same = [k for k in kept if found.classes[k] == found.classes[index]]
        if all(overlap_of(found.boxes[k], found.boxes[index]) <= limit for k in same):
            kept.append(int(index))
    return set(kept)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.sampled_from([0.0, 0.3, 0.7, 1.0]))
def test_suppression_is_that_of_the_definition(seed: int, count: int, limit: float) -> None:
    random = np.random.default_rng(seed)
    corners = random.uniform(-20, 60, (count, 2)).astype(np.float32)
    boxes: Boxes = np.concatenate((corners, corners + random.uniform(1, 40, (count, 2)).astype(np.float32)), axis=1)
    scores = (random.permutation(count) / max(count, 1)).astype(np.float32)
    found = Detections(boxes, scores, random.integers(0, 3, count))
    assert set(suppressed(found, limit)) == plainly_suppressed(found, limit)


def row(box: tuple[float, float, float, float], *values: float) -> list[float]:
    left, top, right, bottom = box
    return [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top, *values]


FIRST, NEAR, OTHER = (8.0, 8.0, 24.0, 40.0), (9.0, 8.0, 25.0, 40.0), (30.0, 30.0, 60.0, 50.0)


def outputs_of(kind: str) -> dict[str, NDArray[np.float32]]:
    """Two boxes of class 1, one suppressed by the other, and one of class 0, in a form of outputs."""
    if kind == "rows":
        rows = np.zeros((1, 300, 6), np.float32)
        rows[0, 0], rows[0, 1] = (*FIRST, 0.9, 1), (*OTHER, 0.5, 0)
        return {"y": rows}
    if kind == "lists":
        boxes = np.array([OTHER, FIRST], np.float32)
        scores, labels = np.array([0.5, 0.9], np.float32), np.array([0.0, 1.0], np.float32)
        return {"boxes": boxes, "labels": labels, "scores": scores}
    objects = kind == "objects"
    candidates = np.zeros((CELLS, 7 if objects else 6), np.float32)
    sure = (1.0,) if objects else ()
    candidates[3] = row(NEAR, *sure, 0.1, 0.8)
    candidates[50] = row(FIRST, *sure, 0.2, 0.9)
    candidates[83] = row(OTHER, *([0.625] if objects else []), *([0.8, 0.1] if objects else [0.5, 0.1]))
    return {"y": candidates[None] if objects else candidates.T[None]}


@pytest.mark.parametrize("kind", ["classes", "objects", "rows", "lists"])
def test_boxes_of_every_form(kind: str) -> None:
    outputs = outputs_of(kind)
    form = detector_form({name: y.shape for name, y in outputs.items()}, (64, 64), None)
    assert form is not None
    assert form.kind == kind
    found = detections(form, outputs)
    np.testing.assert_allclose(found.boxes, [FIRST, OTHER], rtol=1e-5)
    np.testing.assert_allclose(found.scores, [0.9, 0.5], rtol=1e-6)
    assert found.classes.tolist() == [1, 0]
    assert detections(form, outputs, confidence=0.6).classes.tolist() == [1]
    kept = 3 if kind in ("classes", "objects") else 2
    assert len(detections(form, outputs, overlap=1.0).scores) == kept


@pytest.mark.parametrize("strides", [(8, 16, 32, 64), (4, 8, 16, 32), (16, 32)])
@pytest.mark.parametrize("anchors", [1, 3])
def test_maps_of_other_strides(strides: tuple[int, ...], anchors: int) -> None:
    count = anchors * sum((64 // stride) * (96 // stride) if stride < 64 else 2 for stride in strides)
    assert detector_form({"y": (1, 6, count)}, (64, 96), None) == DetectorForm("classes", ("y",))
    assert detector_form({"y": (1, count, 7)}, (64, 96), None) == DetectorForm("objects", ("y",))


def test_channels_behind_the_classes_are_not_read() -> None:
    outputs = {"y": np.concatenate((outputs_of("classes")["y"], np.full((1, 32, CELLS), 9.0, np.float32)), axis=1)}
    form = detector_form({"y": (1, 38, CELLS)}, (64, 64), 2)
    assert form == DetectorForm("classes", ("y",), 2)
    assert detections(form, outputs).classes.tolist() == [1, 0]


def test_numbers_that_are_none_are_no_boxes() -> None:
    outputs = outputs_of("classes")
    outputs["y"][0, 2, 50] = np.nan
    outputs["y"][0, 5, 3] = np.inf
    found = detections(DetectorForm("classes", ("y",)), outputs)
    assert found.classes.tolist() == [0]


@pytest.mark.parametrize(
    "shape", [(1, 1000), (1, 197, 192), (1, 21, 64, 64), (2, 6, CELLS), (1, 4, CELLS), (1, 1500, 6)]
)
def test_other_outputs_are_no_boxes(shape: tuple[int, ...]) -> None:
    assert detector_form({"y": shape}, (64, 64), None) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(8, 96), st.integers(8, 96))
def test_letterboxed_images_keep_their_ratio_and_boxes_return(height: int, width: int, rows: int, columns: int) -> None:
    place = Letterbox((height, width), (rows, columns))
    raw = np.full((height, width, 3), 200, np.uint8)
    pixels = place.pixels(raw)
    assert pixels.shape == (rows, columns, 3)
    inside = (pixels == 200).all(axis=2)
    assert ((pixels == BORDER).all(axis=2) ^ inside).all()
    top, left = place.corner
    scaled = place.scaled
    assert inside[top : top + scaled[0], left : left + scaled[1]].all()
    assert inside.sum() == scaled[0] * scaled[1]
    assert rows in (scaled[0], scaled[0] + 1) or columns in (scaled[1], scaled[1] + 1)
    box = np.array([[left, top, left + scaled[1], top + scaled[0]]], np.float32)
    found = place.in_image(box)[0]
    np.testing.assert_allclose(found, (0, 0, width, height), atol=0.51 / place.scale + 1e-3)
    assert place.values(raw, 1).shape == (1, 1, rows, columns)


def test_classes_of_logits_and_of_probabilities() -> None:
    logits = np.array([[1.0, 3.0, 2.0]], np.float32)
    wanted = np.exp(logits[0]) / np.exp(logits[0]).sum()
    for output in (logits, wanted[None].astype(np.float32)):
        found = most_probable(output, 2)
        assert [one.number for one in found] == [1, 2]
        np.testing.assert_allclose([one.share for one in found], wanted[[1, 2]], rtol=1e-5)
    assert most_pixels(np.array([[3, 3], [1, 3]]))[0] == (3, 0.75)


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ({"names": "{0: 'bus', 7: \"it's\"}"}, {0: "bus", 7: "it's"}),
        ({"names": '["a", "b"]'}, {0: "a", 1: "b"}),
        ({"nnstretch.classes": {"1": "b"}, "names": "['x']"}, {1: "b"}),
        ({"names": "__import__('os')"}, {}),
        ({"names": "{'x': 1}"}, {}),
        ({"names": "[" * 100_000}, {}),
        ({}, {}),
    ],
)
def test_names_of_classes(metadata: dict[str, object], wanted: dict[int, str]) -> None:
    found = stated_names(metadata)
    assert found == wanted
    assert class_name(found, 99) == "class 99"


def test_pictures_show_boxes_and_classes() -> None:
    raw = np.full((60, 80, 1), 90, np.uint8)
    found = Detections(np.array([[10, 30, 50, 55]], np.float32), np.ones(1, np.float32), np.array([4]))
    picture = draw_boxes(raw, found, {4: "cat"})
    assert picture.shape == (60, 80, 3)
    assert tuple(picture[55, 30]) == tuple(picture[40, 50]) == colour_of(4)
    assert tuple(picture[45, 30]) == (90, 90, 90)
    mapped = draw_classes(raw, np.array([[0, 2]]))
    assert tuple(mapped[0, 0]) == (90, 90, 90)
    assert tuple(mapped[0, 79]) == tuple(np.rint((np.array(colour_of(2)) + 90) / 2).astype(int))
