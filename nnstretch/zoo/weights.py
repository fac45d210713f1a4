"""Weights for untrained networks.

With naive random weights the activations of a deep network vanish or no longer depend on the input, so any two
implementations of it agree. The weights made here keep the activations of every layer alive.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from nnstretch.zoo.blocks import Residual

_CALIBRATION_BATCH = 4
_RESIDUAL_STRENGTH = 0.4
# Minimum variance, relative to the channel's squared mean plus the layer's mean variance. At low resolutions noise images
# look alike, and division by a tiny variance would amplify rounding errors.
_LEAST_VARIANCE = 0.1


def _fill_fresh(layer: nn.Module, generator: torch.Generator | None) -> None:
    """Kaiming weights (fan-in, ReLU), zero biases and identity batch norms, as at the start of a training."""
    if isinstance(layer, (nn.Conv2d, nn.Linear)):
        fan_in = layer.weight[0].numel()
        nn.init.normal_(layer.weight, std=math.sqrt(2.0 / fan_in), generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    elif isinstance(layer, nn.BatchNorm2d):
        layer.reset_parameters()


def _fill_biases(layer: nn.Module, generator: torch.Generator) -> None:
    """Scales and shifts as after a training: near one and zero, but not equal to them."""
    if isinstance(layer, (nn.Conv2d, nn.Linear)) and layer.bias is not None:
        nn.init.normal_(layer.bias, std=0.1, generator=generator)
    elif isinstance(layer, nn.BatchNorm2d):
        nn.init.uniform_(layer.weight, 0.8, 1.2, generator=generator)
        nn.init.normal_(layer.bias, std=0.1, generator=generator)


def _damp_residuals(network: nn.Module) -> None:
    """Reduces the contribution of residual bodies, as training does.

    With bodies of full strength a deep random network is chaotic: it amplifies rounding errors a hundredfold,
    and no tolerance can tell them from mistakes.
    """
    for block in network.modules():
        if isinstance(block, Residual):
            closing = [layer for layer in block.body.modules() if isinstance(layer, nn.BatchNorm2d)][-1]
            with torch.no_grad():
                closing.weight.mul_(_RESIDUAL_STRENGTH)


def _calibrate(network: nn.Module, in_channels: int, size: int, generator: torch.Generator) -> None:
    """Sets the statistics of every batch norm to those of its input on a few images of noise.

    Computed in float64, so that the rounded statistics do not depend on the number of threads or the machine.
    """
    norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    if not norms:
        return
    images = torch.randn((_CALIBRATION_BATCH, in_channels, size, size), generator=generator, dtype=torch.float64)
    momenta = [norm.momentum for norm in norms]
    network.double().eval()
    for norm in norms:
        norm.momentum = 1.0  # the statistics become those of this batch
        norm.train()
    with torch.no_grad():
        network(images)
    network.float().eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        assert norm.running_mean is not None
        assert norm.running_var is not None
        least = _LEAST_VARIANCE * (norm.running_mean.square() + norm.running_var.mean())
        norm.running_var.copy_(torch.maximum(norm.running_var, least))
        norm.num_batches_tracked.zero_()  # type: ignore[union-attr]


def initialise(network: nn.Module, in_channels: int, seed: int | None, *, calibration_size: int = 64) -> None:
    """Fills all weights of ``network`` in place, on the CPU, in float32.

    Args:
        network: the network.
        in_channels: channels of its images.
        seed: with a seed, weights behave like trained ones: Kaiming weights, mildly random scales, shifts and
            biases, and batch-norm statistics measured on noise; equal seeds give equal weights, and torch's
            global generator is not used. None: weights for the start of a training, drawn from torch's global
            generator.
        calibration_size: side in pixels of the noise images.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    for layer in network.modules():
        _fill_fresh(layer, generator)
    if generator is not None:
        for layer in network.modules():
            _fill_biases(layer, generator)
        _damp_residuals(network)
        _calibrate(network, in_channels, calibration_size, generator)
