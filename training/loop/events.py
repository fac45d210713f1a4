"""What a training reports while it runs and at its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nnstretch.support.image_size import ImageSize
from nnstretch.training.distillation.blockwise import BlockwiseResult
from nnstretch.training.loop.checkpoint import EpochRecord


@dataclass(frozen=True)
class TrainingEvent:
    """State of a training; sent for every step and for every evaluation, by the first process.

    Attributes:
        epoch, epochs: the epoch, counted from 1, and how many there are.
        step, steps: steps taken in all epochs so far, and in all. A step is one update of the weights.
        image_size: of the images.
        loss: of this step; in an evaluation's event, the epoch's mean.
        learning_rate: of this step.
        validation_score: the task's measure on the validation images, in percent, in an evaluation's event; else None.
        seconds: since the training started, all its parts together if it was resumed.
        images_per_second: rate of training images, of late.
        measure: name of the task's measure, such as top-1.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    image_size: ImageSize
    loss: float
    learning_rate: float
    validation_score: float | None
    seconds: float
    images_per_second: float
    measure: str = "top-1"


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training.

    Attributes:
        history: one record per epoch.
        validation_score: the task's measure of the resulting weights on the validation images, in percent.
        seconds: duration, all parts of a resumed training together.
        note: what is to be said of the training images; one line, or empty.
        blockwise: the block-wise start; None without one, or if the training was resumed after it.
        measure: name of the task's measure, such as top-1.
        unreadable: number of training images that cannot be decoded and that others replaced.
        start_score: of the weights before the first step, as `validation_score`, for a student of a teacher; None for others,
            and if the training was resumed.
        best_score: the best of all evaluations, whose weights the run folder keeps.
        epoch: whose weights are the result, counted from 1; 0 for those before the first step.
    """

    history: tuple[EpochRecord, ...]
    validation_score: float
    seconds: float
    note: str = ""
    blockwise: BlockwiseResult | None = None
    measure: str = "top-1"
    unreadable: int = 0
    start_score: float | None = None
    best_score: float | None = None
    epoch: int = 0


def result_json(result: TrainingResult, key: str) -> dict[str, Any]:
    """A result as JSON values; scores stand under ``validation_KEY``, ``start_KEY`` and ``best_KEY``, by the task's measure.

    Of images that cannot be decoded, JSON has the number.
    """
    values = dataclasses.asdict(result)
    if result.blockwise is not None:
        values["blockwise"]["unreadable"] = len(result.blockwise.unreadable)
    for fields in (values, *values["history"]):
        fields[f"validation_{key}"] = fields.pop("validation_score")
    for name in ("start", "best"):
        values[f"{name}_{key}"] = values.pop(f"{name}_score")
    return values


Progress = Callable[[TrainingEvent], None]


def log_entry(event: TrainingEvent, key: str) -> dict[str, Any]:
    """An event as a line of the log; `key` is that of the task's measure."""
    entry = {
        "step": event.step,
        "epoch": event.epoch,
        "loss": event.loss,
        "lr": event.learning_rate,
        "images_per_second": round(event.images_per_second, 1),
        "seconds": round(event.seconds, 2),
    }
    return entry if event.validation_score is None else {**entry, key: event.validation_score}
