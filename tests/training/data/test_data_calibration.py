"""Images for calibration: of all classes, the same for the same seed, and not stopped by those that cannot be decoded."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnstretch.errors import UsageError
from nnstretch.training.data import load_dataset
from nnstretch.training.data.calibration import CalibrationImages, images_to_calibrate
from nnstretch.training.data.preprocessing import Preprocessing, photo_preprocessing
from nnstretch.training.data.sources.unlabelled import unlabelled_images
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


def photos(folder: Path, *names: str) -> Path:
    """A folder with an image file of another colour under every name."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (40 * number, 100, 200)).save(folder / name)
    return folder


@pytest.mark.parametrize("written", ["{}", "folder:{}"])
@pytest.mark.parametrize("names", [("a.png", "b.png", "c.jpg"), ("cat/a.png", "dog/b.png", "c.png")])
def test_a_folder_without_splits_gives_all_its_images(written: str, names: tuple[str, ...], tmp_path: Path) -> None:
    split, preprocessing = images_to_calibrate(written.format(photos(tmp_path, *names)), (16, 16), 3, None)
    assert len(split) == 3
    assert preprocessing == photo_preprocessing(16, 3)
    assert len({float(images.mean()) for images in CalibrationImages(split, 3)}) == 3


def test_a_folder_with_splits_gives_the_training_images(tmp_path: Path) -> None:
    names = [
        f"{split}/{label}/{number}.png" for split in ("train", "val", "test") for label in "ab" for number in (0, 1)
    ]
    source = f"folder:{photos(tmp_path, *names)}"
    split, preprocessing = images_to_calibrate(source, (16, 16), 3, None)
    expected = load_dataset(source, 16, 3)
    assert len(split) == 4
    assert preprocessing == expected.preprocessing
    for images, same in zip(CalibrationImages(split, 4), CalibrationImages(expected.train, 4), strict=True):
        assert np.array_equal(images, same)


def test_the_preprocessing_that_a_network_states_goes_before_that_of_photographs(tmp_path: Path) -> None:
    stated = Preprocessing(32, 1, (0.5,), (0.25,))
    split, preprocessing = images_to_calibrate(str(photos(tmp_path, "a.png")), (24, 24), 1, stated)
    assert preprocessing == Preprocessing(24, 1, (0.5,), (0.25,))
    (images,) = CalibrationImages(split, 1)
    assert images.shape == (1, 1, 24, 24)


def test_inputs_that_are_not_square(tmp_path: Path) -> None:
    split, preprocessing = images_to_calibrate(str(photos(tmp_path, "a.png")), (16, 24), 3, None)
    assert preprocessing.image_size == (16, 24)
    (images,) = CalibrationImages(split, 1)
    assert images.shape == (1, 3, 16, 24)
    split, preprocessing = images_to_calibrate("digits", (16, 24), 1, None)
    (images,) = CalibrationImages(split, 1)
    assert images.shape == (1, 1, 16, 24)


def test_shapes_that_no_image_has_are_refused(tmp_path: Path) -> None:
    source = str(photos(tmp_path, "a.png"))
    with pytest.raises(UsageError, match="2 channels were asked for"):
        images_to_calibrate(source, (16, 16), 2, None)
    with pytest.raises(UsageError, match="4×4 pixels are too small"):
        images_to_calibrate(source, (4, 4), 3, None)
    with pytest.raises(UsageError, match="no data set is called"):
        images_to_calibrate(f"{source}/absent", (16, 16), 3, None)


def test_a_folder_with_the_name_of_a_data_set_is_not_that_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path, "digits/a.png")
    monkeypatch.chdir(tmp_path)
    assert len(images_to_calibrate("digits", (16, 16), 1, None)[0]) > 1000
    assert len(images_to_calibrate("folder:digits", (16, 16), 1, None)[0]) == 1
    with pytest.raises(UsageError, match="needs a path"):
        images_to_calibrate("folder:", (16, 16), 1, None)


def test_a_folder_with_splits_is_not_taken_whole(tmp_path: Path) -> None:
    source = str(photos(tmp_path, "train/a/0.png", "test/a/0.png"))
    with pytest.raises(UsageError, match=f"write folder:{source}"):
        images_to_calibrate(source, (16, 16), 3, None)
    with pytest.raises(UsageError, match=f"write folder:{source}"):
        unlabelled_images(source, load_dataset("digits", 16, 3))


@pytest.mark.parametrize("written", ["{}", "folder:{}"])
def test_trainings_without_labels_take_the_same_folders(written: str, tmp_path: Path) -> None:
    dataset = load_dataset("digits", 16, 3)
    found = unlabelled_images(written.format(photos(tmp_path, "a.png", "inside/b.png")), dataset)
    assert len(found.train) == 2
    assert found.preprocessing == dataset.preprocessing
