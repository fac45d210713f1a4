"""Fake quantisation: tensors in float32 that hold what integers stand for, with gradients past the rounding.

The numbers are those of QuantizeLinear and DequantizeLinear, and so those of the int8 kernels: `x / s` is rounded half to even,
then the zero point is added, and the sum saturates. torch's own `fake_quantize_*` operators multiply by `1 / s`, which
rounds other numbers down or up where `x` lies between two steps.

Weights have one symmetric scale per output channel, taken from their largest magnitude at every step; gradients pass unchanged
(straight-through estimator: Jacob et al., arXiv:1712.05877, section 3). Activations have one scale and zero point per tensor.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, distributed, nn

from nnstretch.training.recipe import RANGES

LEARNED, EMA = RANGES
LARGEST = 255
"""Of the integers of an activation; the smallest is 0."""
_WEIGHT_STEPS = 127
_LARGEST_BIAS = 2**31 - 1
_EXACT = 2**24
"""Integers up to this one are exact in float32."""
_TINY = float(torch.finfo(torch.float32).tiny)
_DECAY = 0.99
"""Of the averages of extremes, per batch."""


class WeightQuantizer(nn.Module):
    """A parametrisation that rounds weights to the integers -127 to 127, with a scale per channel or one for all.

    Args:
        axis: of the channels; None: one scale.
    """

    def __init__(self, axis: int | None) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, weight: Tensor) -> Tensor:
        """Weights of any shape, rounded."""
        found: Tensor = _Multiples.apply(weight, self.scales(weight), _WEIGHT_STEPS)  # type: ignore[no-untyped-call]
        return found

    def scales(self, weight: Tensor) -> Tensor:
        """The scale of every channel, of a shape that broadcasts to the weights; 1 where all weights are 0."""
        others = [axis for axis in range(weight.ndim) if axis != self.axis]
        largest = weight.detach().abs().amax(dim=others, keepdim=True)
        scales = (largest.double() / _WEIGHT_STEPS).float()
        return torch.where(scales < _TINY, torch.ones_like(scales), scales)


class BiasQuantizer(nn.Module):
    """A parametrisation that rounds the biases of a layer to int32: multiples of the scales of its sums.

    Attributes:
        source: `[layer, quantizer]`: the layer, whose weights are rounded, and what rounds its input. In a list, so that they
            are no parts of this module.
    """

    def __init__(self, layer: nn.Module, quantizer: ActivationQuantizer) -> None:
        super().__init__()
        self.source: list[nn.Module] = [layer, quantizer]

    def forward(self, bias: Tensor) -> Tensor:
        """Biases, one per output channel, rounded."""
        layer, quantizer = self.source
        assert isinstance(quantizer, ActivationQuantizer)
        weights: Any = layer.parametrizations.weight  # type: ignore[union-attr]
        with torch.no_grad():
            scales = weights[0].scales(weights.original).reshape(-1) * quantizer.step
        found: Tensor = _Multiples.apply(bias, scales, _LARGEST_BIAS)  # type: ignore[no-untyped-call]
        return found


class ActivationQuantizer(nn.Module):
    """Rounds a tensor to the integers 0 to 255, with a scale and a zero point that a training changes.

    A *learned* range has a scale that the optimiser trains by the gradient of LSQ (Esser et al., arXiv:1902.08153, section
    2.1), and the zero point of the calibration. As scales differ by orders of magnitude, their logarithms are trained (Jain et
    al., arXiv:1903.08066, appendix B), and the gradient is divided by the sum of its parts' magnitudes, so that it lies between
    -1 and 1 for every tensor and loss. An *EMA* range is the moving average of the extremes of the batches, from which scale
    and zero point follow (Jacob et al., section 3.1).

    Attributes:
        growth: of a learned range: natural logarithm of the scale over that of the calibration.
        first_scale, zero_point: of a learned range: the scale of the calibration, and the integer that stands for 0, a float.
        low, high: of an EMA range: the averages of the extremes.
    """

    first_scale: Tensor
    zero_point: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self, low: float, high: float, ranges: str, bounds: tuple[float, float] = (-math.inf, math.inf)
    ) -> None:
        """Takes the range of the calibration.

        Args:
            low: its lower end, 0 or less.
            high: its upper end, 0 or more.
            ranges: one of `RANGES`.
            bounds: of an activation function that the rounding stands for, such as 0 and 6: the file has none in front of it.
        """
        super().__init__()
        self.is_learned, self._bounds = ranges == LEARNED, bounds
        ends = torch.tensor(low), torch.tensor(high)
        if self.is_learned:
            scale, zero_point = quantization_parameters(*ends)
            self.growth = nn.Parameter(torch.zeros(()))
            self.register_buffer("first_scale", scale)
            self.register_buffer("zero_point", zero_point)
        else:
            self.register_buffer("low", ends[0])
            self.register_buffer("high", ends[1])

    def forward(self, x: Tensor) -> Tensor:
        """A tensor `N x …` of float32, rounded."""
        if self.training and not self.is_learned:
            self._follow(x.detach())
        found: Tensor = _Rounding.apply(x, *self._parameters_of_range())  # type: ignore[no-untyped-call]
        return found

    @property
    def parameters_of_file(self) -> tuple[float, int]:
        """Scale and zero point as QuantizeLinear takes them."""
        return float(self.step), int(self._parameters_of_range()[1])

    @property
    def step(self) -> Tensor:
        """The scale, without gradient."""
        return self._parameters_of_range()[0].detach()

    def _parameters_of_range(self) -> tuple[Tensor, Tensor]:
        if self.is_learned:
            return self.first_scale * self.growth.exp(), self.zero_point
        return quantization_parameters(self.low, self.high)

    def _follow(self, x: Tensor) -> None:
        """Moves the range towards the extremes of a batch."""
        low, high = torch.aminmax(x.clamp(*self._bounds))
        ends = torch.stack((low.clamp(max=0), -high.clamp(min=0))).float()
        if distributed.is_available() and distributed.is_initialized():  # a batch has parts in all processes
            distributed.all_reduce(ends, distributed.ReduceOp.MIN)
        self.low.lerp_(ends[0], 1 - _DECAY)
        self.high.lerp_(-ends[1], 1 - _DECAY)


def quantization_parameters(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and zero point of a range from `low` <= 0 to `high` >= 0, as the quantiser computes them."""
    scale = (high.double() - low.double()) / LARGEST
    has_width = scale >= _TINY
    zero_point = torch.round(-low.double() / torch.where(has_width, scale, 1.0))
    return torch.where(has_width, scale, 1.0).float(), torch.where(has_width, zero_point, 0.0).float()


