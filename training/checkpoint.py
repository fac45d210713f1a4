"""The state of a training between two epochs, as one safetensors file with JSON in its header."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from nnstretch.errors import FileError, UsageError
from nnstretch.training.recipe import Recipe, recipe_from_json
from nnstretch.training.weights import read_tensors, write_tensors

_KEY = "nnstretch.checkpoint"
_VERSION = 1
# Fields that do not change what the weights become (but for rounding).
_FREE_FIELDS = frozenset({"name", "threads", "evaluate_every"})


@dataclass(frozen=True)
class EpochRecord:
    """Record of one epoch.

    Attributes:
        epoch: counted from 1.
        image_size: side of the training images in pixels.
        loss: mean over the training images.
        train_top1: of the network in training, on the changed images, in percent.
        learning_rate: of the last step.
        top1: on the test images in percent; None if not measured.
        seconds: since the training started.
    """

    epoch: int
    image_size: int
    loss: float
    train_top1: float
    learning_rate: float
    top1: float | None
    seconds: float


@dataclass(frozen=True)
class Checkpoint:
    """Everything a training needs to continue exactly.

    Attributes:
        recipe: the recipe of the training.
        dataset: the data set's name.
        distilled: whether there is a teacher.
        history: one record per finished epoch.
        updates: number of updates of the averaged weights.
        weights: parameters and buffers of the network in training.
        average: averaged weights; empty if the recipe has no average.
        momentum: the optimiser's momentum, by the parameters' names.
    """

    recipe: Recipe
    dataset: str
    distilled: bool
    history: tuple[EpochRecord, ...]
    updates: int
    weights: dict[str, Tensor]
    average: dict[str, Tensor]
    momentum: dict[str, Tensor]

    def save(self, path: Path) -> None:
        """Write the file; it replaces an older one only when it is complete.

        Raises:
            FileError: it cannot be written.
        """
        tensors = {
            f"{group}/{name}": value
            for group in ("weights", "average", "momentum")
            for name, value in getattr(self, group).items()
        }
        header = {
            "version": _VERSION,
            "recipe": self.recipe.to_json(),
            "dataset": self.dataset,
            "distilled": self.distilled,
            "history": [dataclasses.asdict(record) for record in self.history],
            "updates": self.updates,
        }
        write_tensors(path, tensors, {_KEY: json.dumps(header)})

    def check_same_training(self, recipe: Recipe, dataset: str, *, distilled: bool) -> None:
        """Refuse to go on with another training.

        Raises:
            UsageError: recipe, data set or the presence of a teacher differ; names what does.
        """
        mine, other = self.recipe.to_json(), recipe.to_json()
        differences = [
            f"{name} was {json.dumps(mine[name])} and is {json.dumps(other[name])}"
            for name in mine
            if name not in _FREE_FIELDS and mine[name] != other[name]
        ]
        if self.dataset != dataset:
            differences.append(f"data set was {self.dataset} and is {dataset}")
        if self.distilled != distilled:
            differences.append("a teacher was there and is not" if self.distilled else "a teacher is new")
        if differences:
            raise UsageError(
                f"the checkpoint is of another training: {'; '.join(differences)}; use the same or do not resume"
            )


def load_checkpoint(path: Path) -> Checkpoint:
    """Read what :meth:`Checkpoint.save` wrote.

    Raises:
        FileError: missing, damaged, no checkpoint, or from a newer version.
    """
    tensors, metadata = read_tensors(path)
    if _KEY not in metadata:
        raise FileError(f"{path} holds weights but is no training checkpoint; give the file that was trained to")
    header: dict[str, Any] = json.loads(metadata[_KEY])
    if header["version"] != _VERSION:
        raise FileError(
            f"{path} is a checkpoint of version {header['version']}; this nnstretch reads {_VERSION}: update it"
        )
    groups: dict[str, dict[str, Tensor]] = {"weights": {}, "average": {}, "momentum": {}}
    for key, value in tensors.items():
        group, _, name = key.partition("/")
        groups[group][name] = value
    # The checksum has vouched for the header, so its fields are those that were written.
    return Checkpoint(
        recipe=recipe_from_json(header["recipe"]),
        dataset=header["dataset"],
        distilled=header["distilled"],
        history=tuple(EpochRecord(**record) for record in header["history"]),
        updates=header["updates"],
        **groups,
    )
