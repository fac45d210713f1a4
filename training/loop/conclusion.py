"""From a network in training to a result: averaged weights, batch-norm statistics, accuracy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnstretch.training.data.split import Dataset, Indices
from nnstretch.training.data.unreadable import inputs_to_learn_from
from nnstretch.training.evaluation.accuracy import scored
from nnstretch.training.loop.averaging import WeightAverage, recompute_batch_norms
from nnstretch.training.loop.distributed import Ranks, share_of
from nnstretch.training.loop.torch_settings import amp_dtype, autocast
from nnstretch.training.randomness import permutation
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import fill


@dataclass(frozen=True)
class Conclusion:
    """Makes results of a network in training.

    Attributes:
        dataset: its training images give batch-norm statistics, its validation images the accuracy.
        recipe: of the training.
        device: of the network.
        batch: images per batch.
        ranks: the processes that share the work.
        unreadable: gets index and name of training images that cannot be decoded.
    """

    dataset: Dataset
    recipe: Recipe
    device: torch.device
    batch: int
    ranks: Ranks
    unreadable: dict[int, str]

    def copy(self, module: nn.Module, average: WeightAverage | None) -> nn.Module:
        """A copy of `module` as a result."""
        result = copy.deepcopy(module)
        self.conclude(result, average)
        return result

    def conclude(self, module: nn.Module, average: WeightAverage | None) -> None:
        """Turns `module`, which has the weights in training, into a result.

        Args:
            module: the network.
            average: of its weights, which it gets.
        """
        if average is not None:
            fill(module, average.whole_state(), "the average")
        samples = min(self.recipe.precise_bn_samples, len(self.dataset.train))
        if samples > 0:
            with autocast(self.recipe, self.device):
                recompute_batch_norms(module, self._statistics_batches(samples), self.ranks)

    @property
    def is_exact(self) -> bool:
        """Whether evaluations in the recipe's precision are those in float32."""
        return amp_dtype(self.recipe, self.device) == torch.float32

    def quick_accuracy(self, module: nn.Module) -> float:
        """`accuracy` as the network computes in the recipe's precision, for decisions during a training."""
        with autocast(self.recipe, self.device):
            return self.accuracy(module)

    def accuracy(self, module: nn.Module) -> float:
        """The task's measure of `module` on the validation images, in percent."""
        share = share_of(self.dataset.validation, self.ranks)
        mine = scored(module, share, self.dataset, self.batch)
        first, *others = self.ranks.gathered(mine)
        for other in others:
            first.merge(other)
        return first.percent

    def images(self, indices: Indices) -> Tensor:
        """Training images, preprocessed as for evaluation, on the device."""
        images = inputs_to_learn_from(self.dataset.train, indices, self.unreadable)
        return moved(torch.from_numpy(images), self.device, self.recipe)

    def _statistics_batches(self, samples: int) -> Iterator[Tensor]:
        """The part of this process of `samples` training images at full size, in batches of equal size."""
        batch = min(self.batch, samples)
        order = permutation(self.recipe.seed, self.recipe.epochs, len(self.dataset.train), "statistics")
        for index in range(self.ranks.rank, samples // batch, self.ranks.count):
            yield self.images(order[index * batch : (index + 1) * batch])


def moved(images: Tensor, device: torch.device, recipe: Recipe) -> Tensor:
    """Images on a device, in the layout that the recipe wants."""
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    return images.to(device, non_blocking=True).to(memory_format=layout)
