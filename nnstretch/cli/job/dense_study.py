"""The trainings of the study of detection and segmentation: those of the accuracy study for networks with boxes or masks.

Every task has one network, and the stages of the table "accuracy": the original, trained from scratch; the search's branching
of it; and, each retrained with the original as teacher, the original itself, the control and the branched network. A last one
retrains the original without a teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bench.accuracy.results import ALONE, DENSE_STAGES, DETECTION, ORIGINAL, TASKS
from nnstretch.cli.job.accuracy_study import AccuracyStudy, SeedStudy
from nnstretch.cli.job.study_options import StudyOptions
from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.cli.job.stages import Answer
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.recipe import Recipe

BATCH = 32
RATE = 2e-3
"""Highest rate of trainings and retrainings, of AdamW."""
_SIDES = 16  # the coarsest map's stride: sides are multiples
_CHANGED: Mapping[str, Any] = {"color_jitter": None}  # beside what the accuracy study changes: images vary without it


@dataclass(frozen=True)
class DenseOptions(StudyOptions):
    """What `scripts/studies/dense_tasks_study.py` takes: `StudyOptions` with tasks as tables, and rates for any batch.

    Attributes:
        teaching: factor of the weights that a teacher's logits and feature maps have in the preset `dense`, up to 1. Without
            any, all networks learn from boxes and masks alone.
    """

    tables: tuple[str, ...] = tuple(TASKS)
    epochs: int = 16
    epoch_images: int = 4_000
    image_size: int = 64
    batch_size: int = BATCH
    lr: float = RATE
    retrain_lr: float = RATE
    teaching: float = 1.0

    def __post_init__(self) -> None:
        """Check the names and numbers.

        Raises:
            UsageError: there is no such task, or a number is out of range.
        """
        super().__post_init__()
        least = (("--epochs", self.epochs, 0), ("--epoch-images", self.epoch_images, self.batch_size))
        for option, number, low in (*least, ("--held-out", self.held_out, 1)):
            if number is not None and number < low:
                raise UsageError(f"{option} {number}: {low} or more are wanted")
        if not 0 <= self.teaching <= 1:
            raise UsageError(f"--teaching {self.teaching:g}: 0 to 1 is wanted")
        if not self.teaching and self.blockwise_epochs:
            raise UsageError("--teaching 0: a block-wise start needs a teacher; give --blockwise-epochs 0, too")
        if self.image_size < _SIDES or self.image_size % _SIDES:
            raise UsageError(f"--image-size {self.image_size}: a multiple of {_SIDES} is wanted")

    def _names(self) -> tuple[tuple[str, Sequence[str], Sequence[str]], ...]:
        """The tasks."""
        return (("--tasks", self.tables, tuple(TASKS)),)


class DenseStudy(AccuracyStudy):
    """All trainings of both tasks."""

    def _models(self, table: str) -> Sequence[str]:
        """The network of a task."""
        return (TASKS[table],)

    def _stages(self, table: str) -> Mapping[str, str]:
        """Those of the accuracy study's first table, and one more."""
        return DENSE_STAGES

    def _seed_study(self, model: str, seed: int) -> SeedStudy:
        dataset = self._detection if model == TASKS[DETECTION] else self._segmentation
        return DenseSeedStudy(self.options, model, seed, dataset, self._report, self.write, self._advice)

    @cached_property
    def _detection(self) -> Dataset:
        """Images with boxes, and the head of the detector."""
        from nnstretch.training.tasks.detection import Detection, with_head

        dataset = self._images_with("boxes")
        assert isinstance(dataset.task, Detection)
        return replace(dataset, task=with_head(dataset.task, "yolo", dataset.num_classes, dataset.image_size))

    @cached_property
    def _segmentation(self) -> Dataset:
        """Images with masks."""
        return self._images_with("masks")

    def _images_with(self, targets: str) -> Dataset:
        from nnstretch.bench.accuracy.images import stored_shapes

        options = self.options
        return stored_shapes(options.images, options.image_size, options.epoch_images, options.held_out, targets)


class DenseSeedStudy(SeedStudy):
    """The trainings of one task and seed."""

    def train(self, table: str) -> None:
        """Runs the trainings that are not done."""
        assert self._original
        self._accuracy()
        if self._factor:
            recipe = replace(self._retraining, kd_loss_weight=0.0, kd_feature_weight=0.0, blockwise_epochs=0.0)
            alone = partial(self._retrained, self._trained, recipe)
            self._stage(DENSE_STAGES[ALONE], self._settings(recipe), alone, [ORIGINAL])

    def _retrained(self, make: Callable[[], nn.Module], recipe: Recipe, folder: Path) -> Answer:
        teaches = recipe.kd_loss_weight > 0 or recipe.kd_feature_weight > 0
        network = make()
        return self._finished(
            network, self._train(network, recipe, self._trained() if teaches else None, folder), folder
        )

    @property
    def _factor(self) -> float:
        assert isinstance(self._options, DenseOptions)
        return self._options.teaching

    @cached_property
    def _training(self) -> Recipe:
        """The recipe of the first training."""
        return self._recipe("dense", self._options.epochs, {"lr": self._options.lr})

    @cached_property
    def _retraining(self) -> Recipe:
        """The recipe of a retraining: feature maps of the teacher, and its logits where outputs are logits."""
        recipe = self._recipe("dense", self._options.retrain_epochs, {"lr": self._options.retrain_lr})
        logits, maps = self._factor * recipe.kd_loss_weight, self._factor * recipe.kd_feature_weight
        return replace(recipe, kd_loss_weight=logits, kd_feature_weight=maps)

    def _recipe(self, preset: str, epochs: int, changes: Mapping[str, Any]) -> Recipe:
        return super()._recipe(preset, epochs, {**_CHANGED, **changes})

    def _rate(self, rate: float) -> float:
        """The rate itself: AdamW's steps do not grow with a batch's gradients."""
        return rate

    def _untrained(self) -> nn.Module:
        """The original with its first weights."""
        from nnstretch.bench.accuracy.dense_networks import build_dense_network

        return build_dense_network(self._model, self._dataset.num_classes, self._seed)
