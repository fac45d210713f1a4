"""From whole images to inputs: sizes, channels, JSON, and data sets with the preprocessing of a trained network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnstretch.errors import FileError, UsageError
from nnstretch.training.data import load_dataset
from nnstretch.training.data.preprocessing import (
    INTERPOLATIONS,
    Preprocessing,
    in_channels,
    photo_preprocessing,
    preprocessing_from_json,
)

GREY = Preprocessing(8, 1, (0.5,), (0.25,), 1.0)


@pytest.mark.parametrize(("size", "side"), [(224, 256), (300, 342), (456, 522), (64, 73), (8, 9)])
def test_photographs_are_resized_as_the_baselines_are(size: int, side: int) -> None:
    assert photo_preprocessing(size, 3).covered == (side, side)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize(("height", "width"), [(8, 8), (100, 9), (9, 100), (1, 1), (3, 50)])
def test_images_of_any_shape_become_square(height: int, width: int, interpolation: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    for crop_pct in (0.5, 0.875, 1.0):
        made = replace(photo_preprocessing(8, 3), crop_pct=crop_pct, interpolation=interpolation).pixels(pixels)
        assert made.shape == (8, 8, 3)
        assert made.dtype == np.uint8


@pytest.mark.parametrize(("height", "width"), [(8, 24), (100, 9), (9, 100), (1, 1), (60, 120)])
def test_an_image_covers_an_input_that_is_not_square(height: int, width: int) -> None:
    wide = Preprocessing((8, 16), 1, (0.5,), (0.25,), 0.5)
    assert wide.covered == (16, 32)
    assert replace(wide, image_size=(8, 8)).image_size == 8
    columns = np.linspace(0, 255, width).astype(np.uint8)
    made = wide.pixels(np.repeat(columns[None, :, None], height, axis=0))
    assert made.shape == (8, 16, 1)
    (high, broad), (_, left) = wide.crop_of(height, width)
    assert min(high - 16, broad - 32) == 0  # no side is resized beyond what is covered
    resized = np.asarray(Image.fromarray(columns[None]).resize((broad, 1), Image.Resampling.BILINEAR))[0]
    assert np.abs(made[0, :, 0].astype(int) - resized[left : left + 16]).max() <= 1
    assert preprocessing_from_json(wide.to_json(), "a file") == wide
    earlier = wide.to_json().replace("[8, 16]", "8").replace("}", ', "width": 16}')
    assert preprocessing_from_json(earlier, "a file") == wide


def test_an_image_of_the_right_size_is_left_alone() -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    assert np.array_equal(GREY.pixels(pixels), pixels)
    assert np.array_equal(GREY.denormalised(GREY.normalised(pixels[None]))[0], pixels)
    assert GREY.normalised(np.full((2, 8, 8, 1), 255, np.uint8)).max() == 2.0


def test_grey_is_repeated_and_colours_become_their_luminance() -> None:
    colours = np.random.default_rng(1).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    grey = in_channels(colours, 1)
    wanted = np.asarray(Image.fromarray(colours).convert("L")).astype(int)
    assert np.abs(grey[..., 0].astype(int) - wanted).max() <= 1
    assert np.array_equal(in_channels(grey, 3), np.repeat(grey, 3, axis=2))
    with pytest.raises(UsageError, match=r"an image is uint8 \[5, 6, 4\]"):
        in_channels(np.zeros((5, 6, 4), np.uint8), 3)
    with pytest.raises(UsageError, match=r"an image is float64 \[5, 6, 3\]"):
        in_channels(np.zeros((5, 6, 3)), 3)  # type: ignore[arg-type]


def test_json_gives_the_same_back() -> None:
    one = replace(photo_preprocessing(300, 3), interpolation="bicubic")
    assert preprocessing_from_json(one.to_json(), "a file") == one


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "{}",
        GREY.to_json().replace("}", ', "more": 1}'),
        GREY.to_json().replace("}", ', "width": 0}'),
        GREY.to_json().replace("0.25", "0"),
        GREY.to_json().replace("[0.5]", '["a"]'),
        GREY.to_json().replace("[0.5]", "[0.5, 0.5]"),
        GREY.to_json().replace("8", "8.5"),
        GREY.to_json().replace("8", '"8"'),
        GREY.to_json().replace("bilinear", "best"),
        GREY.to_json().replace("1.0", "1.5"),
        GREY.to_json().replace('"channels": 1', '"channels": 4'),
    ],
)
def test_json_of_something_else_is_one_line(text: str) -> None:
    with pytest.raises(FileError, match=r"weights\.safetensors states a preprocessing that cannot be read") as caught:
        preprocessing_from_json(text, "weights.safetensors")
    assert "\n" not in str(caught.value)


def test_data_sets_take_the_preprocessing_of_a_network(tmp_path: Path) -> None:
    for half in ("train", "val", "test"):
        (tmp_path / half / "a").mkdir(parents=True)
        Image.new("RGB", (40, 30), (200, 100, 0)).save(tmp_path / half / "a" / "0.png")
    of_network = Preprocessing(24, 3, (0.1, 0.2, 0.3), (0.5, 0.5, 0.5), 0.9, "bicubic")
    dataset = load_dataset(f"folder:{tmp_path}", preprocessing=of_network)
    assert dataset.preprocessing == of_network
    for split in (dataset.train, dataset.validation, dataset.test):
        image = split.arrays(np.arange(1))
        np.testing.assert_allclose(image[0, :, 3, 4], [(200 / 255 - 0.1) * 2, (100 / 255 - 0.2) * 2, -0.6], rtol=1e-5)
    assert load_dataset(f"folder:{tmp_path}", 32, crop_pct=0.5).preprocessing.covered == (64, 64)
    assert load_dataset("textures", 32, crop_pct=0.5).crop_pct == 1.0  # its images have the size already


def test_digits_take_another_mean() -> None:
    own = load_dataset("digits", 16)
    assert load_dataset("digits", preprocessing=own.preprocessing).preprocessing == own.preprocessing
    other = replace(own.preprocessing, mean=(0.5,), std=(0.5,))
    dataset = load_dataset("digits", preprocessing=other)
    first = np.arange(1)
    wanted = own.preprocessing.denormalised(own.test.arrays(first))
    assert np.array_equal(other.denormalised(dataset.test.arrays(first)), wanted)
    assert np.array_equal(dataset.test.raw(0, 0), wanted[0])
    zoomed = load_dataset("digits", preprocessing=replace(other, crop_pct=0.5)).test.arrays(first)
    centre = wanted[0, 4:12, 4:12, 0].astype(float)
    assert abs(float(other.denormalised(zoomed).mean()) - centre.mean()) < 0.1 * centre.mean()
