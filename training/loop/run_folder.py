"""The folder of a training: recipe, log, checkpoints. The training's product, the weights, is written elsewhere.

| file | content |
|---|---|
| `recipe.yaml` | the settings, complete |
| `log.jsonl` | one object per line: of every interval of steps, and of every evaluation |
| `checkpoints/last.safetensors` | the newest checkpoint, from which the training resumes |
| `checkpoints/start.safetensors` | that of a block-wise start, until the training itself has begun |
| `checkpoints/epoch-N.safetensors` | those after the last epochs |
| `checkpoints/best.safetensors` | weights of the result if the training had ended at its best evaluation |
| `result.json` | the result, after the end of the training |
| `events.out.*` | the log for TensorBoard, if that is installed |
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from torch import nn

from nnstretch.errors import FileError, UsageError
from nnstretch.support.locks import lock_folder
from nnstretch.support.settings import atomic_write, remove_stale, write_text
from nnstretch.training.loop.checkpoint import Checkpoint
from nnstretch.training.recipe_files import save_recipe
from nnstretch.training.weights import save_weights

if TYPE_CHECKING:
    from nnstretch.training.distillation.blockwise_phase import BlockwiseCheckpoint

_LOG = "log.jsonl"
_STEP_VALUES = frozenset({"step", "epoch", "loss", "lr", "images_per_second", "seconds"})
"""What the log has of a step; an evaluation has its measure beside them."""


@dataclass(frozen=True)
class RunOptions:
    """Where and how often a training writes.

    Attributes:
        folder: the run folder; made if it is missing.
        resume: go on from the last checkpoint, if there is one. Without, the folder must have no unfinished training.
        minutes: between checkpoints within an epoch; one is written after every epoch in any case.
        keep: number of epochs whose checkpoints are kept beside the last one.
        metadata: of `best.safetensors`.
    """

    folder: Path
    resume: bool = False
    minutes: float = 10.0
    keep: int = 2
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.folder / "checkpoints" / "last.safetensors"

    @property
    def start(self) -> Path:
        """The newest checkpoint of a block-wise start; there is such a file until the steps after it begin."""
        return self.folder / "checkpoints" / "start.safetensors"

    @property
    def best(self) -> Path:
        """The best weights so far."""
        return self.folder / "checkpoints" / "best.safetensors"

    @property
    def result(self) -> Path:
        """The result; there is such a file if the training is finished."""
        return self.folder / "result.json"

    def check(self) -> None:
        """Refuses to begin a training where an unfinished one would be lost.

        Raises:
            UsageError: there is one.
        """
        is_begun = self.start.exists() or self.last.exists()
        if is_begun and not self.resume and not self.result.exists():
            raise UsageError(
                f"{self.folder} has an unfinished training; go on with it by --resume, choose another folder with "
                "--run-dir, or remove this one"
            )


class RunFolder:
    """A run folder that this process writes to; no other process can until it is closed."""

    def __init__(self, options: RunOptions) -> None:
        """Makes and locks the folder.

        Raises:
            FileError: it cannot be made or written.
            UsageError: another process is writing to it.
        """
        self.options = options
        self._saved = time.monotonic()
        checkpoints = options.last.parent
        self._new = [one for one in (checkpoints, *checkpoints.parents) if not one.exists()]
        self._lock: IO[bytes] = lock_folder(options.folder, "--run-dir")
        try:
            checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            self._remove_if_empty()
            self._lock.close()
            raise FileError(
                f"cannot write to {options.folder}: {error.strerror}; choose another folder with --run-dir"
            ) from error
        remove_stale(checkpoints, age=0)
        self._board: Any = None  # opened when it is known which step comes next

    def close(self) -> None:
        """Lets others write to the folder. What was made of it for a training that did not begin is removed."""
        if self._board is not None:
            self._board.close()
        self._remove_if_empty()
        self._lock.close()

    def _remove_if_empty(self) -> None:
        """Removes the folders that were made for this training if they hold nothing but the lock."""
        lock = Path(self._lock.name)
        with suppress(OSError):  # one holds files, or is gone
            for one in self._new:
                if one == lock.parent and [path.name for path in one.iterdir()] == [lock.name]:
                    lock.unlink()
                one.rmdir()

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether the last checkpoint is older than the options want."""
        return time.monotonic() - self._saved > 60 * self.options.minutes

    def begin(self, checkpoint: Checkpoint, steps: int) -> None:
        """Writes the first checkpoint and the recipe, and drops what the log has of steps that will be repeated.

        Args:
            checkpoint: the state at the start.
            steps: number of steps that are done.
        """
        if not steps:
            self.save(checkpoint)  # first: it is the largest, and without it nothing of the others may stay
        save_recipe(checkpoint.setup.recipe, self.options.folder / "recipe.yaml")
        self._board = _tensorboard(self.options.folder, steps + 1)
        log = self.options.folder / _LOG
        lines = log.read_bytes().splitlines(keepends=True) if steps and log.exists() else []
        with atomic_write(log) as file:
            file.writelines(line for line in lines if _step_of(line) <= steps)
        if not steps:
            self._remove_all_but(self.options.last)

    def _remove_all_but(self, kept: Path) -> None:
        """Removes what another training has left."""
        self.options.result.unlink(missing_ok=True)
        for old in self.options.last.parent.glob("*.safetensors"):
            if old != kept:
                old.unlink()

    def save(self, checkpoint: Checkpoint) -> None:
        """Replaces the last checkpoint.

        Raises:
            FileError: it cannot be written; the one before is still whole.
        """
        checkpoint.save(self.options.last)
        self._saved = time.monotonic()

    def save_start(self, checkpoint: BlockwiseCheckpoint) -> None:
        """Replaces the checkpoint of the block-wise start, and removes those of an earlier training.

        Raises:
            FileError: it cannot be written; the one before is still whole.
        """
        checkpoint.save(self.options.start)
        self._remove_all_but(self.options.start)
        self._saved = time.monotonic()

    def keep_epoch(self, epoch: int) -> None:
        """Keeps the last checkpoint as that of `epoch` (from 1), and removes that of an earlier one.

        Raises:
            FileError: it cannot be written; there is no part of it then.
        """
        folder = self.options.last.parent
        if self.options.keep > 0:
            kept = folder / f"epoch-{epoch}.safetensors"
            kept.unlink(missing_ok=True)
            try:
                os.link(self.options.last, kept)  # the next checkpoint gets another file
            except OSError:  # the file system has no links
                with self.options.last.open("rb") as last, atomic_write(kept) as file:
                    shutil.copyfileobj(last, file)
        (folder / f"epoch-{epoch - self.options.keep}.safetensors").unlink(missing_ok=True)

    def keep_best(self, module: nn.Module) -> None:
        """Writes the weights of the result if the training ended now."""
        save_weights(module, self.options.best, self.options.metadata)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Writes the result: the training is finished."""
        write_text(self.options.result, json.dumps(result, indent=1) + "\n")

    def log(self, entry: Mapping[str, Any]) -> None:
        """Adds a line to the log; `entry` has its step as `step`.

        Raises:
            FileError: the disk is full.
        """
        try:
            with (self.options.folder / _LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise FileError(f"cannot write {self.options.folder / _LOG}: {error.strerror}; free some space") from error
        if self._board is not None:
            for name, value in _curves(entry).items():
                self._board.add_scalar(name, value, entry["step"])


def _step_of(line: bytes) -> float:
    """The step of a line of the log; a line that was cut off has none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _curves(entry: Mapping[str, Any]) -> dict[str, float]:
    """The values of an entry by the curves that they belong to. The loss of an evaluation is the epoch's mean."""
    of_evaluation = entry.keys() - _STEP_VALUES
    if of_evaluation:
        return {"epoch_loss": entry["loss"], **{name: entry[name] for name in of_evaluation}}
    return {name: value for name, value in entry.items() if name != "step"}


def _tensorboard(folder: Path, next_step: int) -> Any:
    """A writer for TensorBoard that hides what earlier ones wrote of `next_step` and later; None if it is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=next_step)
