"""The steps of a training: forward, backward, update of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from nnstretch.support.image_size import ImageSize, sides
from nnstretch.training.data.loader import Batch
from nnstretch.training.data.split import Dataset
from nnstretch.training.loop.checkpoint import TrainingState
from nnstretch.training.loop.conclusion import moved
from nnstretch.training.loop.distributed import Ranks, share_statistics
from nnstretch.training.loop.optimisers import memory_order
from nnstretch.training.loop.torch_settings import autocast
from nnstretch.training.randomness import seed_of
from nnstretch.training.recipe import Recipe
from nnstretch.training.tasks.base import CountedTask


class TakenStep(NamedTuple):
    """A step whose loss may still be computed by the device.

    Attributes:
        size: of the images that the network read.
        rate: learning rate.
        loss: mean over the images of this process.
        right: images of this process that the network recognised before the step; 0 where the task does not count them.
        images: images of all processes.
    """

    size: ImageSize
    rate: float
    loss: Tensor
    right: Tensor
    images: int


@dataclass(frozen=True)
class Stepper:
    """Takes steps.

    Attributes:
        state: of the training; a step changes it.
        network: what computes the outputs: the state's module, or that with gradients averaged over processes.
        dataset: of the training.
        recipe: of the training.
        ranks: the processes.
        device: of the network.
    """

    state: TrainingState
    network: nn.Module
    dataset: Dataset
    recipe: Recipe
    ranks: Ranks
    device: torch.device

    def take(self, group: Sequence[Batch], size: ImageSize, rate: float) -> TakenStep:
        """Updates the weights once, by the mean gradient of some batches.

        Args:
            group: the batches, or this process's parts of them.
            size: of the images that the network reads.
            rate: learning rate.
        """
        state = self.state
        losses, right = [], []
        for number, batch in enumerate(group):
            is_last = number + 1 == len(group)
            with (
                self.network.no_sync()
                if not is_last and isinstance(self.network, DistributedDataParallel)
                else nullcontext()
            ):
                loss, found = self._backward(batch, number, size, len(group))
            losses.append(loss)
            right.append(found)
        if self.recipe.clip_grad:
            state.scaler.unscale_(state.optimiser)
            nn.utils.clip_grad_norm_(self.state.trained.parameters(), self.recipe.clip_grad)
        for parameters in state.optimiser.param_groups:
            parameters["lr"] = rate * parameters.get("lr_scale", 1.0)
        with memory_order(state.optimiser):
            state.scaler.step(state.optimiser)
        state.scaler.update()
        state.optimiser.zero_grad(set_to_none=True)
        if self.ranks.count > 1 and not self.recipe.sync_bn:
            share_statistics(state.trained)
        if state.average is not None:
            state.average.update()
        state.counters.step += 1
        images = sum(len(batch.labels) for batch in group) * self.ranks.count
        return TakenStep(size, rate, torch.stack(losses).mean(), torch.stack(right).sum(), images)

    def _backward(self, batch: Batch, number: int, size: ImageSize, share: int) -> tuple[Tensor, Tensor]:
        """Adds the gradients of one batch over `share`; returns its loss and how many images were recognised before it."""
        counters, recipe, task = self.state.counters, self.recipe, self.dataset.task
        place = (counters.step * recipe.grad_accum_steps + number) * self.ranks.count + self.ranks.rank
        # Dropout draws from torch's global generator.
        torch.manual_seed(seed_of(recipe.seed, counters.epoch, place, "dropout") % 2**63)
        images = moved(batch.images, self.device, recipe)
        labels, targets = (tensor.to(self.device, non_blocking=True) for tensor in (batch.labels, batch.targets))
        with autocast(recipe, self.device):
            outputs = self.network(_resized(images, size))
            task.check_outputs(outputs, len(images), self.dataset.num_classes)
            loss = self.state.objective.loss(images, outputs, targets)
        torch.autograd.backward([self.state.scaler.scale(loss if share == 1 else loss / share)])
        with torch.no_grad():
            right = (
                task.right(outputs, labels) if isinstance(task, CountedTask) else torch.zeros((), device=self.device)
            )
        return loss.detach(), right


def _resized(images: Tensor, size: ImageSize) -> Tensor:
    if images.shape[-2:] == sides(size):
        return images
    return functional.interpolate(images, size=sides(size), mode="bilinear", antialias=True, align_corners=False)
