"""Batches of training images, the same for any number of workers and processes, from any step on."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from nnstretch.errors import FileError, NNStretchError, UsageError, first_line
from nnstretch.training.augmentation import (
    augmented,
    image_transform,
    mixed,
    smoothed,
    spatial_transform,
    without_moves,
)
from nnstretch.training.cores import usable_cores
from nnstretch.training.data.preprocessing import Images, Pixels
from nnstretch.training.data.split import Dataset, Indices, RawImages, image_names
from nnstretch.training.data.unreadable import readable_sample, refuse_many, replaced_note
from nnstretch.training.randomness import ImageDraws, permutation, preserved_generators, seed_generators, seed_of
from nnstretch.training.recipe import Recipe
from nnstretch.training.tasks.base import SpatialTask

_MOST_WORKERS = 8


@dataclass(frozen=True)
class Batch:
    """Training images of one step, those of one process.

    Attributes:
        images: augmented and normalised, mixed if the recipe mixes: float32, ``N x C x H x W``.
        targets: what the task compares outputs to. Of classification: int64 ``N``; or float32 ``N x classes`` with smoothing,
            mixup or CutMix.
        labels: of the images before they were mixed: int64, ``N``.
        indices: of the images in the training split: int64, ``N``.
    """

    images: Tensor
    targets: Tensor
    labels: Tensor
    indices: Tensor


class TrainingBatches:
    """The training images of a data set in batches.

    The order of an epoch and every change of an image are functions of the recipe's seed, the epoch and the image, so an
    epoch can begin at any step. Each batch is divided evenly among the processes of a training (ranks). An incomplete last
    batch is left out.

    An image that cannot be decoded is replaced by the next image of its class and noted in `unreadable`.

    Attributes:
        batch: images per step, those of all processes together: the recipe's, or fewer where there are fewer.
        steps_per_epoch: batches per epoch.
        workers: processes that load images; 0 loads them in this one.
        unreadable: index of every image that could not be decoded so far -> its name and the reason.
    """

    def __init__(
        self, dataset: Dataset, recipe: Recipe, *, rank: int = 0, ranks: int = 1, device: torch.device | None = None
    ) -> None:
        """Checks that the images can be divided as wanted.

        Args:
            dataset: with the images.
            recipe: the batch, the changes of images, the seed and the number of workers.
            rank: number of this process.
            ranks: number of processes.
            device: that trains; None: the CPU.

        Raises:
            UsageError: a batch that cannot be divided, or a policy of augmentation that timm does not know.
        """
        self._seed, self._images = recipe.seed, len(dataset.train)
        self.batch = _batch_size(recipe, self._images, ranks)
        self.steps_per_epoch = self._images // self.batch
        on_cpu = device is None or device.type == "cpu"
        self.workers = _workers(recipe, ranks, alone=on_cpu and getattr(dataset.train, "in_memory", False))
        self.unreadable: dict[int, str] = {}
        self._share = _share(self.batch, rank, ranks)
        self._steps = _Steps()
        self._source: Iterable[Any] | None = None
        dataset.task.check_recipe(recipe)
        spatial = isinstance(dataset.task, SpatialTask)
        self._maker: _BatchMaker = _SpatialBatches(dataset, recipe) if spatial else _LabelledBatches(dataset, recipe)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch (from 0), from a step on.

        Raises:
            FileError: more than 5 % of the images, or all of a class, cannot be decoded.
            UsageError: a process that loads images was killed.
        """
        order = permutation(self._seed, epoch, self._images)
        self._steps.places = [
            (epoch, step, order[step * self.batch : (step + 1) * self.batch][self._share])
            for step in range(first_step, self.steps_per_epoch)
        ]
        if self._source is None:
            self._source = _parallel(self._maker, self._steps, self.workers) if self.workers else self._steps
        for loaded in _delivered(self._source) if self.workers else map(self._maker.__getitem__, self._source):
            if isinstance(loaded, NNStretchError):
                raise loaded
            batch, unreadable = loaded
            self._note(unreadable)
            yield Batch(*batch)

    def close(self) -> None:
        """Ends the processes that load images."""
        self._source = None

    @property
    def note(self) -> str:
        """What is said of images that could not be decoded; one line, or empty."""
        return replaced_note(self.unreadable, self._images)

    def _note(self, unreadable: dict[int, str]) -> None:
        self.unreadable |= unreadable
        refuse_many(list(self.unreadable.values()), self._images, "training", so_far=True)


