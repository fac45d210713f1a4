"""Exact counts of multiply-accumulates (MACs) and parameters.

MACs are those of convolutions, transposed convolutions and dense layers, without their biases: the convention
of the papers, in which ResNet-50 has 4.09 G at 224 x 224.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from nnstretch.frontends.modes import run_once

_COUNTED = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


def call_macs(layer: nn.Module, read: int, written: int) -> int:
    """MACs of one call of ``layer`` that reads and writes this many elements; 0 if the layer is not counted."""
    if isinstance(layer, nn.Linear):
        return written * layer.in_features
    if isinstance(layer, nn.Conv2d):
        return written * math.prod(layer.kernel_size) * (layer.in_channels // layer.groups)
    if isinstance(layer, nn.ConvTranspose2d):
        # Every input value is multiplied with the whole kernel, even where padding then crops the output.
        return read * math.prod(layer.kernel_size) * (layer.out_channels // layer.groups)
    return 0


def layer_macs(module: nn.Module, example_input: Tensor) -> dict[str, int]:
    """MACs of each convolution and dense layer of ``module`` for one sample.

    Args:
        module: runs once on the first sample, in evaluation mode and without gradients; its training flags
            are kept.
        example_input: a batch ``N x ...`` that it accepts.

    Returns:
        MACs by the names in ``module.named_modules()``, in that order. A layer that runs twice counts twice,
        one that does not run counts 0. Calls of ``torch.nn.functional`` are not counted.

    Raises:
        ModelError: it does not run on the example input.
    """
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, _COUNTED)]
    macs = dict.fromkeys((name for name, _ in layers), 0)

    def count(name: str, layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        macs[name] += call_macs(layer, args[0].numel(), output.numel())

    _run_with_hooks(module, example_input[:1], [(layer, partial(count, name)) for name, layer in layers])
    return macs


def count_macs(module: nn.Module, example_input: Tensor) -> int:
    """MACs of ``module`` for one sample: the sum of :func:`layer_macs`."""
    return sum(layer_macs(module, example_input).values())


def all_macs(module: nn.Module, example_input: Tensor) -> int:
    """MACs of ``module`` for one sample with those of products of run-time matrices, as in attention, and of functions.

    Args:
        module: runs once, in evaluation mode and without gradients; its training flags are kept.
        example_input: a batch ``N x ...`` that it accepts.

    Raises:
        ModelError: it does not run on the example input.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run_once(module, example_input)
    return int(counter.get_total_flops()) // 2 // len(example_input)


def count_parameters(module: nn.Module) -> int:
    """Learnable scalars of ``module``; shared ones count once, batch-norm statistics do not count."""
    return sum(parameter.numel() for parameter in module.parameters())


def working_set(module: nn.Module, example_input: Tensor) -> int:
    """Approximate bytes that one run of ``module`` touches between two uses of a layer's weights.

    All weights count, plus twice the largest tensor: one layer writes it and the next one reads it.

    Args:
        module: a network; its training flags are kept.
        example_input: a batch that it accepts.

    Raises:
        ModelError: it does not run on the example input.
    """
    largest = example_input.numel()

    def record(layer: nn.Module, args: tuple[Tensor, ...], output: object) -> None:
        nonlocal largest
        if isinstance(output, Tensor):
            largest = max(largest, output.numel())

    _run_with_hooks(module, example_input, [(child, record) for child in module.modules()])
    return 4 * (count_parameters(module) + 2 * largest)


def _run_with_hooks(
    module: nn.Module, example_input: Tensor, hooks: Sequence[tuple[nn.Module, Callable[..., Any]]]
) -> None:
    """Runs `module` once with forward hooks on some of its layers."""
    handles = [layer.register_forward_hook(hook) for layer, hook in hooks]
    try:
        run_once(module, example_input)
    finally:
        for handle in handles:
            handle.remove()
