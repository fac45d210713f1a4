"""Data sets of users: factories in Python files, and one line for what is wrong with them."""

from pathlib import Path

import numpy as np
import pytest

from nnstretch.errors import ModelError, NNStretchError, UsageError
from nnstretch.training.data import load_dataset

SOURCE = """
from dataclasses import dataclass
import numpy as np
from nnstretch.errors import UsageError
from nnstretch.training.data.preprocessing import Preprocessing
from nnstretch.training.data.split import ArraySplit, Dataset, RawImages, UnreadableImageError, dataset_of

@dataclass(frozen=True, eq=False)
class Squares(RawImages):
    labels: np.ndarray
    preprocessing: Preprocessing

    def raw(self, index, epoch):
        return np.full((20, 30, 3), 10 * index, np.uint8)

def whole(image_size=24, channels=3):
    one = Preprocessing(image_size, channels, (0.5,) * channels, (0.5,) * channels)
    splits = [Squares(np.arange(count) % 2, one) for count in (8, 4, 4)]
    return dataset_of("squares", ("even", "odd"), splits)

def without_size():
    return whole()

def in_memory():
    split = ArraySplit(np.zeros((4, 1, 12, 12), np.float32), np.arange(4) % 2)
    return Dataset("zeros", 2, 1, 12, ("a", "b"), (0.0,), (1.0,), split, split, split)

def with_a_broken_first_image():
    class Broken(Squares):
        def raw(self, index, epoch):
            if index == 0:
                raise UnreadableImageError("0.png (truncated)")
            return super().raw(index, epoch)

    one = Preprocessing(24, 3, (0.5,) * 3, (0.5,) * 3)
    splits = [kind(np.arange(count) % 2, one) for kind, count in ((Broken, 8), (Squares, 4), (Squares, 4))]
    return dataset_of("squares", ("even", "odd"), splits)

def out_of_range():
    split = ArraySplit(np.zeros((4, 1, 12, 12), np.float32), np.array([0, 1, 2, 1]))
    return Dataset("zeros", 2, 1, 12, ("a", "b"), (0.0,), (1.0,), split, split, split)

def wrong_labels():
    split = ArraySplit(np.zeros((4, 1, 12, 12), np.float32), np.zeros(3))
    return Dataset("zeros", 2, 1, 12, ("a", "b"), (0.0,), (1.0,), split, split, split)

def wrong_shape():
    split = ArraySplit(np.zeros((4, 3, 12, 12), np.float32), np.zeros(4, np.int64))
    return Dataset("zeros", 2, 1, 12, ("a", "b"), (0.0,), (1.0,), split, split, split)

def empty():
    split = ArraySplit(np.zeros((0, 1, 12, 12), np.float32), np.zeros(0, np.int64))
    return Dataset("zeros", 2, 1, 12, ("a", "b"), (0.0,), (1.0,), split, split, split)

def something():
    return [1, 2]

def failing():
    raise RuntimeError("no disk\\nno luck")

def refusing():
    raise UsageError("give me a path")

def needing(path):
    return whole()

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(SOURCE)
    return path


def test_a_factory_gives_whole_images_of_the_size_that_is_wanted(file: Path) -> None:
    dataset = load_dataset(f"{file}:whole")
    assert (dataset.name, dataset.image_size, dataset.class_names) == (f"{file}:whole", 24, ("even", "odd"))
    assert load_dataset(f"{file}:whole", 40, 1).train.arrays(np.arange(3)).shape == (3, 1, 40, 40)
    assert load_dataset(f"{file}:without_size", 40).train.arrays(np.arange(3)).shape == (3, 3, 40, 40)


def test_a_factory_gives_images_in_memory(file: Path) -> None:
    assert load_dataset(f"{file}:in_memory").train.arrays(np.arange(2)).shape == (2, 1, 12, 12)
    assert load_dataset(f"{file}:in_memory", 12, 1).image_size == 12
    with pytest.raises(UsageError, match="without a preprocessing cannot be given another one"):
        load_dataset(f"{file}:in_memory", 16)
    with pytest.raises(UsageError, match="images of 1 channels, 3 are wanted"):
        load_dataset(f"{file}:in_memory", 12, 3)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("absent", "has no function 'absent'"),
        ("number", "has no function 'number'"),
        ("something", "returned list; it must return a Dataset"),
        ("failing", r"fails in line \d+ with RuntimeError: no disk"),
        ("refusing", "^give me a path$"),
        ("needing", "cannot be called with image_size, channels and split_seed alone"),
        ("out_of_range", "image 2 of train has the label 2; 0 to 1 are wanted"),
        ("wrong_labels", r"train has labels float64 \[3\] for"),
        ("wrong_shape", r"an image is float32 \[1, 3, 12, 12\]; float32 \[1, 1, 12, 12\] is wanted"),
        ("empty", "train has no images"),
    ],
)
def test_what_is_wrong_with_a_factory_is_one_line(file: Path, function: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load_dataset(f"{file}:{function}")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_imported_are_one_line(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not say which function"):
        load_dataset(str(file))
    with pytest.raises(NNStretchError, match="no such file"):
        load_dataset(f"{tmp_path / 'absent.py'}:whole")
    file.write_text("import nothing_of_this_name")
    with pytest.raises(ModelError, match="cannot be imported: ModuleNotFoundError"):
        load_dataset(f"{file}:whole")


def test_a_first_image_that_cannot_be_decoded_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(SOURCE)
    dataset = load_dataset(f"{tmp_path / 'data.py'}:with_a_broken_first_image")
    assert len(dataset.train) == 8
