"""Averages over a training: weights (EMA) and batch-norm statistics (precise BN)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class WeightAverage:
    """Exponential moving average of a module's weights.

    In the first steps the decay is lower, ``(1 + n) / (10 + n)`` after ``n`` updates, so that the random first
    weights are soon forgotten. Batch-norm statistics are averaged alike; integer buffers are copied.

    Attributes:
        state: name → average, in the order of ``module.state_dict()``.
        updates: number of updates so far.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.state: dict[str, Tensor] = {name: value.detach().clone() for name, value in module.state_dict().items()}

    def update(self, module: nn.Module) -> None:
        """Add the module's current weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        averages: list[Tensor] = []
        values: list[Tensor] = []
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                averages.append(self.state[name])
                values.append(value.detach())
            else:
                self.state[name].copy_(value)
        torch._foreach_lerp_(averages, values, 1 - decay)

    def restore(self, state: dict[str, Tensor], updates: int) -> None:
        """Continue from a saved ``state`` (same names and shapes)."""
        for name, value in self.state.items():
            value.copy_(state[name])
        self.updates = updates


def recompute_batch_norms(module: nn.Module, image_batches: Iterable[Tensor]) -> None:
    """Set the statistics of all batch norms to averages over ``image_batches`` with the weights of now.

    ``image_batches`` are inputs of ``module``, of equal sizes, ``N x C x H x W``. The training flags and momenta are
    put back. A module without batch norms is left alone, and no batch is read.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    if not norms:
        return
    was_training = {child: child.training for child in module.modules()}
    momenta = [norm.momentum for norm in norms]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's way to say: the plain mean of all batches
        norm.train()
    try:
        with torch.no_grad():
            for images in image_batches:
                module(images)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for child, training in was_training.items():
            child.training = training
