"""Images for calibration: of all classes, the same for the same seed, and not stopped by those that cannot be decoded."""

from collections import Counter

import numpy as np

from nnstretch.training.data.calibration import CalibrationImages
from nnstretch.training.data.split import ArraySplit
from tests.kits.networks.unreadable_images import made


def test_images_of_all_classes_are_drawn_from_a_split_that_is_sorted_by_class() -> None:
    labels = np.repeat(np.arange(4), 50)
    split = ArraySplit(labels.astype(np.float32).reshape(-1, 1, 1, 1), labels)
    drawn = [int(image) for batch in CalibrationImages(split, 100) for image in batch.flatten()]
    counts = Counter(drawn)
    assert len(drawn) == 100
    assert min(counts[label] for label in range(4)) >= 15
    again = np.concatenate(list(CalibrationImages(split, 100, 8))).flatten()
    assert again.tolist()[:100] == drawn
    assert len(again) == 104
    other = [int(image) for batch in CalibrationImages(split, 100, seed=1) for image in batch.flatten()]
    assert other != drawn


def test_there_are_as_many_whole_batches_as_the_images_fill() -> None:
    split = ArraySplit(np.zeros((10, 1, 2, 2), np.float32), np.zeros(10, np.int64))
    assert [len(batch) for batch in CalibrationImages(split, 100, 4)] == [4, 4]
    assert list(CalibrationImages(split, 100, 11)) == []


def test_an_image_that_cannot_be_decoded_is_replaced_and_told() -> None:
    images = CalibrationImages(made(16, bad=frozenset({5})).train, 16)
    assert len(list(images)) == 16
    assert images.note == (
        "1 of 16 training images cannot be decoded, and others of their classes took their place: 5.jpg (truncated)"
    )