class _Multiples(torch.autograd.Function):
    """The nearest multiples of scales, up to a limit; gradients pass unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: Tensor, limit: int) -> Tensor:
        ctx.set_materialize_grads(False)
        steps = (x.double() if limit > _EXACT else x) / scales
        return steps.round_().clamp_(-limit, limit).float().mul_(scales)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (*gradients, *[None] * (len(ctx.needs_input_grad) - 1))


class _Rounding(torch.autograd.Function):
    """Gradients of `x` pass where integers do not saturate.

    That of the scale is LSQ's (equation 3) over the scale and over the sum of its parts' magnitudes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        ratio = x / scale
        steps = ratio.round().add_(zero_point)
        inside = steps.clamp(0, LARGEST)
        passes = steps == inside
        from_zero = inside.sub_(zero_point)
        if ctx.needs_input_grad[1]:
            # Inside the range, the scale moves the rounding error; outside, the end that a value is clipped to.
            ctx.save_for_backward(passes, torch.where(passes, from_zero - ratio, from_zero), scale)
        else:
            ctx.save_for_backward(passes)
        return from_zero * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        passes, *of_scale = ctx.saved_tensors
        if not of_scale:
            return gradient * passes, None, None
        moved, scale = of_scale
        parts = gradient * moved
        return gradient * passes, parts.sum() / parts.abs().sum().clamp(min=_TINY) / scale, None
