"""Trainings whose weights, gradients, optimiser state and averages are divided over the processes (FSDP2).

Each process trains its shards of a copy of the network. Results, evaluations and checkpoints have whole tensors: files depend
neither on the number of processes nor on whether a training was divided.

Method: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (arXiv:2304.11277).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from nnstretch.errors import UsageError
from nnstretch.training.loop.distributed import Ranks
from nnstretch.training.loop.torch_settings import amp_dtype
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import fill


@dataclass(frozen=True, eq=False)
class ShardedCopy:
    """A network and its copy that is trained in shards.

    Attributes:
        module: the network, with whole weights; those of the last `collect`.
        network: the copy. Its parameters are the shards of this process.
    """

    module: nn.Module
    network: nn.Module

    def collect(self) -> None:
        """Gives the network the weights of the copy. All processes have to call it together."""
        fill(self.module, {name: whole(value) for name, value in self.network.state_dict().items()}, "the shards")

    def scatter(self) -> None:
        """Gives the copy the weights of the network, which are the same in all processes."""
        values = self.module.state_dict()
        for name, shard in self.network.state_dict().items():
            assign(shard, values[name])


def sharded_copy(module: nn.Module, recipe: Recipe, ranks: Ranks, device: torch.device) -> ShardedCopy | None:
    """The copy that is trained in shards; None if the recipe does not want it, or there is one process only.

    Raises:
        UsageError: the recipe has settings that shards cannot follow.
    """
    if not recipe.fsdp or ranks.count == 1:
        return None
    if recipe.torchcompile is not None:
        raise UsageError("recipe: torchcompile and fsdp are set; leave one of them out")
    if amp_dtype(recipe, device) == torch.float16:
        raise UsageError("recipe: amp_dtype float16 needs a scaler of gradients, which fsdp has not; use bfloat16")
    # Shards are parts of contiguous weights; convolutions of images in channels-last order stay in that order.
    network = copy.deepcopy(module).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    mesh = init_device_mesh(device.type, (ranks.count,))
    # torch keeps meshes in caches. One that held its group, which it finds by name too, would keep gloo's threads running
    # when the group is destroyed, and such a thread may abort the process as it ends.
    getattr(mesh, "_pg_registry", {}).clear()
    fully_shard(network, mesh=mesh)
    return ShardedCopy(module, network)


def whole(tensor: Tensor) -> Tensor:
    """A tensor as a whole. For one in shards all processes have to call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """What of a tensor is in this process; it shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def assign(tensor: Tensor, value: Tensor) -> None:
    """Copies a whole value, the same in all processes, into a tensor, which may be in shards."""
    with torch.no_grad():
        tensor.copy_(divided_as(tensor, value))


def divided_as(tensor: Tensor, value: Tensor) -> Tensor:
    """A whole value in shards as `tensor` is; itself if that is whole."""
    if not isinstance(tensor, DTensor):
        return value
    value = value.detach().to(tensor.device, tensor.dtype).contiguous()
    return distribute_tensor(value, tensor.device_mesh, tensor.placements)
