"""Options of the accuracy study and the recipes of its trainings. Loading this module does not load torch."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from nnstretch.bench.accuracy.results import MODELS, ORIGINAL, QUARTER, STAGES_OF, TABLES
from nnstretch.errors import UsageError

STAGES = (ORIGINAL, "design", *TABLES)
"""Kinds of stages of a network and seed, in order."""
ABLATED = "resnet34"
"""The network of the tables but the first, where none is named."""
IMAGE_SIZE = 32
BATCH = 64

# For small networks and some thousand steps. Images vary without augmentation, and every epoch has other ones.
COMMON: Mapping[str, Any] = {
    "batch_size": BATCH,
    "amp_dtype": "float32",
    "threads": 1,
    "evaluate_every": 0,
    "scale": None,
    "hflip": 0.0,
    "model_ema": True,
    "model_ema_decay": 0.99,
    "precise_bn_samples": 2048,
}
TRAINING = {"lr": 0.05, "weight_decay": 1e-4, "warmup_epochs": 1, "smoothing": 0.1, "evaluate_every": 4}
RETRAINING = {"lr": 0.1}
"""Rates are for batches of `BATCH` images."""


@dataclass(frozen=True)
class StudyOptions:
    """What `scripts/studies/accuracy_study.py` takes.

    Attributes:
        folder: for all that is written.
        models: networks of every table; None: all in the first table, `ABLATED` in the others.
        seeds: number of seeds, from 0.
        tables: of `STAGES_OF`.
        epochs: of the first training.
        retrain_epochs: of the retraining; a multiple of 8 for the table at a quarter of it.
        epoch_images: training images per epoch.
        held_out: validation images, and as many test images; None: all.
        redo: of `STAGES`, the first one whose products are given up.
        image_size: side of the images in pixels.
        width: factor of the networks' widths.
        batch_size: images per step.
        device: that trains, by torch's name.
        amp_dtype: type of matrix products, as a recipe has it; None: float32 on a CPU, the device's choice elsewhere.
        lr: highest learning rate of the first training. Rates are for batches of `BATCH` images, and in proportion for others.
        retrain_lr: highest learning rate of a retraining.
        blockwise_epochs: epochs of the branched network's retraining that a block-wise start takes; the tables but the first
            have their own.
    """

    folder: Path
    models: tuple[str, ...] | None = None
    seeds: int = 3
    tables: tuple[str, ...] = TABLES
    epochs: int = 16
    retrain_epochs: int = 8
    epoch_images: int = 10_000
    held_out: int | None = None
    redo: str | None = None
    image_size: int = IMAGE_SIZE
    width: int = 1
    batch_size: int = BATCH
    device: str = "cpu"
    amp_dtype: str | None = None
    lr: float = TRAINING["lr"]
    retrain_lr: float = RETRAINING["lr"]
    blockwise_epochs: int = 1

    def __post_init__(self) -> None:
        """Check the names and numbers.

        Raises:
            UsageError: there is no such network or table, or a number is out of range.
        """
        for option, given, known in self._names():
            for name in given:
                if name not in known:
                    raise UsageError(f"{option} {name}: there are {', '.join(known)}")
        if self.redo is not None and self.redo not in STAGES:
            raise UsageError(f"--redo {self.redo}: the stages are {', '.join(STAGES)}")
        whole = (("--seeds", self.seeds), ("--width", self.width), ("--retrain-epochs", self.retrain_epochs))
        for option, number in whole:
            if number < 1:
                raise UsageError(f"{option} {number}: 1 or more is wanted")
        if QUARTER in self.tables and self.retrain_epochs % 8:
            raise UsageError(f"--retrain-epochs {self.retrain_epochs}: a multiple of 8 is wanted, for the quarters")
        if not 0 <= self.blockwise_epochs < self.retrain_epochs:
            raise UsageError(f"--blockwise-epochs {self.blockwise_epochs}: fewer than --retrain-epochs are wanted")

    def _names(self) -> tuple[tuple[str, Sequence[str], Sequence[str]], ...]:
        """Options that name something, with what is given and what there is."""
        return ("--models", self.models or (), MODELS), ("--tables", self.tables, (*STAGES_OF,))

    @classmethod
    def of(cls, given: Namespace, **others: Any) -> Self:
        """The options that arguments of a command line name as the fields are named, and others.

        Raises:
            UsageError: there is no such network or table, or a number is out of range.
        """
        names = {field.name for field in fields(cls)} - others.keys()
        return cls(**{name: getattr(given, name) for name in names if hasattr(given, name)}, **others)

    @property
    def images(self) -> Path:
        """The folder of the images."""
        return self.folder / "images"
