"""Trainings through quantisation: they learn, resume bit for bit, and refuse what they cannot do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nnstretch.errors import UsageError
from nnstretch.training.data.split import Dataset
from nnstretch.training.loop.events import TrainingEvent
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.loop.trainer import train
from nnstretch.training.quantization import QuantizedNetwork, quantization_aware
from nnstretch.training.recipe import Recipe
from nnstretch.training.recipe_files import load_recipe
from tests.kits.networks.small_training import digit_network, few_digits
from tests.kits.networks.splits import UntouchableSplit

RECIPE = Recipe(
    epochs=3, batch_size=8, opt="adamw", lr=0.01, model_ema=True, model_ema_decay=0.9, kd_loss_weight=0.2, amp_dtype="float32",
    threads=1, workers=0, qat=True, qat_images=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def few() -> Dataset:
    return replace(few_digits(80, 20), test=UntouchableSplit())


def rounded(few: Dataset, recipe: Recipe, seed: int = 0) -> QuantizedNetwork:
    return quantization_aware(digit_network(seed).eval(), few, recipe)


@pytest.mark.parametrize("ranges", ["learned", "ema"])
def test_it_learns_and_is_resumed_bit_for_bit(few: Dataset, ranges: str, tmp_path: Path) -> None:
    recipe = replace(RECIPE, qat_ranges=ranges)
    whole, options = rounded(few, recipe), RunOptions(tmp_path, minutes=0)
    result = train(whole, few, recipe, digit_network(1))
    assert result.history[-1].loss < 0.9 * result.history[0].loss

    def end(event: TrainingEvent) -> None:
        if event.step == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(rounded(few, recipe), few, recipe, digit_network(1), progress=end, run=options)
    resumed = rounded(few, recipe, seed=2)
    train(resumed, few, recipe, digit_network(1), run=replace(options, resume=True))
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())


@pytest.mark.parametrize(
    "changes",
    [
        {"amp_dtype": "bfloat16"},
        {"scales": ((1, 0.5), (2, 1.0))},
        {"kd_feature_weight": 1.0},
        {"blockwise_epochs": 0.5},
        {"fsdp": True},
        {"qat_ranges": "lsq"},
        {"qat_method": "max"},
    ],
)
def test_recipes_that_do_not_fit_are_refused(changes: dict[str, object]) -> None:
    (name,) = changes
    with pytest.raises(UsageError, match=name):
        replace(RECIPE, **changes)  # type: ignore[arg-type]


def test_the_preset_trains_through_quantisation() -> None:
    assert load_recipe("qat").qat
    assert not load_recipe("finetune").qat
