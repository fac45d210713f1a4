"""``digits``: handwritten digits, enlarged."""

from __future__ import annotations

import torch
from torch.nn import functional

from nnstretch.errors import MissingExtraError
from nnstretch.training.data.split import Dataset, TensorSplit, normalise, stratified_split

_TEST_SHARE = 0.3


def load(argument: str, size: int, channels: int | None, split_seed: int) -> Dataset:
    """The digits of scikit-learn: 1797 grey images of 8 x 8 in 10 classes, enlarged by bicubic interpolation.

    30 % of every class are the test split, drawn with ``split_seed``. With 3 channels the grey one is repeated.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError(
            "the digits data set comes with scikit-learn; pip install 'nnstretch[train]'"
        ) from error
    pixels_8x8, classes = load_digits(return_X_y=True)
    labels = torch.from_numpy(classes).long()
    small = torch.from_numpy(pixels_8x8).float().view(-1, 1, 8, 8) / 16
    pixels = functional.interpolate(small, size=(size, size), mode="bicubic", align_corners=False).clamp(0, 1)

    train, test = stratified_split(labels, _TEST_SHARE, split_seed)
    mean, std = float(pixels[train].mean()), float(pixels[train].std())
    channels = channels or 1
    pixels = normalise(pixels, (mean,), (std,)).expand(-1, channels, -1, -1)
    return Dataset(
        name="digits",
        num_classes=10,
        channels=channels,
        image_size=size,
        class_names=tuple(str(digit) for digit in range(10)),
        mean=(mean,) * channels,
        std=(std,) * channels,
        train=TensorSplit(pixels[train], labels[train]),
        test=TensorSplit(pixels[test], labels[test]),
    )
