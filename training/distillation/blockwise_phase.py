"""The block-wise start as the first part of a training: its checkpoint in the run folder, and how it stops and goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nnstretch.errors import FileError
from nnstretch.support.image_size import ImageSize
from nnstretch.training.distillation.blockwise import BlockwiseResult, BlockwiseStart, StepProgress
from nnstretch.training.loop.checkpoint import TrainingSetup, setup_from_json
from nnstretch.training.loop.distributed import Ranks
from nnstretch.training.loop.run_folder import RunFolder, RunOptions
from nnstretch.training.loop.stopping import StopRequest
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import fill, read_tensors, write_tensors

_KEY = "nnstretch.blockwise"
_VERSION = 2
_READABLE = (1, 2)
"""Version 1 does not have the identity of images and teacher."""
_WEIGHTS, _STATE = "weights/", "state/"
# Steps between which several processes agree whether to stop or to write a checkpoint.
_AGREE_STEPS = 16


@dataclass(frozen=True)
class BlockwiseCheckpoint:
    """A block-wise start on its way to or from a file.

    Attributes:
        setup: the training; its data set is that of the start's images.
        values: of the start's state.
        tensors: `weights/…` of the network, `state/…` of the start.
    """

    setup: TrainingSetup
    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def save(self, path: Path) -> None:
        """Writes the file; it replaces an older one only when it is complete.

        Raises:
            FileError: it cannot be written.
        """
        setup = {**asdict(self.setup), "recipe": self.setup.recipe.to_json()}
        header = {"version": _VERSION, "setup": setup, "values": self.values}
        write_tensors(path, self.tensors, {_KEY: json.dumps(header)})

    def group(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix`, without it."""
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}


def load_blockwise_checkpoint(path: Path) -> BlockwiseCheckpoint:
    """Reads what `BlockwiseCheckpoint.save` wrote.

    Raises:
        FileError: missing, damaged, or of another kind or version.
    """
    tensors, metadata = read_tensors(path)
    header: dict[str, Any] = json.loads(metadata.get(_KEY, "{}"))
    if header.get("version") not in _READABLE:
        raise FileError(
            f"{path} is no checkpoint of a block-wise start that this nnstretch reads; remove it to train again"
        )
    return BlockwiseCheckpoint(setup_from_json(header["setup"]), header["values"], tensors)


@dataclass(frozen=True)
class BlockwisePhase:
    """A block-wise start that comes before the steps of a training.

    Attributes:
        make: makes the start. It is called only if the start has not ended before.
        images: name of the data set that it learns from.
        progress: called after its steps.
        image_size: of the images; None: it is not compared when a start goes on.
    """

    make: Callable[[], BlockwiseStart]
    images: str
    progress: StepProgress | None = None
    image_size: ImageSize | None = None

    def run(
        self,
        module: nn.Module,
        recipe: Recipe,
        run: RunOptions | None = None,
        folder: RunFolder | None = None,
        stop: StopRequest | None = None,
    ) -> BlockwiseResult | None:
        """Makes the start, or goes on with it; returns None if the training is already past it.

        Args:
            module: the network whose segments learn.
            recipe: of the training.
            run: where it may go on from.
            folder: where checkpoints are written, in the first process.
            stop: ends it after a step when it is requested.

        Raises:
            StoppedError: a stop was requested; the folder has a checkpoint.
            UsageError: the checkpoint is of another training.
            NNStretchError: a loss is not finite, or a file cannot be read or written.
        """
        if run is not None and run.resume and run.last.exists():
            return None
        start = self.make()
        setup = TrainingSetup(recipe, self.images, distilled=True)
        if start.split is not None:
            setup = TrainingSetup.of(recipe, self.images, start.split, start.teacher, self.image_size)
        if run is not None and run.resume and run.start.exists():
            saved = load_blockwise_checkpoint(run.start)
            saved.setup.check(setup)
            fill(module, saved.group(_WEIGHTS), str(run.start))
            start.restore(saved.group(_STATE), saved.values)
        ranks = Ranks.current()

        def save() -> None:
            tensors, values = start.state()  # of all processes together
            if folder is not None:
                found = {f"{_STATE}{name}": tensor for name, tensor in tensors.items()}
                found |= {f"{_WEIGHTS}{name}": tensor for name, tensor in module.state_dict().items()}
                folder.save_start(BlockwiseCheckpoint(setup, values, found))

        def after_step() -> None:
            if ranks.count > 1 and start.step % _AGREE_STEPS:
                return
            is_asked = stop is not None and stop.is_requested
            is_stopped, is_due = ranks.any(is_asked, folder is not None and folder.checkpoint_is_due)
            if is_stopped or is_due:
                save()
            if is_stopped:
                where = f"stopped after step {start.step} of {start.steps} of the block-wise start"
                raise (stop or StopRequest()).error(where)

        start.run(self.progress, after_step)
        save()
        return start.result()
