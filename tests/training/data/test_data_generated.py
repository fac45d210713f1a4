"""Generated images: fixed where they are compared, endless where they are learned from."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nnstretch.errors import UsageError
from nnstretch.training.data import load_dataset
from nnstretch.training.data.sources.patterns import PATTERNS, Numbers
from nnstretch.training.data.sources.textures import DIFFICULTY, texture
from nnstretch.training.data.split import Split


def digest(split: Split, epoch: int = 0, count: int = 30) -> list[bytes]:
    return [split.raw(index, epoch).tobytes() for index in range(count)]


def test_the_task_has_classes_in_equal_shares_and_disjoint_splits() -> None:
    dataset = load_dataset("textures")
    assert dataset.num_classes == len(PATTERNS) == len(dataset.class_names) == 22
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [20_000, 5_000, 10_000]
    for split in (dataset.train, dataset.validation, dataset.test):
        counts = np.bincount(split.labels)
        assert counts.max() - counts.min() <= 1
    images = [image for split in (dataset.train, dataset.validation, dataset.test) for image in digest(split)]
    assert len(set(images)) == 90


def test_training_images_are_those_of_their_epoch_and_others_are_fixed() -> None:
    first, second = load_dataset("textures", 32), load_dataset("textures", 32, split_seed=7)
    assert digest(first.train, 3) == digest(second.train, 3)
    assert not set(digest(first.train, 3)) & set(digest(first.train, 4))
    for name in ("validation", "test"):
        assert digest(getattr(first, name), 0) == digest(getattr(second, name), 5)


def test_fewer_classes_are_the_first_ones() -> None:
    dataset = load_dataset("textures:6", 32)
    assert dataset.class_names == tuple(PATTERNS)[:6]
    assert set(dataset.train.labels.tolist()) == set(range(6))
    assert dataset.name == "textures:6"


@pytest.mark.parametrize("text", ["1", "23", "many", "-2", "2.0", "²"])
def test_impossible_numbers_of_classes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="2 to 22 classes are wanted"):
        load_dataset(f"textures:{text}")


@given(st.integers(0, len(PATTERNS) - 1), st.sampled_from([8, 33, 64, 300]), st.integers(0, 2**40))
def test_every_class_is_drawn_at_every_size(label: int, size: int, number: int) -> None:
    image = texture(label, size, Numbers(0, 0, number))
    assert image.shape == (size, size, 3)
    assert image.dtype == np.uint8
    assert image.std() > 2


@given(st.integers(0, 2**62), st.integers(0, 1000))
def test_no_image_takes_more_numbers_than_there_are(number: int, epoch: int) -> None:
    numbers = Numbers(1, epoch, number)
    texture(number % len(PATTERNS), 16, numbers, DIFFICULTY)
    assert numbers.taken <= 80


@pytest.mark.parametrize("channels", [1, 3])
def test_inputs_are_normalised(channels: int) -> None:
    dataset = load_dataset("textures", 64, channels)
    images = dataset.train.arrays(np.arange(200))
    assert images.shape == (200, channels, 64, 64)
    assert abs(float(images.mean())) < 0.3
    assert 0.6 < float(images.std()) < 1.4


def test_a_nearest_mean_does_not_solve_the_task() -> None:
    """Colours and brightness say nothing about the class."""
    dataset = load_dataset("textures", 16)
    train = dataset.train.arrays(np.arange(1100)).reshape(1100, -1)
    means = np.stack([train[dataset.train.labels[:1100] == label].mean(axis=0) for label in range(22)])
    test = dataset.test.arrays(np.arange(440)).reshape(440, -1)
    answers = ((test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (answers == dataset.test.labels[:440]).mean() < 0.15


SHEETS = Path(__file__).parent
"""`textures-validation.png` and others: the first images of these splits, of `textures` in a column per class."""
PINNED = {"textures": "textures", "shapes": "shapes:boxes"}
"""Name in files -> data set."""
ROWS = 3
DEVIATION = 0.02
"""Mean absolute difference, in levels of 255, that other sines and exponentials of other processors may cause."""


def sheet(split: Split) -> Image.Image:
    """The first images at 32 x 32, in `ROWS` rows."""
    classes = len(PATTERNS)
    rows = [np.concatenate([split.raw(row * classes + label, 0) for label in range(classes)], 1) for row in range(ROWS)]
    return Image.fromarray(np.concatenate(rows))


@pytest.mark.parametrize("name", ["validation", "test"])
@pytest.mark.parametrize("data", PINNED)
def test_images_that_accuracies_are_compared_on_stay_what_they_are(data: str, name: str) -> None:
    """Accuracies of before and after a change of these images cannot be compared.

    After a change on purpose: `python -m tests.training.data.test_data_generated` writes them, and all published accuracies
    are measured again.
    """
    found = np.asarray(sheet(getattr(load_dataset(PINNED[data], 32), name)), np.int16)
    kept = np.asarray(Image.open(SHEETS / f"{data}-{name}.png"), np.int16)
    assert np.abs(found - kept).mean() < DEVIATION


def test_processors_without_wide_vectors_draw_the_same_images() -> None:
    """NumPy computes sines by other instructions there, which differ in the last bit."""
    program = (
        "import sys, numpy as np; from nnstretch.training.data import load_dataset; "
        "split = load_dataset('textures', 32).test; "
        "sys.stdout.buffer.write(np.stack([split.raw(i, 0) for i in range(66)]).tobytes())"
    )
    features = "X86_V3 X86_V4 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR AVX2 FMA3"
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, check=True, env={"NPY_DISABLE_CPU_FEATURES": features})
    split = load_dataset("textures", 32).test
    here = np.stack([split.raw(index, 0) for index in range(66)]).astype(np.int16)
    there = np.frombuffer(done.stdout, np.uint8).reshape(here.shape)
    assert np.abs(here - there).mean() < DEVIATION


if __name__ == "__main__":
    for written, source in PINNED.items():
        for kind in ("validation", "test"):
            sheet(getattr(load_dataset(source, 32), kind)).save(SHEETS / f"{written}-{kind}.png")
