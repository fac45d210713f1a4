"""Optimisers, by their names in timm."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from nnstretch.errors import ModelError, UsageError, first_line
from nnstretch.training.distillation.objectives import Objective
from nnstretch.training.libraries import library
from nnstretch.training.recipe import Recipe

# Optimisers for weights in shards -> whether torch has their fused update for these.
_FUSED_IN_SHARDS = {"SGD": False, "Adam": True, "AdamW": True}


def make_optimiser(module: nn.Module, objective: Objective, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser by timm. Its weight decay spares vectors: scales and shifts of norms, and biases."""
    optim = library("timm.optim")
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not weights:
        raise ModelError("the network has no weights that can be trained; set requires_grad on some")
    groups: list[dict[str, Any]] = optim.param_groups_weight_decay(module, recipe.weight_decay)
    if own := objective.parameters():
        groups.append({"params": own, "weight_decay": recipe.weight_decay})
    groups = [group for group in groups if group["params"]]
    try:
        kind = optim.get_optimizer_class(recipe.opt.lower().rpartition("_")[2], bind_defaults=False)
        in_shards = any(isinstance(weight, DTensor) for weight in weights)
        if in_shards and kind.__name__ not in _FUSED_IN_SHARDS:
            raise UsageError(
                f"recipe: opt {recipe.opt} cannot train shards; take sgd, momentum, adam or adamw, or leave fsdp out"
            )
        known = inspect.signature(kind).parameters
        fused = {"fused": _FUSED_IN_SHARDS.get(kind.__name__, True) if in_shards else True} if "fused" in known else {}
        found: torch.optim.Optimizer = optim.create_optimizer_v2(
            groups, opt=recipe.opt, lr=recipe.lr, weight_decay=recipe.weight_decay, momentum=recipe.momentum, **fused
        )
    except (AssertionError, TypeError, ValueError) as error:
        raise UsageError(
            f"recipe: opt is {recipe.opt!r}, which timm does not make: {first_line(error)}; "
            "take one of timm.optim.list_optimizers(), such as sgd, momentum, adamw or lamb"
        ) from error
    return found


_ROWS, _CHANNELS = (0, 2, 3, 1), (0, 3, 1, 2)
"""Dimensions of weights O,I,KH,KW in the order of channels-last memory, and the way back."""


@contextmanager
def memory_order(optimiser: torch.optim.Optimizer) -> Iterator[None]:
    """Shows weights, gradients and their averages in channels-last memory as arrays in the order of that memory.

    Fused updates on a CPU copy gradients of another order first, which takes as long as the update.
    """
    turned = [
        parameter
        for group in optimiser.param_groups
        if group.get("fused")
        for parameter in group["params"]
        if _is_turned(parameter)
    ]
    _permute(turned, optimiser, _ROWS)
    try:
        yield
    finally:
        _permute(turned, optimiser, _CHANNELS)


def _is_turned(parameter: nn.Parameter) -> bool:
    """Whether a weight on a CPU and its gradient lie in channels-last memory, and in that alone."""
    gradient = parameter.grad
    return (
        gradient is not None
        and parameter.device.type == "cpu"
        and not isinstance(parameter, DTensor)
        and parameter.ndim == 4
        and not parameter.is_contiguous()
        and parameter.is_contiguous(memory_format=torch.channels_last)
        and gradient.stride() == parameter.stride()
    )


def _permute(parameters: Sequence[nn.Parameter], optimiser: torch.optim.Optimizer, order: tuple[int, ...]) -> None:
    """Permutes the dimensions of weights, gradients and the optimiser's tensors of their shape; no memory is moved."""
    for parameter in parameters:
        gradient, state, shape = parameter.grad, optimiser.state.get(parameter, {}), parameter.shape
        parameter.grad = None  # of the shape before
        parameter.data = parameter.data.permute(order)
        parameter.grad = None if gradient is None else gradient.permute(order)
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == shape:
                state[name] = value.permute(order)