class _Steps:
    """The steps that are still to be made: epoch, step and indices of the images. Workers live longer than an epoch."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int, Indices]] = []

    def __iter__(self) -> Iterator[tuple[int, int, Indices]]:
        return iter(self.places)


class _BatchMaker(ABC):
    """From epoch, step and indices to a batch. The indices may be a part of the step's images."""

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        self._recipe, self._split, self._preprocessing = recipe, dataset.train, dataset.preprocessing

    def __getitem__(self, place: tuple[int, int, Indices]) -> Any:
        """The tensors of a `Batch` and the images that could not be decoded; or the error that the caller is to raise."""
        epoch, step, indices = place
        try:
            return self._batch(step, ImageDraws(self._recipe.seed, epoch, indices))
        except NNStretchError as error:  # raised here, a worker would add its traceback to the message
            return error

    @abstractmethod
    def _batch(self, step: int, draws: ImageDraws) -> tuple[tuple[Tensor, ...], dict[int, str]]:
        """The tensors of a `Batch`, and index and name of the images that could not be decoded."""


class _LabelledBatches(_BatchMaker):
    """Batches of images with a class each, which can be mixed."""

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        super().__init__(dataset, recipe)
        self._classes = dataset.num_classes
        self._transform = image_transform(recipe, self._preprocessing)

    def _batch(self, step: int, draws: ImageDraws) -> tuple[tuple[Tensor, ...], dict[int, str]]:
        recipe = self._recipe
        arrays, unreadable = self._images(draws)
        images = augmented(torch.from_numpy(arrays), draws, recipe, self._preprocessing.std)
        labels = torch.from_numpy(self._split.labels[draws.numbers])
        targets = labels
        if _mixes(recipe) and not 0 < recipe.mixup_off_epoch <= draws.epoch:
            seed = seed_of(recipe.seed, draws.epoch, step, "mixing")
            images, targets = mixed(images, labels, recipe, self._classes, seed)
        elif recipe.smoothing:
            targets = smoothed(labels, recipe.smoothing, self._classes)
        return (images, targets, labels, torch.from_numpy(draws.numbers)), unreadable

    def _images(self, draws: ImageDraws) -> tuple[Images, dict[int, str]]:
        """The images of a batch before changes of whole batches, and those that could not be decoded."""
        if self._transform is None and not isinstance(self._split, RawImages):
            return self._split.arrays(draws.numbers), {}
        unreadable: dict[int, str] = {}
        pixels = []
        with preserved_generators():
            for index, seed in zip(draws.numbers.tolist(), draws.seeds("image"), strict=True):
                raw, _ = readable_sample(self._split, index, draws.epoch, unreadable)
                if self._transform is None:
                    pixels.append(self._preprocessing.pixels(raw))
                else:
                    seed_generators(seed)
                    pixels.append(self._transform(raw))
        return self._preprocessing.normalised(np.stack(pixels)), unreadable


class _SpatialBatches(_BatchMaker):
    """Batches of images whose targets lie in them."""

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        super().__init__(dataset, recipe)
        assert isinstance(dataset.task, SpatialTask)
        self._task = dataset.task
        self._transform = spatial_transform(recipe, self._preprocessing, self._task)
        self._colors = without_moves(recipe)

    def _batch(self, step: int, draws: ImageDraws) -> tuple[tuple[Tensor, ...], dict[int, str]]:
        unreadable: dict[int, str] = {}
        pixels, targets = [], []
        with preserved_generators():
            for index, seed in zip(draws.numbers.tolist(), draws.seeds("image"), strict=True):
                raw, target = readable_sample(self._split, index, draws.epoch, unreadable)
                self._check(index, raw, target)
                seed_generators(seed)
                changed, moved = self._transform(raw, target)
                pixels.append(changed)
                targets.append(moved)
        images = torch.from_numpy(self._preprocessing.normalised(np.stack(pixels)))
        images = augmented(images, draws, self._colors, self._preprocessing.std)
        tensors = (self._task.collated(targets), self._split.labels[draws.numbers], draws.numbers)
        return (images, *map(torch.from_numpy, tensors)), unreadable

    def _check(self, index: int, raw: Pixels, target: Any) -> None:
        if said := self._task.check_size(target, *raw.shape[:2]):
            raise FileError(f"{image_names(self._split, np.array([index]), 1)}: {said}")


