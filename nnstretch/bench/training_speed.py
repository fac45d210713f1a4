"""Images per second of a training beside a plain loop of PyTorch, with the same tensors, batch, threads and types.

The plain loop is what a tutorial shows: `zero_grad`, forward, cross entropy, backward, `SGD.step`, for batches that lie ready
in memory. The training is `train` without augmentation, teacher, averages and evaluations. It makes its batches of the same
images in the same order, counts what was recognised, and reports every loss.

Rounds are interleaved, and every second one is in the other order. In each, both train the same first weights for one epoch,
whose first steps are not timed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from nnstretch.errors import UsageError
from nnstretch.support.image_size import size_of
from nnstretch.support.progress import Progress, silent
from nnstretch.training.data.loader import Batch, TrainingBatches
from nnstretch.training.data.split import ArraySplit, Dataset
from nnstretch.training.loop.events import TrainingEvent
from nnstretch.training.loop.torch_settings import autocast, channels_last, compiled, threads, tuned_convolutions
from nnstretch.training.loop.trainer import FETCH_INTERVAL, train
from nnstretch.training.recipe import Recipe

_LEARNING_RATE = 1e-3  # small: random images and labels teach nothing, and nothing may diverge
_MOMENTUM = 0.9


@dataclass(frozen=True)
class SpeedSettings:
    """What both loops have in common.

    Attributes:
        batch: images per step.
        steps: timed steps of each part.
        warmup: steps before them.
        rounds: parts of each loop.
        amp_dtype, channels_last, torchcompile, threads: as in a recipe; None for torch's own threads, and for no compiler.
        workers: processes that load images for the training; None leaves the number to it.
    """

    batch: int = 32
    steps: int = 10
    warmup: int = 3
    rounds: int = 5
    amp_dtype: str = "auto"
    channels_last: bool = True
    torchcompile: str | None = None
    threads: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            UsageError: one is too small.
        """
        for name in ("batch", "steps", "warmup", "rounds"):
            least = 2 if name == "batch" else 1
            if getattr(self, name) < least:
                raise UsageError(f"{name} is {getattr(self, name)}; {least} or more are wanted")

    def on(self, device: torch.device) -> SpeedSettings:
        """These settings with numbers of steps that a training on `device` can time: accelerators report many at once."""
        if device.type == "cpu":
            return self
        steps, warmup = (-(-count // FETCH_INTERVAL) * FETCH_INTERVAL for count in (self.steps, self.warmup))
        return SpeedSettings(**{**asdict(self), "steps": steps, "warmup": warmup})

    def recipe(self) -> Recipe:
        """The training."""
        return Recipe(
            name="speed",
            epochs=1,
            batch_size=self.batch,
            opt="sgd",
            lr=_LEARNING_RATE,
            momentum=_MOMENTUM,
            weight_decay=0.0,
            sched="constant",
            evaluate_every=0,
            amp_dtype=self.amp_dtype,
            channels_last=self.channels_last,
            torchcompile=self.torchcompile,
            threads=self.threads,
            workers=self.workers,
        )


@dataclass(frozen=True)
class Part:
    """One timed part of a loop.

    Attributes:
        images_per_second: of the timed steps.
        loss: of the last step.
    """

    images_per_second: float
    loss: float


@dataclass(frozen=True)
class SpeedResult:
    """Parts of both loops, one of each per round."""

    settings: SpeedSettings
    training: tuple[Part, ...]
    plain: tuple[Part, ...]

    @property
    def ratio(self) -> float:
        """Median over the rounds of the training's images per second over those of the plain loop."""
        pairs = zip(self.training, self.plain, strict=True)
        return median(one.images_per_second / other.images_per_second for one, other in pairs)

    def to_json(self) -> dict[str, Any]:
        """Medians, their ratio, all rounds, and the losses of the last step."""
        parts = {"training": self.training, "plain": self.plain}
        return {
            "settings": asdict(self.settings),
            "images_per_second": {name: median(part.images_per_second for part in of) for name, of in parts.items()},
            "ratio": self.ratio,
            "rounds": {name: [part.images_per_second for part in of] for name, of in parts.items()},
            "last_loss": {name: of[-1].loss for name, of in parts.items()},
        }


def training_speed(
    network: nn.Module,
    image: torch.Tensor,
    num_classes: int,
    settings: SpeedSettings,
    device: torch.device,
    progress: Progress = silent,
) -> SpeedResult:
    """Times both loops on random images.

    Args:
        network: from `N x C x H x W` images to `N x classes` logits; it is not changed.
        image: an example input, `N x C x H x W`, for the sizes of the images.
        num_classes: number of logits.
        settings: of both.
        device: that trains.
        progress: called before every part.

    Raises:
        ModelError: the network has other outputs.
        UsageError: torch has no such compiler.
    """
    settings = settings.on(device)
    dataset, recipe = _random_images(image, num_classes, settings), settings.recipe()
    batches = list(TrainingBatches(dataset, Recipe(batch_size=settings.batch, workers=0)).epoch(0))
    parts: dict[str, list[Part]] = {"training": [], "plain": []}
    for number in range(settings.rounds):
        for name in sorted(parts, reverse=number % 2 == 0):
            progress(sum(map(len, parts.values())), 2 * settings.rounds, f"round {number + 1}, {name}")
            if settings.torchcompile is not None:
                torch.compiler.reset()  # else the number of networks that are compiled meets a limit of torch
            module = copy.deepcopy(network).to(device)
            if name == "training":
                parts[name].append(_training(module, dataset, settings, recipe))
            else:
                parts[name].append(_plain(module, batches, settings, recipe, device))
    return SpeedResult(settings, tuple(parts["training"]), tuple(parts["plain"]))


def _random_images(image: torch.Tensor, num_classes: int, settings: SpeedSettings) -> Dataset:
    """A data set for one epoch of both loops."""
    draw = np.random.default_rng(0)
    _, channels, height, width = image.shape

    def split(count: int) -> ArraySplit:
        pixels = draw.standard_normal((count, channels, height, width), np.float32)
        return ArraySplit(pixels, draw.integers(0, num_classes, count, np.int64))

    few = split(2)
    names = tuple(map(str, range(num_classes)))
    train_split = split((settings.warmup + settings.steps) * settings.batch)
    zeros, ones = (0.0,) * channels, (1.0,) * channels
    return Dataset("random", num_classes, channels, size_of(height, width), names, zeros, ones, train_split, few, few)


def _training(module: nn.Module, dataset: Dataset, settings: SpeedSettings, recipe: Recipe) -> Part:
    """A part of the training, from the report of the last step that is not timed to that of the last step."""
    times: dict[int, float] = {}
    losses: dict[int, float] = {}

    def see(event: TrainingEvent) -> None:
        if event.validation_score is None:
            times[event.step], losses[event.step] = time.perf_counter(), event.loss

    train(module, dataset, recipe, progress=see)
    last = settings.warmup + settings.steps
    return Part(settings.steps * settings.batch / (times[last] - times[settings.warmup]), losses[last])


def _plain(
    module: nn.Module, batches: Sequence[Batch], settings: SpeedSettings, recipe: Recipe, device: torch.device
) -> Part:
    """A part of the plain loop."""
    layout = torch.channels_last if settings.channels_last else torch.contiguous_format
    scaler = torch.amp.GradScaler(device.type, enabled=settings.amp_dtype == "float16")
    begin, loss = 0.0, torch.zeros(())
    with (
        threads(settings.threads),
        tuned_convolutions(device),
        channels_last(module, wanted=settings.channels_last),
        compiled(module, settings.torchcompile),
    ):
        module.train()
        optimiser = torch.optim.SGD(module.parameters(), _LEARNING_RATE, _MOMENTUM, nesterov=True)
        for number, batch in enumerate(batches):
            if number == settings.warmup:
                _finish(device)
                begin = time.perf_counter()
            images = batch.images.to(device, non_blocking=True).to(memory_format=layout)
            labels = batch.labels.to(device, non_blocking=True)
            optimiser.zero_grad()
            with autocast(recipe, device):
                loss = functional.cross_entropy(module(images), labels)
            torch.autograd.backward([scaler.scale(loss)])
            scaler.step(optimiser)
            scaler.update()
        _finish(device)
        seconds = time.perf_counter() - begin
    return Part(settings.steps * settings.batch / seconds, float(loss.detach()))


def _finish(device: torch.device) -> None:
    """Waits until a device has computed everything."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
