"""``digits``: handwritten digits, enlarged."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from nnstretch.support.image_size import ImageSize, sides
from nnstretch.training.data.preprocessing import Images, Preprocessing, normalise
from nnstretch.training.data.split import ArraySplit, Dataset, Indices, stratified_split

_TEST_SHARE = 0.3
_VALIDATION_SHARE = 0.2  # of the images that are not test images
_SIDE = 8
_MAX_VALUE = np.float32(16)  # of a pixel
_SLOPE = -0.75
"""Slope of the cubic kernel at distance 1, as in torch and OpenCV."""


def load(argument: str, size: ImageSize, channels: int | None, split_seed: int) -> Dataset:
    """The digits of scikit-learn: 1797 grey images of 8 x 8 in 10 classes, enlarged by bicubic interpolation.

    Images that are no squares are stretched. Of every class, 30 % are the test split and 14 % the validation split, drawn with
    ``split_seed``. With 3 channels the grey one is repeated.
    """
    pixels_8x8, labels = _read_digits()
    small = pixels_8x8.astype(np.float32).reshape(-1, 1, _SIDE, _SIDE) / _MAX_VALUE
    height, width = sides(size)
    pixels = bicubic(_SIDE, height) @ small @ bicubic(_SIDE, width).T
    pixels.clip(0, 1, out=pixels)

    others, test = stratified_split(labels, _TEST_SHARE, split_seed)
    kept, chosen = stratified_split(labels[others], _VALIDATION_SHARE, split_seed)
    train, validation = others[kept], others[chosen]
    mean, std = float(pixels[train].mean()), float(pixels[train].std(ddof=1))
    channels = channels or 1
    pixels = np.broadcast_to(normalise(pixels, (mean,), (std,)), (len(labels), channels, height, width))
    preprocessing = Preprocessing(size, channels, (mean,) * channels, (std,) * channels, crop_pct=1.0)

    def split(chosen: Indices) -> ArraySplit:
        return ArraySplit(np.take(pixels, chosen, axis=0), labels[chosen], preprocessing)

    return Dataset(
        name="digits",
        num_classes=10,
        channels=channels,
        image_size=size,
        class_names=tuple(str(digit) for digit in range(10)),
        mean=preprocessing.mean,
        std=preprocessing.std,
        train=split(train),
        validation=split(validation),
        test=split(test),
    )


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (images x 64, from 0 to 16) and int64 classes from scikit-learn's file: its import takes over a second."""
    found = find_spec("sklearn")
    folders = (found and found.submodule_search_locations) or ()
    for path in (Path(folder, "datasets", "data", "digits.csv.gz") for folder in folders):
        if path.is_file():
            with gzip.open(path, "rt") as file:
                table = np.loadtxt(file, delimiter=",", dtype=np.int64)
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    return pixels, classes.astype(np.int64)


def bicubic(before: int, after: int) -> Images:
    """The matrix ``after x before`` that enlarges one axis by bicubic interpolation; beyond the border, pixels repeat it.

    Keys, "Cubic Convolution Interpolation for Digital Image Processing" (1981), equation 4, with another slope.
    """
    positions = (np.arange(after) + 0.5) * before / after - 0.5
    first = np.floor(positions).astype(np.int64) - 1
    matrix = np.zeros((after, before), np.float32)
    for sample in range(4):
        distance = np.abs(positions - (first + sample))
        near = ((_SLOPE + 2) * distance - (_SLOPE + 3)) * distance**2 + 1
        far = _SLOPE * (((distance - 5) * distance + 8) * distance - 4)
        columns = (first + sample).clip(0, before - 1)
        np.add.at(matrix, (np.arange(after), columns), np.where(distance <= 1, near, far))
    return matrix
