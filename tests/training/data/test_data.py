"""Data sets: contents, disjoint splits, and errors for bad folders."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits
from torch.nn import functional

from nnstretch.errors import FileError, UsageError
from nnstretch.training.data import load_dataset
from nnstretch.training.data.sources.digits import bicubic
from nnstretch.training.data.split import batches, stratified_split


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.floats(0.1, 0.9), st.integers(0, 2**31))
def test_a_split_is_disjoint_complete_and_stratified(classes: list[int], share: float, seed: int) -> None:
    labels = np.array(classes)
    train, test = stratified_split(labels, share, seed)
    assert sorted(train.tolist() + test.tolist()) == list(range(len(classes)))
    for label in set(classes):
        assert int((labels[test] == label).sum()) == round(share * classes.count(label))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.floats(0.01, 0.9), st.integers(0, 2**31))
def test_both_sets_have_every_class_with_two_images(classes: list[int], share: float, seed: int) -> None:
    labels = np.array(classes)
    first, second = stratified_split(labels, share, seed, at_least=1)
    assert set(labels[first].tolist()) == set(classes)
    assert set(labels[second].tolist()) == {label for label in classes if classes.count(label) > 1}


def test_digits_are_the_same_every_time_and_56_to_14_to_30() -> None:
    first, second = load_dataset("digits", 16), load_dataset("digits", 16)
    assert np.array_equal(first.train.labels, second.train.labels)
    everything = np.arange(len(first.test))
    assert np.array_equal(first.test.arrays(everything), second.test.arrays(everything))
    assert len(first.train) + len(first.validation) + len(first.test) == 1797
    assert 240 <= len(first.validation) <= 260
    assert 530 <= len(first.test) <= 550
    other = load_dataset("digits", 16, split_seed=1)
    assert not np.array_equal(first.test.arrays(everything[:500]), other.test.arrays(everything[:500]))


def test_no_digit_is_in_two_splits() -> None:
    dataset = load_dataset("digits", 8)
    splits = (dataset.train, dataset.validation, dataset.test)
    train, validation, test = ({image.tobytes() for image in split.arrays(np.arange(len(split)))} for split in splits)
    assert not train & test
    assert not train & validation
    assert not validation & test


def test_digits_are_normalised_smooth_and_repeat_their_channel() -> None:
    dataset = load_dataset("digits", 64, channels=3)
    images = dataset.train.arrays(np.arange(len(dataset.train)))
    assert images.shape == (len(dataset.train), 3, 64, 64)
    assert images.dtype == np.float32
    assert np.array_equal(images[:, 0], images[:, 2])
    assert abs(float(images.mean())) < 1e-3
    assert abs(float(images.std()) - 1) < 1e-3
    # Nearest-neighbour enlargement would jump by the whole range between two of its 8 x 8 cells.
    jumps = np.abs(np.diff(images, axis=-1)).max()
    assert jumps < 0.25 * (images.max() - images.min())


def test_digits_are_enlarged_as_torch_enlarges_them() -> None:
    pixels = load_digits().images[:5].astype(np.float32) / 16
    wanted = functional.interpolate(torch.from_numpy(pixels)[None], size=(27, 27), mode="bicubic", align_corners=False)
    enlarge = bicubic(8, 27)
    np.testing.assert_allclose(enlarge @ pixels @ enlarge.T, wanted[0].numpy(), atol=2e-6)


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 5])
def test_a_split_is_drawn_as_torch_shuffles(seed: int) -> None:
    labels = np.repeat(np.arange(3), (40, 1, 25))
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(count, generator=generator).numpy() for count in (40, 1, 25)]
    wanted = np.sort(np.concatenate([orders[0][:20], 41 + orders[2][:12]]))
    assert np.array_equal(stratified_split(labels, 0.5, seed)[1], wanted)


def test_images_are_the_callers_to_change(tmp_path: Path) -> None:
    make_folder(tmp_path)
    for source in ("digits", f"folder:{tmp_path}"):
        split = load_dataset(source, 16, 3).train
        images = split.arrays(np.arange(2))
        assert images.flags.c_contiguous
        images[:] = 7
        assert split.arrays(np.arange(2)).max() < 7
        assert np.array_equal(split.images(torch.arange(2)).numpy(), split.arrays(np.arange(2)))


def test_batches_cover_a_split_in_order() -> None:
    dataset = load_dataset("digits", 8)
    pairs = list(batches(dataset.test, 100))
    assert [len(images) for images, _ in pairs][:-1] == [100] * (len(pairs) - 1)
    assert np.array_equal(np.concatenate([labels for _, labels in pairs]), dataset.test.labels)
    with pytest.raises(UsageError, match="batch of 0"):
        next(batches(dataset.test, 0))


@pytest.mark.parametrize(
    ("source", "size", "channels", "words"),
    [
        ("mnist", 64, None, "mnist"),
        ("folder:", 64, None, "folder:"),
        ("digits", 4, None, "4×4"),
        ("digits", 8, 2, "2"),
    ],
)
def test_what_cannot_be_loaded_is_named(source: str, size: int, channels: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_dataset(source, size, channels)


def make_folder(root: Path, halves: tuple[str, ...] = ("train", "val")) -> None:
    """Two classes: 'dark' images are black, 'light' ones white; sizes differ, both orientations, both formats."""
    for half in halves:
        for name, value in (("dark", 0), ("light", 255)):
            folder = root / half / name
            folder.mkdir(parents=True)
            for index, (height, width) in enumerate(((20, 30), (30, 20), (9, 9))):
                pixels = np.full((height, width, 3), value, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.{'png' if index else 'jpg'}")


@pytest.mark.parametrize(("half", "channels"), [("val", 3), ("test", 1)])
def test_a_folder_gives_labelled_images_of_one_size(tmp_path: Path, half: str, channels: int) -> None:
    make_folder(tmp_path, ("train", half))
    dataset = load_dataset(f"folder:{tmp_path}", 16, channels)
    assert dataset.class_names == ("dark", "light")
    assert (dataset.num_classes, dataset.channels, dataset.image_size) == (2, channels, 16)
    images = dataset.test.arrays(np.array([0, 5, 2]))
    assert images.shape == (3, channels, 16, 16)
    assert dataset.test.labels[np.array([0, 5, 2])].tolist() == [0, 1, 0]
    black = np.array([-mean / std for mean, std in zip(dataset.mean, dataset.std, strict=True)])
    white = np.array([(1 - mean) / std for mean, std in zip(dataset.mean, dataset.std, strict=True)])
    for image, colour in zip(images, (black, white, black), strict=True):
        np.testing.assert_allclose(image, np.broadcast_to(colour.reshape(-1, 1, 1), image.shape), atol=0.05, rtol=0)


def test_a_folder_without_one_of_val_and_test_validates_on_a_share_of_train(tmp_path: Path) -> None:
    make_folder(tmp_path)
    dataset = load_dataset(f"folder:{tmp_path}", 16)
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [4, 2, 6]
    assert sorted(dataset.validation.labels.tolist()) == [0, 1]
    again = load_dataset(f"folder:{tmp_path}", 16)
    everything = np.arange(2)
    assert np.array_equal(dataset.validation.arrays(everything), again.validation.arrays(everything))
    assert "val is the test split; 2 of the training images are the validation split" in dataset.note
    assert "\n" not in dataset.note


def test_a_folder_with_three_splits_is_taken_as_it_is(tmp_path: Path) -> None:
    make_folder(tmp_path, ("train", "val", "test"))
    (tmp_path / "test" / "dark" / "0.jpg").unlink()
    dataset = load_dataset(f"folder:{tmp_path}", 16)
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [6, 6, 5]
    assert not dataset.note


def test_the_centre_of_an_image_is_kept(tmp_path: Path) -> None:
    make_folder(tmp_path, ("train", "val", "test"))
    pixels = np.zeros((32, 96, 3), dtype=np.uint8)
    pixels[:, 32:64] = 255
    Image.fromarray(pixels).save(tmp_path / "train" / "light" / "9.png")
    dataset = load_dataset(f"folder:{tmp_path}", 32, 1)
    image = dataset.train.arrays(np.array([len(dataset.train) - 1]))[0, 0]
    assert image.min() > image.max() - 0.2


def test_bad_images_are_named_and_counted(tmp_path: Path) -> None:
    make_folder(tmp_path, ("train", "val", "test"))
    light = tmp_path / "train" / "light"
    whole = (light / "1.png").read_bytes()
    (light / "1.png").write_bytes(whole[: len(whole) // 2])
    for name in ("3.png", "4.png", "5.jpg"):
        (light / name).write_text("no image")
    dataset = load_dataset(f"folder:{tmp_path}", 16)
    dataset.train.arrays(np.arange(3))
    with pytest.raises(FileError, match=r"light/1\.png.*light/3\.png.*and 1 more") as caught:
        dataset.train.arrays(np.arange(len(dataset.train)))
    assert "\n" not in str(caught.value)


def test_folders_that_are_no_data_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="train/CLASS"):
        load_dataset(f"folder:{tmp_path / 'absent'}")
    make_folder(tmp_path)
    (tmp_path / "val" / "grey").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "val" / "grey" / "0.png")
    with pytest.raises(FileError, match="'grey'"):
        load_dataset(f"folder:{tmp_path}")
    (tmp_path / "train" / "grey").mkdir()
    with pytest.raises(FileError, match="grey has no images"):
        load_dataset(f"folder:{tmp_path}")
