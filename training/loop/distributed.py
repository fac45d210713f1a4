"""Trainings of several processes, which torchrun starts: ranks, sums over them, batch norms over the global batch."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from traceback import clear_frames
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from nnstretch.errors import DeviceError, UsageError
from nnstretch.training.data.preprocessing import Images
from nnstretch.training.data.split import Indices, Split, TensorImages
from nnstretch.training.loop.stopping import ends_after_its_message
from nnstretch.training.loop.torch_settings import find_device
from nnstretch.training.tasks.base import Targets

T = TypeVar("T")

_NUMBERED = ("cuda", "xpu")
"""A machine may have several devices of these kinds."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a training.

    Attributes:
        rank: number of this process, from 0; the first one writes files and reports.
        count: number of processes.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> Ranks:
        """Those of the process group of torch; one process without a group."""
        if distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the tensors of all processes, in place."""
        if self.count > 1:
            distributed.all_reduce(tensor)
        return tensor

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether any process has set it."""
        if self.count == 1:
            return list(flags)
        tensor = torch.tensor(flags, dtype=torch.int32)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return [bool(flag) for flag in tensor.tolist()]

    def gathered(self, value: T) -> list[T]:
        """The values of all processes, in their order."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        distributed.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Waits until all processes are here."""
        if self.count > 1:
            distributed.barrier()


@dataclass(frozen=True)
class SplitShare(TensorImages):
    """Every `step`-th image of a split, from the image `first` on."""

    split: Split
    first: int
    step: int

    @property
    def labels(self) -> Indices:
        return self.split.labels[self.first :: self.step]

    def __len__(self) -> int:
        return len(range(self.first, len(self.split), self.step))

    def arrays(self, indices: Indices) -> Images:
        return self.split.arrays(self.first + self.step * indices)

    def targets(self, indices: Indices) -> Targets:
        return self.split.targets(self.first + self.step * indices)


def share_of(split: Split, ranks: Ranks) -> Split:
    """The images of a split that this process evaluates."""
    return split if ranks.count == 1 else SplitShare(split, ranks.rank, ranks.count)


@contextmanager
def joined_processes(device: str | None) -> Iterator[torch.device]:
    """Joins the processes that torchrun has started; yields the device of this one. Alone, it is that of `device`.

    Each process of a machine has a device of its own: `cuda` is `cuda:LOCAL_RANK`, and so with other accelerators.

    Raises:
        UsageError: there is no such device, or several processes of a machine were given the same accelerator.
        DeviceError: it does not work.
    """
    if "WORLD_SIZE" not in os.environ or "RANK" not in os.environ:
        yield find_device(device)
        return
    own = find_device(_own_device(device))
    if own.type == "cuda":
        torch.cuda.set_device(own)
    # Numbers of the CPU travel by gloo in any case: whether to stop, and when to save.
    distributed.init_process_group("cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo")
    with ends_after_its_message():
        try:
            yield own
        finally:
            end_group()


def _own_device(device: str | None) -> str | None:
    """The device of this process among those that torchrun has started.

    Raises:
        UsageError: several processes of this machine were given the same accelerator.
    """
    local, processes = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device is None:
        return f"cuda:{local}" if torch.cuda.is_available() else None
    kind, _, index = device.partition(":")
    if kind not in _NUMBERED:
        return device
    if index and processes > 1:
        raise UsageError(
            f"--device {device} would give one {kind} device to all {processes} processes of this machine; write --device "
            f"{kind}, which gives each its own"
        )
    return device if index else f"{kind}:{local}"


def end_group() -> None:
    """Ends the group of processes, and the threads of its backend.

    Who drops the last reference to the group waits for gloo's threads. They may need Python's global lock to end, and only
    a variable is dropped without that lock: a DistributedDataParallel that goes last waits forever. So the objects of a
    training go first: those that refer to each other, and those in frames of an error that is on its way.
    """
    group = distributed.group.WORLD
    error = sys.exc_info()[1]
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__context__
    gc.collect()
    distributed.destroy_process_group()
    del group


@contextmanager
def lost_processes_named(advice: str) -> Iterator[None]:
    """Names the loss of another process in one line.

    Raises:
        DeviceError: a collective operation failed, because a process has ended.
    """
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        if not isinstance(error, distributed.DistError) and not any(
            word in text for word in ("gloo", "NCCL", "Connection closed", "Connection reset")
        ):
            raise
        rank = Ranks.current()
        raise DeviceError(
            f"another process of this training has ended (seen by process {rank.rank} of {rank.count}); {advice}"
        ) from error


def synchronised_batch_norms(ranks: Ranks, *, wanted: bool = True) -> Any:
    """A context in which batch norms in training take their statistics over the batches of all processes, if that is wanted."""
    return _SynchronisedBatchNorms(ranks) if wanted and ranks.count > 1 else nullcontext()


class _SynchronisedBatchNorms(TorchFunctionMode):
    """Replaces the function that all kinds of batch norm call: torch's own synchronised layer works on GPUs only."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is functional.batch_norm and (kwargs.get("training") or (len(args) > 5 and args[5])):
            return _batch_norm(self._ranks, *args, **kwargs)
        return function(*args, **kwargs)


def _batch_norm(
    ranks: Ranks,
    features: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`functional.batch_norm` in training, with mean and variance over the batches of all processes."""
    axes = [0, *range(2, features.ndim)]
    per_channel = [1, -1] + [1] * (features.ndim - 2)
    values = features.float()
    count = values.numel() // values.shape[1] * ranks.count
    mean = _summed(values.sum(axes)) / count
    centred = values - mean.view(per_channel)
    variance = _summed(centred.square().sum(axes)) / count
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_((variance * (count / (count - 1))).to(running_var.dtype), momentum)
    normal = centred * (variance + eps).rsqrt().view(per_channel)
    if weight is not None:
        normal = normal * weight.view(per_channel)
    if bias is not None:
        normal = normal + bias.view(per_channel)
    return normal.to(features.dtype)


def _summed(tensor: Tensor) -> Tensor:
    found: Tensor = _Sum.apply(tensor)  # type: ignore[no-untyped-call]
    return found


class _Sum(torch.autograd.Function):
    """The sum over all processes, and of gradients on the way back."""

    @staticmethod
    def forward(_: Any, tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        distributed.all_reduce(tensor)
        return tensor

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone()
        distributed.all_reduce(gradient)
        return gradient


def share_statistics(module: nn.Module) -> None:
    """Gives the batch norms of all processes the statistics of the first one."""
    statistics = [
        buffer
        for layer in module.modules()
        if isinstance(layer, _BatchNorm)
        for buffer in (layer.running_mean, layer.running_var)
        if buffer is not None
    ]
    if statistics:
        together = torch.cat([buffer.flatten() for buffer in statistics])
        distributed.broadcast(together, src=0)
        first = 0
        for buffer in statistics:
            buffer.copy_(together[first : first + buffer.numel()].view_as(buffer))
            first += buffer.numel()


def parallel(module: nn.Module, ranks: Ranks, device: torch.device) -> nn.Module:
    """The module whose gradients are averaged over all processes; itself if there is only one."""
    if ranks.count == 1:
        return module
    return nn.parallel.DistributedDataParallel(
        module, device_ids=[device.index] if device.type == "cuda" else None, forward_sync_buffers=False
    )
