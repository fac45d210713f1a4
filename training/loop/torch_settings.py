"""Settings of torch during a training: device, threads, layout of weights, precision of matrix products, dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from nnstretch.errors import DeviceError, UsageError
from nnstretch.training.recipe import Recipe

# Processor features with which products in bfloat16 are faster than in float32.
_BFLOAT16_FEATURES = ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16")


def find_device(name: str | None) -> torch.device:
    """The device called `name`, such as cuda:1, mps or cpu; without a name, CUDA's first one if there is one, else the CPU.

    Raises:
        UsageError: no device has such a name.
        DeviceError: there is none.
    """
    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        if name.partition(":")[0] not in ("cpu", "cuda", "mps", "xpu"):
            raise UsageError(f"{name!r} is no device; write cpu, cuda:0 or mps") from error
        raise DeviceError(f"there is no device {name}; {torch.cuda.device_count()} CUDA devices work here") from error
    return device


def amp_dtype(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The type of matrix products of a training with `recipe` on `device`."""
    if recipe.amp_dtype != "auto":
        chosen: torch.dtype = getattr(torch, recipe.amp_dtype)
        return chosen
    if device.type == "cuda":
        fast = bool(torch.cuda.is_bf16_supported(including_emulation=False))
    elif device.type == "cpu":
        features = torch.cpu.get_capabilities()
        fast = any(features.get(feature, False) for feature in _BFLOAT16_FEATURES)
    else:
        fast = False
    return torch.bfloat16 if fast else torch.float32


def autocast(recipe: Recipe, device: torch.device) -> torch.autocast:
    """A context in which matrix products have the recipe's precision."""
    dtype = amp_dtype(recipe, device)
    enabled = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else torch.bfloat16, enabled=enabled)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Lets torch use `count` CPU threads in a block; None leaves its setting to others, who may change it in the block."""
    if count is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def channels_last(module: nn.Module, *, wanted: bool = True) -> Iterator[None]:
    """Holds the weights of `module` in the layout in which convolutions train fastest."""
    if wanted:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        yield
    finally:
        if wanted:
            module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@contextmanager
def dropout(module: nn.Module, rate: float | None) -> Iterator[None]:
    """Gives all dropout layers of `module` this rate; None leaves theirs."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)]
    before = [layer.p for layer in layers]
    for layer in layers:
        layer.p = layer.p if rate is None else rate
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.p = own


@contextmanager
def compiled(module: nn.Module, backend: str | None) -> Iterator[None]:
    """Lets torch.compile compile `module` in place, under the same names of weights; None does not.

    Raises:
        UsageError: torch has no such backend.
    """
    if backend is None:
        yield
        return
    if backend not in (known := torch.compiler.list_backends(exclude_tags=())):
        raise UsageError(f"torchcompile is {backend!r}; torch has the backends {', '.join(known)}")
    module.compile(backend=backend)
    try:
        yield
    finally:
        module._compiled_call_impl = None


@contextmanager
def tuned_convolutions(device: torch.device) -> Iterator[None]:
    """Lets cuDNN measure which algorithm is fastest for each size of images."""
    if device.type != "cuda":
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
        yield
