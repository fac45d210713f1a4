"""Averages over a training: weights (EMA) and batch-norm statistics (precise BN)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nnstretch.frontends.modes import evaluating
from nnstretch.training.loop.distributed import Ranks
from nnstretch.training.loop.sharding import assign, local, whole


class WeightAverage:
    """Exponential moving average of a module's weights.

    In the first steps the decay is lower, `(1 + n) / (10 + n)` after `n` updates, so that the random first weights are soon
    forgotten. Batch-norm statistics are averaged alike; integer buffers are copied.

    Attributes:
        state: name -> average, in the order of `module.state_dict()`.
        updates: number of updates so far.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        """Begins with the weights of now; `module` keeps its tensors and changes them in place."""
        self.decay = decay
        self.updates = 0
        weights = {name: value.detach() for name, value in module.state_dict().items()}
        self.state: dict[str, Tensor] = {name: value.clone() for name, value in weights.items()}
        # Of weights in shards each process averages its own.
        # Looked up once: a state_dict per step costs as much as the update.
        floating = [name for name, value in weights.items() if value.is_floating_point()]
        self._averages = [local(self.state[name]) for name in floating]
        self._values = [local(weights[name]) for name in floating]
        self._copied = [(self.state[name], weights[name]) for name in weights if name not in set(floating)]

    def update(self) -> None:
        """Adds the module's current weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(self._averages, self._values, 1 - decay)
        for copy, value in self._copied:
            copy.copy_(value)

    def restore(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Continues from a saved `state` (same names and shapes)."""
        for name, value in self.state.items():
            assign(value, state[name])
        self.updates = updates

    def whole_state(self) -> dict[str, Tensor]:
        """The averages as whole tensors. Where they are in shards, all processes have to call it together."""
        return {name: whole(value) for name, value in self.state.items()}


def recompute_batch_norms(module: nn.Module, image_batches: Iterable[Tensor], ranks: Ranks | None = None) -> None:
    """Sets the statistics of all batch norms to averages over `image_batches` with the weights of now.

    The training flags and momenta are put back. A module without batch norms is left alone, and no batch is read.

    Args:
        module: the network.
        image_batches: inputs of `module`, of equal sizes, `N x C x H x W`.
        ranks: processes that each have a part of the batches; all get the average over all batches.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    with evaluating(module), torch.no_grad():
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # torch's way to say: the plain mean of all batches
            norm.train()
        try:
            for images in image_batches:
                module(images)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
        if ranks is not None and ranks.count > 1:
            for norm in norms:
                _average_over(norm, ranks)


def _average_over(norm: _BatchNorm, ranks: Ranks) -> None:
    """Averages the statistics of one batch norm over all processes, each with the weight of its batches."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    mine = norm.num_batches_tracked.to(norm.running_mean.dtype)
    both = torch.stack((norm.running_mean * mine, norm.running_var * mine, mine.expand_as(norm.running_mean)))
    mean, variance, batches = ranks.sum(both)
    norm.running_mean.copy_(mean / batches)
    norm.running_var.copy_(variance / batches)
    norm.num_batches_tracked.copy_(batches.flatten()[0].round())
