"""Convolutions in trainings on a CPU: matrix products where there are few pixels, and gradients without busy waiting.

The last stages of a network have many channels and few pixels. oneDNN, which torch calls for convolutions on CPUs, divides
the gradient of weights by pixels, and there are hardly any: a 3x3 convolution of 512 channels and 16 images of
4x4 pixels takes 32 ms in bfloat16 on a core with AMX, and 2 ms as a product of two matrices.

With several threads oneDNN adds parts of that gradient up, and its threads wait for each other in busy loops. Beside other
programs a thread may wait for a whole time slice, longer than a small gradient takes. On two threads, small ones are
therefore computed by one.

Gradients of the weights of dilated convolutions are computed in float32 where oneDNN leaves some in bfloat16 unwritten: of
channels that fill no block of 16 (oneDNN 3, as of torch 2.13).

A batch's patches are the rows of a matrix, `N*OH*OW x KH*KW*C` (im2col); weights in channels-last memory are a matrix already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from nnstretch.training.loop.torch_settings import threads

# Rows per output channel up to which products are faster: all three of them, and the weights' gradient in bfloat16.
_ROWS = 1
_GRADIENT_ROWS_BFLOAT16 = 4
# A gradient of fewer multiply-adds in bfloat16 is computed by one thread of two; it takes milliseconds.
_SHORT_MACS = 2e9
# Channels that oneDNN's bfloat16 kernels compute at a time.
_WHOLE_BLOCK = 16


@contextmanager
def cpu_convolutions(module: nn.Module, *, wanted: bool = True) -> Iterator[None]:
    """Lets the convolutions of `module` be computed as is fastest in trainings on a CPU.

    Other paddings than zeros and layers with a `forward` of their own are left alone, and all layers of a network that is not
    on a CPU. Grouped convolutions are torch's, but for gradients that it computes wrong.

    Args:
        module: the network.
        wanted: whether to do it.
    """
    layers = [layer for layer in module.modules() if wanted and _is_plain(layer)]
    for layer in layers:
        vars(layer)["forward"] = MethodType(_forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def _is_plain(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.Conv2d)
        and type(layer).forward is nn.Conv2d.forward
        and type(layer)._conv_forward is nn.Conv2d._conv_forward
        and "forward" not in vars(layer)
        and layer.padding_mode == "zeros"
        and _padding_of(layer) is not None
        and layer.weight.device.type == "cpu"
    )


def _padding_of(layer: nn.Conv2d) -> tuple[int, int] | None:
    """Zeros on both sides, in rows and columns; None if "same" stands for unequal numbers of them."""
    if not isinstance(layer.padding, str):
        return _pair(layer.padding)
    if layer.padding == "valid":
        return 0, 0
    both = [dilation * (size - 1) for dilation, size in zip(layer.dilation, layer.kernel_size, strict=True)]
    return None if any(count % 2 for count in both) else (both[0] // 2, both[1] // 2)


def _forward(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """What the layer computes."""
    weight, bias = layer.weight, layer.bias
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        images, weight = images.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    way = _way_of(layer, images) if images.ndim == 4 and images.dtype == weight.dtype else None
    if way is None:
        found: Tensor = layer._conv_forward(images, weight, bias)
        return found
    found = _Convolution.apply(images, weight, way)  # type: ignore[no-untyped-call]
    return found if bias is None else found + bias.view(1, -1, 1, 1)


@dataclass(frozen=True)
class _Way:
    """How a convolution and its gradients are computed.

    Attributes:
        stride, padding, dilation: of the convolution, in pixels.
        groups: of channels.
        size: height and width of its output.
        products: whether the output and the gradient of the images are matrix products.
        gradient_product: whether the gradient of the weights is one.
        gradient_threads: number of threads for that gradient; None: torch's.
        float_gradient: whether that gradient is computed in float32.
    """

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    size: tuple[int, int]
    products: bool
    gradient_product: bool
    gradient_threads: int | None
    float_gradient: bool

    def gradients(self, gradient: Tensor, images: Tensor, weight: Tensor, wanted: tuple[bool, bool]) -> list[Any]:
        """Gradients of images and weights by torch's convolution; None for those that are not wanted."""
        geometry = self.stride, self.padding, self.dilation, False, (0, 0), self.groups
        found = torch.ops.aten.convolution_backward(gradient, images, weight, None, *geometry, (*wanted, False))
        return list(found[:2])

    def weight_gradient(self, gradient: Tensor, images: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the weights by torch's convolution."""
        dtype = torch.float32 if self.float_gradient else weight.dtype
        _, found = self.gradients(gradient.to(dtype), images.to(dtype), weight.to(dtype), (False, True))
        return cast("Tensor", found).to(weight.dtype)


def _way_of(layer: nn.Conv2d, images: Tensor) -> _Way | None:
    """How a layer is computed; None if torch's way is the fastest."""
    stride, dilation, kernel = map(_pair, (layer.stride, layer.dilation, layer.kernel_size))
    padding = _padding_of(layer)
    assert padding is not None
    height, width = (
        (images.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)
    )
    rows, is_bfloat16 = images.shape[0] * height * width, images.dtype == torch.bfloat16
    if rows <= 0 or images.shape[1] != layer.in_channels:
        return None
    is_wrong = is_bfloat16 and dilation != (1, 1) and layer.in_channels // layer.groups % _WHOLE_BLOCK != 0
    is_one = layer.groups == 1
    gradient_product = is_one and rows <= (_GRADIENT_ROWS_BFLOAT16 if is_bfloat16 else _ROWS) * layer.out_channels
    is_short = is_bfloat16 and rows * layer.weight.numel() <= _SHORT_MACS and torch.get_num_threads() == 2
    if not gradient_product and not is_wrong and not (is_one and is_short):
        return None
    products = is_one and rows <= _ROWS * layer.out_channels
    gradient_threads = 1 if is_short else None
    return _Way(
        stride, padding, dilation, layer.groups, (height, width), products, gradient_product, gradient_threads, is_wrong
    )


def _pair(values: Any) -> tuple[int, int]:
    first, second = values
    return int(first), int(second)


class _Convolution(torch.autograd.Function):
    """A convolution that is computed in a way of its own."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, way: _Way) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.way = way
        if not way.products:
            return functional.conv2d(images, weight, None, way.stride, way.padding, way.dilation, way.groups)
        found = _rows_of_patches(images, weight, way) @ _matrix(weight).t()
        return found.view(images.shape[0], *way.size, weight.shape[0]).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        images, weight = ctx.saved_tensors
        way: _Way = ctx.way
        of_images, of_weight = None, None
        rows = gradient.permute(0, 2, 3, 1).reshape(-1, weight.shape[0])
        if ctx.needs_input_grad[0] and way.products:
            patches = (rows @ _matrix(weight)).view(_patches(images, weight, way).shape)
            of_images = _summed(patches, images, way)
        elif ctx.needs_input_grad[0]:
            of_images, _ = way.gradients(gradient, images, weight, (True, False))
        if ctx.needs_input_grad[1] and way.gradient_product:
            found = rows.t() @ _rows_of_patches(images, weight, way)
            of_weight = found.view(weight.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
        elif ctx.needs_input_grad[1]:
            with threads(way.gradient_threads):
                of_weight = way.weight_gradient(gradient, images, weight)
        return of_images, of_weight, None


def _matrix(weight: Tensor) -> Tensor:
    """Weights `O,I,KH,KW` as `O x KH*KW*I`."""
    return weight.permute(0, 2, 3, 1).reshape(weight.shape[0], -1)


def _rows_of_patches(images: Tensor, weight: Tensor, way: _Way) -> Tensor:
    return _patches(images, weight, way).reshape(-1, weight[0].numel())


def _patches(images: Tensor, weight: Tensor, way: _Way) -> Tensor:
    """What the kernel reads for every pixel of the output: a view `N,OH,OW,KH,KW,C` of the padded images."""
    (up, left), (count, channels) = way.padding, images.shape[:2]
    padded = functional.pad(images.permute(0, 2, 3, 1), (0, 0, left, left, up, up))
    image, row, column, channel = padded.stride()
    (down, right), (tall, wide) = way.stride, way.dilation
    return padded.as_strided(
        (count, *way.size, *weight.shape[2:], channels),
        (image, row * down, column * right, row * tall, column * wide, channel),
    )


def _summed(patches: Tensor, images: Tensor, way: _Way) -> Tensor:
    """The sum of patches at their places, as gradients of `images` (col2im)."""
    count, height, width, rows, columns, channels = patches.shape
    (up, left), (tall, wide) = way.padding, images.shape[2:]
    found = patches.new_zeros(count, tall + 2 * up, wide + 2 * left, channels, dtype=torch.float32)
    for i in range(rows):
        for j in range(columns):
            down, right = i * way.dilation[0], j * way.dilation[1]
            part = found[
                :,
                down : down + way.stride[0] * (height - 1) + 1 : way.stride[0],
                right : right + way.stride[1] * (width - 1) + 1 : way.stride[1],
            ]
            part += patches[:, :, :, i, j]
    return found[:, up : up + tall, left : left + wide].permute(0, 3, 1, 2).to(patches.dtype)
