"""Losses and measures of tasks against what they are by definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from nnstretch.errors import ModelError, UsageError
from nnstretch.training.data.preprocessing import Preprocessing
from nnstretch.training.recipe import Recipe
from nnstretch.training.recipe_files import load_recipe
from nnstretch.training.tasks.base import SpatialTask
from nnstretch.training.tasks.classification import CLASSIFICATION, Classification
from nnstretch.training.tasks.detection import Boxes, Detection
from nnstretch.training.tasks.segmentation import IGNORED, Segmentation

PREPROCESSING = Preprocessing(10, 3, (0.5,) * 3, (0.5,) * 3, crop_pct=0.5)


def logits_of(answers: np.ndarray, classes: int) -> np.ndarray:
    """Logits whose highest ones are `answers`."""
    found: np.ndarray = np.moveaxis(np.eye(classes, dtype=np.float32)[answers], -1, 1)
    return found


def test_overlaps_are_counted_over_all_images_without_ignored_pixels() -> None:
    draw = np.random.default_rng(0)
    masks, answers = draw.integers(0, 3, (4, 6, 6)), draw.integers(0, 3, (4, 6, 6))
    masks[draw.random(masks.shape) < 0.2] = IGNORED
    first, second = Segmentation().scorer(4), Segmentation().scorer(4)
    first.add(logits_of(answers[:1], 4), masks[:1])
    second.add(logits_of(answers[1:], 4), masks[1:])
    first.merge(second)
    counted = masks != IGNORED
    expected = [
        100 * ((masks == c) & (answers == c)).sum() / (((masks == c) | (answers == c)) & counted).sum()
        for c in range(3)
    ]
    assert first.per_class() == [pytest.approx(one) for one in expected] + [None]
    assert first.measures() == {
        "miou": pytest.approx(np.mean(expected)),
        "pixel_accuracy": pytest.approx(100 * (masks == answers)[counted].mean()),
    }
    assert first.percent == first.measures()["miou"]
    assert Segmentation().scorer(2).percent == 0


@pytest.mark.parametrize("form", [lambda x: x, lambda x: {"aux": None, "out": x}, lambda x: (x, None)])
def test_the_loss_of_masks_is_the_mean_over_the_pixels_that_count(form: object) -> None:
    assert callable(form)
    task, logits = Segmentation(), torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    masks = torch.randint(0, 3, (2, 8, 8), generator=torch.Generator().manual_seed(1))
    masks[0, :4] = IGNORED
    enlarged = functional.interpolate(logits, (8, 8), mode="bilinear", align_corners=False)
    expected = functional.cross_entropy(enlarged, masks, ignore_index=IGNORED)
    torch.testing.assert_close(task.loss(form(logits), masks), expected)
    assert float(task.loss(form(logits), torch.full_like(masks, IGNORED))) == 0
    assert task.logits(form(logits)).shape == (32, 3)
    task.check_outputs(form(logits), 2, 3)
    with pytest.raises(ModelError, match=r"\[2, 3, 4, 4\] for 2 images with masks of 5 classes"):
        task.check_outputs(form(logits), 2, 5)


def test_a_classifier_has_one_output() -> None:
    both = (torch.zeros(1, 3), torch.zeros(1, 8))
    with pytest.raises(ModelError, match=r"has no single output; .* take one tensor, of \[1, 3\] here"):
        Classification().check_outputs(both, 1, 3)
    with pytest.raises(ModelError, match=r"writes \[1, 8\] for 1 image of 3 classes"):
        Classification().check_outputs(both[1], 1, 3)


class Given:
    """A head whose outputs are the detections themselves."""

    def loss(self, outputs: Tensor, boxes: Tensor) -> Tensor:
        return outputs.sum() * 0

    def detections(self, outputs: Tensor) -> list[Tensor]:
        return list(outputs)


def test_average_precision_is_that_of_coco() -> None:
    """One class is found exactly, one with an overlap of 0.6 (counts at 50, 55 and 60 %), one not; a fourth has no boxes."""
    pytest.importorskip("pycocotools")
    wanted = np.array(
        [[[0, 0, 10, 10, 0], [20, 20, 30, 30, 1], [5, 5, 9, 9, 2]], [[0, 0, 4, 4, 0], *[[0, 0, 0, 0, -1]] * 2]]
    )
    found = np.array(
        [
            [[0, 0, 10, 10, 0.9, 0], [20, 20, 30, 26, 0.8, 1], [40, 40, 44, 44, 0.1, 0]],
            [[0, 0, 4, 4, 0.7, 0], *[[0] * 6] * 2],
        ]
    )
    first, second = Detection(Given()).scorer(4), Detection(Given()).scorer(4)
    first.add(found[:1], wanted[:1].astype(np.float32))
    second.add(found[1:], wanted[1:].astype(np.float32))
    first.merge(second)
    assert first.per_class() == [pytest.approx(100), pytest.approx(30), 0, None]
    measures = first.measures()
    assert measures["map"] == pytest.approx(130 / 3)
    assert measures["map50"] == pytest.approx(200 / 3)
    assert measures["map75"] == pytest.approx(100 / 3)
    assert first.percent == measures["map"]
    assert Detection(Given()).scorer(2).percent == 0


def test_a_head_answers_for_every_image() -> None:
    scorer = Detection(Given()).scorer(1)
    with pytest.raises(UsageError, match="boxes for 1 images of 2"):
        scorer.add(np.zeros((1, 0, 6)), np.zeros((2, 1, 5), np.float32))
    with pytest.raises(UsageError, match=r"give --head yolo or FILE\.py:FACTORY"):
        Detection().check_outputs(torch.zeros(1), 1, 2)


def test_boxes_are_cut_as_their_image_is() -> None:
    """An image of 20 x 40 keeps its size (20 is 10 over 0.5); the input is the 10 x 10 pixels from row 5 and column 15 on."""
    rows = np.array([[16, 6, 20, 9, 3], [0, 0, 17, 40, 1], [0, 0, 15.5, 30, 2], [18, 10, 60, 12, 0]], np.float32)
    fitted = Detection().fitted(Boxes(rows, 20, 40), PREPROCESSING)
    assert fitted.rows.tolist() == [[1, 1, 5, 4, 3], [0, 0, 2, 10, 1], [3, 5, 10, 7, 0]]
    assert (fitted.height, fitted.width) == (10, 10)
    assert rows[0, 0] == 16
    none = Detection().fitted(Boxes(rows[:0], 20, 40), PREPROCESSING)
    batch = Detection().collated([fitted, none])
    assert batch.shape == (2, 3, 5)
    assert (batch[1, :, 4] == -1).all()
    assert Detection().collated([none]).shape == (1, 1, 5)


@pytest.mark.parametrize("size", [(20, 40), (37, 23), (10, 10), (9, 64)])
def test_masks_are_cut_as_their_image_is(size: tuple[int, int]) -> None:
    mask = np.zeros(size, np.uint8)
    mask[size[0] // 2 :, size[1] // 2 :] = 200
    image = np.repeat(mask[..., None], 3, axis=2)
    fitted = Segmentation().fitted(mask, PREPROCESSING)
    pixels = replace(PREPROCESSING, interpolation="nearest").pixels(image)
    np.testing.assert_array_equal(fitted, pixels[..., 0])


@pytest.mark.parametrize("task", [Segmentation(), Detection()])
@pytest.mark.parametrize(
    "change", [{"mixup": 0.2}, {"cutmix": 1.0}, {"aa": "rand-m7"}, {"smoothing": 0.1}, {"scales": ((1, 0.5),)}]
)
def test_recipes_for_classification_are_refused(task: SpatialTask, change: dict[str, object]) -> None:
    recipe = replace(Recipe(epochs=1), **change)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"{next(iter(change))} is .* for classification; turn it off for {task.name}"):
        task.check_recipe(recipe)
    CLASSIFICATION.check_recipe(recipe)
    task.check_recipe(load_recipe("dense"))
