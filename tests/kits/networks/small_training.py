"""A network and few images for tests of trainings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from nnstretch.training.data import load_dataset
from nnstretch.training.data.split import ArraySplit, Dataset


def digit_network(seed: int = 0) -> nn.Sequential:
    """A network with batch norms and dropout, for digits of 16 x 16."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(128, 10),
    )  # fmt: skip


def few_digits(train: int, validation: int) -> Dataset:
    """The first digits of 16 x 16 to learn from and to validate on; all of the test split."""
    digits = load_dataset("digits", 16)
    return replace(
        digits,
        train=ArraySplit(digits.train.arrays(np.arange(train)), digits.train.labels[:train]),
        validation=ArraySplit(digits.validation.arrays(np.arange(validation)), digits.validation.labels[:validation]),
    )
