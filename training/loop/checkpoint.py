"""The state of a training after any of its steps, as one safetensors file with JSON in its header."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from nnstretch.branching.search.bounds_file import weights_digest
from nnstretch.errors import FileError, ModelError, UsageError
from nnstretch.support.image_size import ImageSize, as_image_size, size_key
from nnstretch.training.data.split import Split
from nnstretch.training.distillation.objectives import Objective
from nnstretch.training.loop.averaging import WeightAverage
from nnstretch.training.loop.sharding import ShardedCopy, divided_as, whole
from nnstretch.training.recipe import Recipe
from nnstretch.training.recipe_files import recipe_from_json
from nnstretch.training.weights import CHECKPOINT, fill, read_tensors, write_tensors

_VERSION = 4
_READABLE = (3, 4)
"""Version 3 has neither the identity of data and teacher nor images that cannot be decoded."""
# Fields that do not change what the weights become in training (but for rounding).
_FREE_FIELDS = frozenset({"name", "threads", "workers", "channels_last", "torchcompile", "fsdp", "checkpoint"})
# Stands in the JSON of the optimiser's state for a tensor; its value is the tensor's name in the file.
_TENSOR = "tensor:"


@dataclass(frozen=True)
class EpochRecord:
    """Record of one epoch.

    Attributes:
        epoch: counted from 1.
        image_size: of the training images.
        loss: mean over the training images.
        train_top1: of the network in training, on the changed images, in percent; None where an image is neither right nor
            wrong.
        learning_rate: of the last step.
        validation_score: the task's measure on the validation images in percent; None if not measured.
        seconds: since the training started.
    """

    epoch: int
    image_size: ImageSize
    loss: float
    train_top1: float | None
    learning_rate: float
    validation_score: float | None
    seconds: float


@dataclass
class TrainingCounters:
    """The numbers among the state of a training.

    Attributes:
        step: steps of the running epoch that are done. A step is one update of the weights.
        losses: sum of the losses of these steps.
        right: images that the network recognised before these steps.
        images: images of these steps.
        rate: learning rate of the last step.
        history: one record per finished epoch.
        best: highest score on the validation images so far, in percent.
        seconds: duration so far, all parts of a resumed training together.
        unreadable: index of every training image that could not be decoded so far -> its name and the reason.
        start_note: what is to be said of the images of a block-wise start, if it had others than the training.
    """

    step: int = 0
    losses: float = 0.0
    right: int = 0
    images: int = 0
    rate: float = 0.0
    history: list[EpochRecord] = field(default_factory=list)
    best: float | None = None
    seconds: float = 0.0
    unreadable: dict[int, str] = field(default_factory=dict)
    start_note: str = ""

    @property
    def epoch(self) -> int:
        """The running epoch, from 0."""
        return len(self.history)

    def has_ended(self, recipe: Recipe) -> bool:
        """Whether all epochs are done, or the last evaluation ends the training."""
        accuracies = [record.validation_score for record in self.history if record.validation_score is not None]
        return self.epoch >= recipe.epochs or recipe.stops_after(accuracies)

    def close_epoch(self, record: EpochRecord) -> None:
        """Ends the running epoch with its record."""
        self.history.append(record)
        self.step, self.losses, self.right, self.images = 0, 0.0, 0, 0


@dataclass(frozen=True)
class TrainingSetup:
    """What a training is: it is only ever resumed with the same.

    Attributes:
        recipe: its recipe.
        dataset: the data set's name.
        distilled: whether there is a teacher.
        teacher: digest of the teacher's weights; None without a teacher, or where it is not known.
        images: number of training images; None where it is not known.
        labels: digest of their labels; None where it is not known.
        image_size: of its images; None where it is not known.
    """

    recipe: Recipe
    dataset: str
    distilled: bool
    teacher: str | None = None
    images: int | None = None
    labels: str | None = None
    image_size: ImageSize | None = None

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        dataset: str,
        train: Split,
        teacher: nn.Module | None,
        image_size: ImageSize | None = None,
    ) -> TrainingSetup:
        """The setup of a training.

        Args:
            recipe: of the training.
            dataset: name of the data set.
            train: the training images.
            teacher: whose weights the training depends on.
            image_size: of the training images.
        """
        labels = np.ascontiguousarray(train.labels, np.int64)
        return cls(
            recipe,
            dataset,
            teacher is not None,
            None if teacher is None else weights_digest(teacher),
            len(train),
            hashlib.sha256(labels.tobytes()).hexdigest()[:16],
            image_size,
        )

    def check(self, now: TrainingSetup) -> None:
        """Refuses to go on with another training.

        Raises:
            UsageError: recipe, data set, training images or teacher differ; names what does. What an older checkpoint does
                not know is not compared.
        """
        mine, other = self.recipe.to_json(), now.recipe.to_json()
        # Evaluations change the weights only if they can end the training.
        free = _FREE_FIELDS if now.recipe.may_stop_early else _FREE_FIELDS | {"evaluate_every"}
        differences = [
            f"{name} was {json.dumps(mine[name])} and is {json.dumps(other[name])}"
            for name in mine
            if name not in free and mine[name] != other[name]
        ]
        if self.dataset != now.dataset:
            differences.append(f"data set was {self.dataset} and is {now.dataset}")
        if self.distilled != now.distilled:
            differences.append("a teacher was there and is not" if self.distilled else "a teacher is new")
        differences += [
            f"{what} was {before} and is {after}"
            for what, before, after in (
                ("digest of the teacher's weights", self.teacher, now.teacher),
                ("number of training images", self.images, now.images),
                ("digest of the training labels", self.labels, now.labels),
                ("size of the images", size_key(self.image_size), size_key(now.image_size)),
            )
            if None not in (before, after) and before != after
        ]
        if differences:
            shorter = (
                "; to end this one earlier, take the best weights so far, checkpoints/best.safetensors in its folder, by "
                "--weights"
                if now.recipe.epochs < self.recipe.epochs
                else ""
            )
            raise UsageError(
                f"the checkpoint is of another training: {'; '.join(differences)}; use the same, or begin another one with "
                f"another --run-dir{shorter}"
            )


@dataclass(frozen=True)
class Checkpoint:
    """A state of a training on its way to or from a file.

    Attributes:
        setup: the training.
        counters: numbers, as JSON.
        optimiser: state of the optimiser as JSON, with names in place of tensors.
        scaler: state of the gradient scaler, as JSON.
        updates: number of updates of the averaged weights.
        tensors: all tensors by name: `weights/…`, `average/…`, `objective/…`, `optimiser/…`.
    """

    setup: TrainingSetup
    counters: TrainingCounters
    optimiser: Any
    scaler: dict[str, Any]
    updates: int
    tensors: dict[str, Tensor]

    @property
    def history(self) -> tuple[EpochRecord, ...]:
        """One record per finished epoch."""
        return tuple(self.counters.history)

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors of one part of the state, by their names in it."""
        start = f"{name}/"
        return {key.removeprefix(start): value for key, value in self.tensors.items() if key.startswith(start)}

    def save(self, path: Path) -> None:
        """Writes the file; it replaces an older one only when it is complete.

        Raises:
            FileError: it cannot be written.
        """
        header = {
            "version": _VERSION,
            "setup": {**dataclasses.asdict(self.setup), "recipe": self.setup.recipe.to_json()},
            "counters": dataclasses.asdict(self.counters),
            "optimiser": self.optimiser,
            "scaler": self.scaler,
            "updates": self.updates,
        }
        write_tensors(path, self.tensors, {CHECKPOINT: json.dumps(header)})


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads what `Checkpoint.save` wrote.

    Raises:
        FileError: missing, damaged, no checkpoint, or of another version.
    """
    tensors, metadata = read_tensors(path)
    if CHECKPOINT not in metadata:
        raise FileError(f"{path} holds weights but is no training checkpoint; give the folder of a training")
    # The checksum has vouched for the header, so its fields are those that were written.
    header: dict[str, Any] = json.loads(metadata[CHECKPOINT])
    version = header.pop("version")
    if version not in _READABLE:
        advice = "update it" if version > _VERSION else "train again without resuming"
        readable = " and ".join(map(str, _READABLE))
        raise FileError(f"{path} is a checkpoint of version {version}; this nnstretch reads {readable}: {advice}")
    setup, counters = header.pop("setup"), header.pop("counters")
    counters["history"] = [_epoch_record(record) for record in counters["history"]]
    counters["unreadable"] = {int(index): name for index, name in counters.get("unreadable", {}).items()}
    return Checkpoint(setup_from_json(setup), TrainingCounters(**counters), tensors=tensors, **header)


def setup_from_json(fields: Mapping[str, Any]) -> TrainingSetup:
    """What a training is, as a checkpoint has it."""
    size = fields.get("image_size")
    read = {"recipe": recipe_from_json(fields["recipe"]), "image_size": None if size is None else as_image_size(size)}
    return TrainingSetup(**{**fields, **read})


def _epoch_record(fields: dict[str, Any]) -> EpochRecord:
    """A record from JSON; `validation_top1` is a former name."""
    fields["image_size"] = as_image_size(fields["image_size"])
    if "validation_top1" in fields:
        fields["validation_score"] = fields.pop("validation_top1")
    return EpochRecord(**fields)


@dataclass
class TrainingState:
    """Everything that a training changes.

    Attributes:
        module: the network in training.
        objective: the loss, which may have weights of its own.
        optimiser: of the weights of both.
        scaler: of gradients in float16; does nothing in other types.
        average: averaged weights, or None.
        counters: the numbers.
        sharded: the copy of the network whose weights are trained, in shards; None if the network itself is trained.
    """

    module: nn.Module
    objective: Objective
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: WeightAverage | None
    counters: TrainingCounters
    sharded: ShardedCopy | None = None

    @property
    def trained(self) -> nn.Module:
        """The module whose weights the optimiser changes."""
        return self.module if self.sharded is None else self.sharded.network

    def collect(self) -> None:
        """Brings the weights of now into `module`. All processes have to call it together."""
        if self.sharded is not None:
            self.sharded.collect()

    def checkpoint(self, setup: TrainingSetup) -> Checkpoint:
        """The state for a file. It shares its tensors with the training, but for those in shards.

        All processes of a training in shards have to call it together.
        """
        self.collect()
        tensors: dict[str, Tensor] = {}
        groups = {
            "weights": self.module.state_dict(),
            "average": self.average.whole_state() if self.average else {},
            "objective": self.objective.state(),
        }
        for group, members in groups.items():
            tensors.update({f"{group}/{name}": value for name, value in members.items()})
        optimiser = _flattened(self.optimiser.state_dict(), "optimiser", tensors)
        updates = self.average.updates if self.average else 0
        return Checkpoint(setup, self.counters, optimiser, dict(self.scaler.state_dict()), updates, tensors)

    def restore(self, saved: Checkpoint, source: str) -> None:
        """Takes over a saved state.

        Args:
            saved: the state.
            source: where it came from, for messages.

        Raises:
            ModelError: it is of another network or optimiser.
        """
        fill(self.module, saved.group("weights"), source)
        if self.sharded is not None:
            self.sharded.scatter()
        if self.average is not None:
            self.average.restore(saved.group("average"), saved.updates)
        self.objective.restore(saved.group("objective"))
        try:
            self.optimiser.load_state_dict(_unflattened(saved.optimiser, saved.tensors))
        except (KeyError, ValueError) as error:
            raise ModelError(
                f"the optimiser in {source} is not that of this network: {error}; train again without resuming"
            ) from error
        _match_layouts(self.optimiser)
        if saved.scaler:
            self.scaler.load_state_dict(saved.scaler)
        self.counters = saved.counters


def _match_layouts(optimiser: torch.optim.Optimizer) -> None:
    """Gives the optimiser's tensors the form of their weights: shards, and the layout in memory, for faster updates."""
    for weight, state in optimiser.state.items():
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.shape != weight.shape:
                continue
            if isinstance(weight, DTensor):
                state[name] = divided_as(weight, value)
            elif value.stride() != weight.stride():
                state[name] = torch.empty_like(weight, dtype=value.dtype, requires_grad=False).copy_(value)


def _flattened(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Nested lists and dictionaries as JSON values; tensors in them go to `tensors`.

    Raises:
        FileError: there is a value that JSON cannot hold.
    """
    match value:
        case Tensor():
            tensors[name] = whole(value)
            return f"{_TENSOR}{name}"
        case dict():
            # As pairs: the keys may be numbers.
            return {"pairs": [[key, _flattened(member, f"{name}/{key}", tensors)] for key, member in value.items()]}
        case list() | tuple():
            return [_flattened(member, f"{name}/{number}", tensors) for number, member in enumerate(value)]
        case None | bool() | int() | float() | str():
            return value
    raise FileError(f"the optimiser keeps a {type(value).__name__} ({name}), which no checkpoint can hold; use another")


def _unflattened(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `_flattened` took apart."""
    match value:
        case str() if value.startswith(_TENSOR):
            return tensors[value.removeprefix(_TENSOR)]
        case dict():
            return {key: _unflattened(member, tensors) for key, member in value["pairs"]}
        case list():
            return [_unflattened(member, tensors) for member in value]
    return value