def _batch_size(recipe: Recipe, images: int, ranks: int) -> int:
    """Images per step of all processes: a multiple of their number, and even per process if images are mixed in pairs."""
    divisor = 2 * ranks if _mixes(recipe) else ranks
    if recipe.batch_size % divisor:
        why = " and ".join(["several processes"] * (ranks > 1) + ["mixing pairs of images"] * _mixes(recipe))
        raise UsageError(f"batch_size is {recipe.batch_size}; a multiple of {divisor} is wanted for {why}")
    batch = min(recipe.batch_size, images // divisor * divisor)
    if batch == 0:
        raise UsageError(f"there are {images} training images; {divisor} or more are wanted")
    return batch


def _mixes(recipe: Recipe) -> bool:
    return recipe.mixup > 0 or recipe.cutmix > 0


def _share(batch: int, rank: int, ranks: int) -> Indices:
    """Positions in a batch of the images of one process.

    Images are mixed with the one at the same distance from the other end, so a process gets both wherever it can.
    """
    positions = np.arange(batch)
    if batch % (2 * ranks):
        return positions[rank * batch // ranks : (rank + 1) * batch // ranks]
    half = batch // (2 * ranks)
    first = positions[rank * half : (rank + 1) * half]
    return np.concatenate((first, (batch - 1 - first)[::-1]))


def _workers(recipe: Recipe, ranks: int, *, alone: bool) -> int:
    """Processes that load images.

    Args:
        recipe: may have their number.
        ranks: processes that train.
        alone: the training process loads the images by itself: they are in memory, and it computes on the same cores. Where
            an accelerator computes, workers augment the next batches meanwhile.
    """
    if recipe.workers is not None:
        return recipe.workers
    if alone:
        return 0
    return min(_MOST_WORKERS, max(1, usable_cores() // ranks - 1))


def _parallel(maker: Any, steps: Iterable[Any], workers: int) -> Iterable[Any]:
    """What `maker` makes of `steps`, in their order, by processes that stay from epoch to epoch."""
    return DataLoader(
        maker,
        batch_size=None,
        sampler=steps,
        num_workers=workers,
        collate_fn=_unchanged,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=True,
        multiprocessing_context="fork",
        worker_init_fn=leave_signals,
        generator=torch.Generator(),  # else every epoch draws from torch's global generator
    )


def loaded_by_workers(maker: Any, places: Iterable[Any], workers: int | None = None) -> Iterator[Any]:
    """`maker[place]` for every place, in their order, by processes that load images.

    Args:
        maker: what processes inherit.
        places: its arguments.
        workers: number of processes; None: as many as for a training.

    Raises:
        UsageError: one was killed.
    """
    count = min(_MOST_WORKERS, usable_cores()) if workers is None else workers
    return _delivered(_parallel(maker, places, count))


def _unchanged(loaded: Any) -> Any:
    return loaded


def leave_signals(worker: int) -> None:
    """Leaves signals to the main process, whose handlers a forked worker inherits; called in a worker, with its number.

    What asks a process group to end, such as `timeout`, asks the main process alone, which still needs its workers to write
    a checkpoint.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _delivered(source: Iterable[Any]) -> Iterator[Any]:
    """What workers deliver.

    Raises:
        UsageError: one was killed.
    """
    with lost_workers_named():
        try:
            yield from source
        except (EOFError, OSError) as error:  # it was killed while it sent a batch
            raise _lost_worker(error) from error


@contextmanager
def lost_workers_named() -> Iterator[None]:
    """Names the cause where a process that loads images was killed. Torch says so by an error in whatever code runs then.

    Raises:
        UsageError: one was killed.
    """
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise _lost_worker(error) from error


def _lost_worker(error: Exception) -> UsageError:
    return UsageError(
        f"a process that loads images ended ({first_line(error)}); it may have lacked memory: lower workers or batch_size"
    )
