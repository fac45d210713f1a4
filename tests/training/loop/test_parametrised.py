"""Trainings of weights below parametrisations, such as those that round to int8: exact resume, averages, teachers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nnstretch.training.data.split import Dataset
from nnstretch.training.loop.events import TrainingEvent
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.loop.trainer import train
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import read_tensors
from tests.kits.networks.small_training import digit_network, few_digits
from tests.kits.networks.splits import UntouchableSplit

RECIPE = Recipe(
    epochs=3, batch_size=8, lr=0.05, model_ema=True, model_ema_decay=0.9, precise_bn_samples=32, amp_dtype="float32",
    kd_feature_weight=0.2, threads=1, workers=0,
)  # fmt: skip


class Int8Weights(nn.Module):
    """Rounds weights to 255 values with one scale per output channel; gradients pass unchanged."""

    def forward(self, weight: Tensor) -> Tensor:
        scales = weight.detach().abs().flatten(1).amax(dim=1).clamp(min=1e-12) / 127
        zero = torch.zeros_like(scales, dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(weight, scales, zero, 0, -127, 127)


def layers_of(network: nn.Module) -> list[nn.Module]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


def rounded(seed: int) -> nn.Sequential:
    network = digit_network(seed)
    for layer in layers_of(network):
        parametrize.register_parametrization(layer, "weight", Int8Weights())
    return network


@pytest.fixture(scope="module")
def few() -> Dataset:
    return replace(few_digits(80, 20), test=UntouchableSplit())


def test_weights_below_a_parametrisation_are_trained_and_resumed_bit_for_bit(few: Dataset, tmp_path: Path) -> None:
    whole, options = rounded(0), RunOptions(tmp_path, minutes=0)
    result = train(whole, few, RECIPE, digit_network(1))
    assert result.history[-1].loss < 0.9 * result.history[0].loss

    def end(event: TrainingEvent) -> None:
        if event.step == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(rounded(0), few, RECIPE, digit_network(1), progress=end, run=options)
    resumed = rounded(2)
    train(resumed, few, RECIPE, digit_network(1), run=replace(options, resume=True))
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())
    assert read_tensors(options.best)[0].keys() == whole.state_dict().keys()


def test_the_result_has_rounded_weights_under_plain_names(few: Dataset) -> None:
    network = rounded(0)
    train(network, few, RECIPE, digit_network(1))
    image = few.validation.images(torch.arange(4))
    before = network(image)
    for layer in layers_of(network):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    assert torch.equal(network(image), before)
    assert network.state_dict().keys() == digit_network().state_dict().keys()
    for layer in layers_of(network):
        assert isinstance(layer.weight, Tensor)
        rows = layer.weight.detach().flatten(1)
        steps = rows / (rows.abs().amax(dim=1, keepdim=True) / 127)
        torch.testing.assert_close(steps, steps.round(), atol=1e-4, rtol=0)
