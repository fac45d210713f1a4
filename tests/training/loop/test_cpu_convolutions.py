"""Convolutions that trainings on a CPU compute in a way of their own have the results of torch's."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from nnstretch.training.loop import cpu_convolutions as subject
from nnstretch.training.loop.cpu_convolutions import cpu_convolutions
from nnstretch.training.loop.torch_settings import threads


def layer_of(*, kernel: int | tuple[int, int] = 3, channels_last: bool = True, **settings: object) -> nn.Conv2d:
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 40, kernel, **settings)  # type: ignore[arg-type]
    return layer.to(memory_format=torch.channels_last) if channels_last else layer  # type: ignore[call-overload]


def gradients(layer: nn.Conv2d, images: Tensor, *, autocast: bool = False) -> list[Tensor]:
    """Output and gradients of images, weights and bias."""
    images = images.clone().requires_grad_()
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = layer(images)
    torch.manual_seed(1)
    (found * torch.randn(found.shape)).sum().backward()
    own = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    return [found.detach(), images.grad, *own]


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    ("kernel", "settings"),
    [
        (3, {"padding": 1}),
        (3, {"padding": 1, "stride": 2, "bias": False}),
        (1, {}),
        (1, {"stride": 2}),
        ((3, 2), {"padding": (2, 0), "stride": (1, 2)}),
        (3, {"padding": 2, "dilation": 2}),
        (5, {"padding": 2, "stride": 3}),
        ((3, 1), {"padding": "same", "dilation": (2, 1)}),
        (2, {"padding": "valid"}),
    ],
)
def test_results_and_gradients_are_those_of_convolutions(
    kernel: int | tuple[int, int], settings: dict[str, object], channels_last: bool
) -> None:
    layer, images = layer_of(kernel=kernel, channels_last=channels_last, **settings), torch.randn(2, 6, 5, 4)
    wanted = gradients(layer, images)
    with patch.object(subject._Convolution, "apply", wraps=subject._Convolution.apply) as used, cpu_convolutions(layer):
        found = gradients(layer, images)
    assert used.called
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("size", [4, 6])
def test_bfloat16_is_as_close_to_float32_as_that_of_convolutions(size: int) -> None:
    """With 4x4 pixels all three products are those of matrices, with 6x6 the gradient of the weights alone."""
    layer, images = layer_of(padding=1), torch.randn(2, 6, size, size)
    exact = gradients(layer, images)
    usual = gradients(layer, images, autocast=True)
    with cpu_convolutions(layer):
        found = gradients(layer, images, autocast=True)
    assert found[0].dtype == torch.bfloat16
    for mine, other, wanted in zip(found, usual, exact, strict=True):
        assert mine.dtype == other.dtype
        error, its = ((t.float() - wanted).norm() / wanted.norm() for t in (mine, other))
        assert error <= 1.2 * its + 1e-3


@pytest.mark.parametrize(("channels", "groups", "padding"), [(24, 1, 2), (24, 1, "same"), (48, 2, 2), (24, 24, 2)])
def test_gradients_of_dilated_convolutions_in_bfloat16_are_whole(
    channels: int, groups: int, padding: int | str
) -> None:
    """Of blocks of channels that are not full, oneDNN leaves some unwritten."""
    layer = nn.Conv2d(channels, channels, 3, padding=padding, dilation=2, groups=groups, bias=False)
    layer = layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(2, channels, 36, 36).contiguous(memory_format=torch.channels_last)
    _, _, wanted = gradients(layer, images)
    with cpu_convolutions(layer):
        _, _, found = gradients(layer, images, autocast=True)
    assert found.dtype == wanted.dtype
    assert (found - wanted).norm() < 0.02 * wanted.norm()


def test_short_gradients_are_those_of_one_thread_on_two() -> None:
    """Also where there are too many pixels for a product of matrices; the number of threads is put back."""
    layer, images, counts = layer_of(padding=1, bias=False), torch.randn(2, 6, 16, 16), []
    usual = gradients(layer, images, autocast=True)
    backward = subject._Way.gradients

    def counted(*arguments: Any) -> list[Any]:
        counts.append(torch.get_num_threads())
        return backward(*arguments)

    with threads(2), cpu_convolutions(layer), patch.object(subject._Way, "gradients", counted):
        found = gradients(layer, images, autocast=True)
        assert torch.get_num_threads() == 2
    assert counts == [2, 1]
    for mine, other in zip(found, usual, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-2, rtol=2e-2)


def test_layers_with_many_pixels_and_special_ones_stay_convolutions() -> None:
    class Own(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input)

    small, large = torch.randn(1, 6, 4, 4), torch.randn(1, 6, 32, 32)
    special = [
        layer_of(kernel=2, padding="same"),
        layer_of(padding=1, padding_mode="reflect"),
        layer_of(groups=2),
        Own(6, 40, 3),
    ]
    with patch.object(subject._Convolution, "apply", side_effect=AssertionError) as unused:
        for layer in special:
            with cpu_convolutions(layer):
                layer(small)
        usual = layer_of()
        with cpu_convolutions(usual):
            usual(large)
        with cpu_convolutions(usual, wanted=False):
            usual(small)
    assert not unused.called


def test_a_copy_has_weights_of_its_own() -> None:
    layer, images = layer_of(padding=1), torch.randn(1, 6, 4, 4)
    with cpu_convolutions(layer):
        other = copy.deepcopy(layer)
        nn.init.zeros_(other.weight)
        nn.init.zeros_(other.bias)  # type: ignore[arg-type]
        assert not other(images).any()
        assert layer(images).any()
