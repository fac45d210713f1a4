"""What recipes say of optimisers, precision, layout, compilation, dropout, accumulation and mixing, and devices by name."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnstretch.errors import DeviceError, UsageError
from nnstretch.training.data.split import Dataset
from nnstretch.training.distillation.objectives import TargetObjective
from nnstretch.training.loop.events import TrainingEvent
from nnstretch.training.loop.optimisers import make_optimiser
from nnstretch.training.loop.torch_settings import amp_dtype, find_device
from nnstretch.training.loop.trainer import train
from nnstretch.training.recipe import Recipe
from tests.kits.networks.small_training import digit_network, few_digits

RECIPE = Recipe(epochs=1, batch_size=16, lr=0.05, amp_dtype="float32", threads=1, workers=0, evaluate_every=0)


@pytest.fixture(scope="module")
def few() -> Dataset:
    return few_digits(96, 20)


def weights_of(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_gradients_of_accumulated_batches_are_those_of_one(few: Dataset) -> None:
    """Without batch norms and dropout, a step of three batches is the step of one three times as large."""

    def plain() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 10))

    one, three = plain(), plain()
    events: list[TrainingEvent] = []
    whole = train(one, few, replace(RECIPE, batch_size=48))
    parts = train(three, few, replace(RECIPE, grad_accum_steps=3), progress=events.append)
    torch.testing.assert_close(weights_of(three), weights_of(one), atol=1e-6, rtol=1e-5)
    assert [event.step for event in events] == [1, 2, 2]
    assert parts.history[0].loss == pytest.approx(whole.history[0].loss, rel=1e-5)
    assert parts.history[0].train_top1 == whole.history[0].train_top1


@pytest.mark.parametrize("opt", ["adamw", "lamb", "rmsproptf", "nadam", "lookahead_sgd"])
def test_optimisers_of_timm_learn(few: Dataset, opt: str) -> None:
    result = train(digit_network(), few, replace(RECIPE, epochs=4, opt=opt, lr=0.01))
    assert result.history[-1].loss < result.history[0].loss


def test_an_unknown_optimiser_is_named(few: Dataset) -> None:
    with pytest.raises(UsageError, match="opt is 'sdg', which timm does not make") as caught:
        train(digit_network(), few, replace(RECIPE, opt="sdg"))
    assert "\n" not in str(caught.value)


def test_weights_of_the_objective_are_trained_and_vectors_do_not_decay() -> None:
    class Projecting(TargetObjective):
        def parameters(self) -> list[nn.Parameter]:
            return [projection]

    projection = nn.Parameter(torch.ones(3, 3))
    found = make_optimiser(digit_network(), Projecting(), replace(RECIPE, weight_decay=0.1))
    decays = {group["weight_decay"] for group in found.param_groups for p in group["params"] if p is projection}
    assert decays == {0.1}
    assert all(p.ndim == 1 for group in found.param_groups if group["weight_decay"] == 0 for p in group["params"])


@pytest.mark.parametrize(
    "changes", [{"mixup": 0.4}, {"cutmix": 1.0}, {"smoothing": 0.1}, {"mixup": 0.4, "mixup_off_epoch": 1}]
)
def test_mixed_and_smoothed_targets_learn(few: Dataset, changes: dict[str, Any]) -> None:
    result = train(digit_network(), few, replace(RECIPE, epochs=6, **changes))
    assert result.history[-1].loss < result.history[0].loss


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_learns_and_keeps_float32_weights(few: Dataset, dtype: str) -> None:
    module = digit_network()
    seen = set()
    module[6].register_forward_hook(lambda _, __, output: seen.add(output.dtype))
    result = train(module, few, replace(RECIPE, epochs=4, amp_dtype=dtype, clip_grad=1.0))
    assert getattr(torch, dtype) in seen
    assert result.history[-1].loss < result.history[0].loss
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())


def test_the_layout_changes_nothing_but_rounding(few: Dataset) -> None:
    one, other = digit_network(), digit_network()
    layouts = []
    other[0].register_forward_pre_hook(lambda _, inputs: layouts.append(inputs[0].stride()))
    train(one, few, RECIPE)
    train(other, few, replace(RECIPE, channels_last=False))
    torch.testing.assert_close(weights_of(one), weights_of(other), atol=1e-4, rtol=1e-3)
    assert all(value.is_contiguous() for value in one.state_dict().values())


def test_a_compiled_network_learns_the_same_and_is_left_as_it_was(few: Dataset) -> None:
    one, other = digit_network(), digit_network()
    train(one, few, RECIPE)
    train(other, few, replace(RECIPE, torchcompile="aot_eager"))
    torch.testing.assert_close(weights_of(one), weights_of(other), atol=1e-4, rtol=1e-3)
    assert other._compiled_call_impl is None
    assert list(one.state_dict()) == list(other.state_dict())
    with pytest.raises(UsageError, match="torchcompile is 'warp'; torch has the backends"):
        train(other, few, replace(RECIPE, torchcompile="warp"))


def test_dropout_has_the_rate_of_the_recipe_and_gets_its_own_back(few: Dataset) -> None:
    module = digit_network()
    rates = set()
    module[5].register_forward_pre_hook(lambda layer, _: rates.add(layer.p))
    train(module, few, replace(RECIPE, drop=0.4))
    assert rates == {0.4}
    assert module[5].p == 0.1


def test_devices_are_found_by_name() -> None:
    assert find_device("cpu").type == "cpu"
    assert find_device(None).type in ("cpu", "cuda")
    with pytest.raises(UsageError, match="'gpu' is no device; write cpu, cuda:0 or mps"):
        find_device("gpu")
    with pytest.raises(DeviceError, match="there is no device cuda:99"):
        find_device("cuda:99")
    assert amp_dtype(Recipe(amp_dtype="auto"), torch.device("mps")) == torch.float32
    assert amp_dtype(Recipe(amp_dtype="float16"), torch.device("cpu")) == torch.float16


@pytest.mark.parametrize(
    ("dtype", "target", "expected"),
    [
        ("bfloat16", 0.0, [True, False]),
        ("bfloat16", 0.01, [True, False]),
        ("float32", 0.0, [False, False]),
        ("float32", 0.01, [False]),
    ],
)
def test_the_result_is_evaluated_in_float32(few: Dataset, dtype: str, target: float, expected: list[bool]) -> None:
    """Evaluations between epochs have the recipe's precision; one that ends the training in float32 is not repeated."""
    found: list[bool] = []

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = digit_network()

        def forward(self, images: Tensor) -> Tensor:
            if not self.training:
                found.append(torch.is_autocast_enabled("cpu"))
            result: Tensor = self.layers(images)
            return result

    recipe = replace(RECIPE, epochs=2, amp_dtype=dtype, evaluate_every=1, target_accuracy=target, checkpoint="last")
    result = train(Network(), few, recipe)
    batches = math.ceil(len(few.validation) / recipe.batch_size)
    assert found == [each for each in expected for _ in range(batches)]
    assert result.history[-1].validation_score == result.validation_score
