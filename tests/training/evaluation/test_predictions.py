"""Answers of networks on labelled images, alone and two at a time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from nnstretch.errors import ModelError
from nnstretch.training.data.split import ArraySplit
from nnstretch.training.evaluation.accuracy import top1
from nnstretch.training.evaluation.predictions import Accuracy, ClassAccuracy, Comparison, Predictions, predict

CLASSES = 7


def numbered(count: int = 20) -> ArraySplit:
    """Images whose first pixel is their number; labels 0 … 6 in turn."""
    pixels = np.zeros((count, 1, 8, 8), np.float32)
    pixels[:, 0, 0, 0] = np.arange(count)
    return ArraySplit(pixels, np.arange(count) % CLASSES)


def rank_of_the_label(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logits with which the label of image n has the rank n % 6."""
    numbers = images[:, 0, 0, 0].astype(int)
    logits = np.tile(-np.arange(1.0, CLASSES + 1, dtype=np.float32), (len(images), 1))
    for row, number in zip(logits, numbers, strict=True):
        order = [c for c in range(CLASSES) if c != number % CLASSES]
        order.insert(number % 6, number % CLASSES)
        row[order] = -np.arange(CLASSES)
    return logits


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_top_k_counts_the_labels_among_the_first_k(batch: int) -> None:
    reports: list[tuple[int, int, str]] = []
    found = predict(rank_of_the_label, numbered(), CLASSES, batch, lambda *report: reports.append(report))
    ranks = [number % 6 for number in range(20)]
    for k in range(1, 6):
        assert found.top(k) == Accuracy(sum(rank < k for rank in ranks), 20)
    assert found.top(1).percent == top1(rank_of_the_label, numbered(), CLASSES, batch)
    assert found.ranks_five
    assert reports[-1] == (20, 20, "evaluating")


def test_of_equal_logits_the_lower_class_is_the_answer() -> None:
    found = predict(lambda images: np.zeros((len(images), CLASSES), np.float32), numbered(7), CLASSES)
    assert found.ranked.tolist() == [[0, 1, 2, 3, 4]] * 7
    assert found.top(1) == Accuracy(1, 7)
    assert found.top(1).interval == pytest.approx((2.5676, 51.3124), abs=1e-3)


def test_few_classes_have_no_top_five() -> None:
    found = predict(lambda images: np.eye(3, dtype=np.float32)[np.zeros(len(images), int)], numbered(3), 3)
    assert not found.ranks_five
    assert found.top(5) == Accuracy(3, 3)


def test_logits_that_are_not_numbers_and_wrong_shapes_are_refused() -> None:
    def broken(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.where(images[:, :, 0, 0] == 5, np.nan, 0).astype(np.float32) + np.zeros(CLASSES, np.float32)

    with pytest.raises(ModelError, match="image 5"):
        predict(broken, numbered(), CLASSES, 2)
    with pytest.raises(ModelError, match=r"\[2, 7\].*\[2, 8\]"):
        predict(rank_of_the_label, numbered(), CLASSES + 1, 2)


def predictions(labels: list[int], answers: list[int], classes: int = 3) -> Predictions:
    return Predictions(np.array(labels), np.array(answers)[:, None], classes)


def test_classes_one_by_one() -> None:
    found = predictions([0, 0, 0, 0, 1, 1], [0, 2, 2, 1, 1, 1])
    assert found.per_class() == [
        ClassAccuracy(0, Accuracy(1, 4), 1, (2, 2)),
        ClassAccuracy(1, Accuracy(2, 2), 3, None),
        ClassAccuracy(2, Accuracy(0, 0), 2, None),
    ]
    assert found.confusions == {(0, 2): 2, (0, 1): 1}
    assert Accuracy(0, 0).percent == 0


def test_two_networks_on_the_same_images() -> None:
    labels = [0, 0, 0, 1, 1, 2]
    found = Comparison(predictions(labels, [0, 0, 1, 1, 2, 0]), predictions(labels, [0, 1, 1, 2, 1, 1]))
    assert (found.both_right, found.only_first, found.only_second, found.both_wrong) == (1, 2, 1, 2)
    assert found.agreement == Accuracy(2, 6)  # the first image, and the third, which both take for a 1
    assert found.p_value == 1.0
    assert found.confusion_changes(2) == [(0, 1, 1, 2), (2, 0, 1, 0)]
    assert found.confusion_changes(9) == [(0, 1, 1, 2), (2, 0, 1, 0), (2, 1, 0, 1)]
    assert Comparison(found.first, found.first).agreement.percent == 100
    assert Comparison(found.first, found.first).confusion_changes(9) == []
    with pytest.raises(ValueError, match="same images"):
        Comparison(found.first, predictions([1, 0, 0, 1, 1, 2], [0] * 6))
