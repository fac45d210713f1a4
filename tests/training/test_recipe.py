"""Recipes: learning-rate schedules, files, presets, former names, options, and errors for bad values."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.api.options import declared_options
from nnstretch.errors import FileError, UsageError
from nnstretch.training.data.preprocessing import photo_preprocessing
from nnstretch.training.recipe import Recipe
from nnstretch.training.recipe_files import PRESETS, load_recipe, recipe_from_json, save_recipe


def test_the_rate_warms_up_holds_and_follows_a_cosine() -> None:
    recipe = Recipe(epochs=10, lr=0.4, warmup_epochs=1, hold_epochs=1)
    rates = [recipe.rate(step, 8) for step in range(80)]
    assert rates[:8] == pytest.approx([0.05 * (step + 1) for step in range(8)])
    assert rates[8:17] == pytest.approx([0.4] * 9)
    assert rates[16 + 32] == pytest.approx(0.2)
    assert rates[16 + 16] == pytest.approx(0.2 * (1 + math.sqrt(0.5)))
    assert rates[-1] == pytest.approx(0.2 * (1 + math.cos(math.pi * 63 / 64)))


def test_the_rate_falls_along_a_line_or_not_at_all_to_the_lowest_rate() -> None:
    line = Recipe(epochs=10, lr=0.4, min_lr=0.2, hold_epochs=5, sched="linear")
    assert [line.rate(step, 2) for step in (0, 10, 15, 19)] == pytest.approx([0.4, 0.4, 0.3, 0.22])
    constant = dataclasses.replace(line, sched="constant", warmup_epochs=1.0)
    assert [constant.rate(step, 2) for step in (0, 1, 19)] == pytest.approx([0.2, 0.4, 0.4])
    cosine = dataclasses.replace(line, sched="cosine", hold_epochs=0.0)
    assert [cosine.rate(step, 2) for step in (0, 10)] == pytest.approx([0.4, 0.3])


@given(st.integers(1, 20), st.integers(1, 50), st.floats(0, 5), st.floats(0, 30), st.sampled_from(["cosine", "linear"]))
def test_the_rate_never_leaves_its_range_and_rises_only_at_first(
    epochs: int, steps: int, warmup: float, hold: float, sched: str
) -> None:
    recipe = Recipe(epochs=epochs, lr=0.3, warmup_epochs=warmup, hold_epochs=hold, sched=sched)
    rates = [recipe.rate(step, steps) for step in range(epochs * steps)]
    assert all(0 < rate <= 0.3 * (1 + 1e-12) for rate in rates)
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_scales_come_in_their_order() -> None:
    recipe = Recipe(epochs=4, scales=((1, 0.25), (2, 0.5), (1, 1.0)))
    assert [recipe.image_scale(epoch) for epoch in range(4)] == [0.25, 0.5, 0.5, 1.0]
    assert Recipe().image_scale(3) == 1.0


def test_a_target_or_no_progress_stops() -> None:
    target, patient = Recipe(target_accuracy=90.0), Recipe(patience=2)
    assert not target.stops_after([89.9])
    assert target.stops_after([50.0, 90.0])
    assert not patient.stops_after([])
    assert not patient.stops_after([50.0, 40.0])
    assert patient.stops_after([50.0, 40.0, 50.0])
    assert not patient.stops_after([50.0, 40.0, 60.0, 10.0])
    assert not Recipe().stops_after([100.0, 1.0, 1.0])


def test_an_early_end_is_decided_at_full_size() -> None:
    recipe = Recipe(epochs=4, scales=((1, 0.5), (3, 1.0)))
    assert [recipe.evaluates(epoch) for epoch in range(4)] == [True, True, True, False]
    recipe = dataclasses.replace(recipe, patience=1)
    assert [recipe.evaluates(epoch) for epoch in range(4)] == [False, True, True, False]


@pytest.mark.parametrize("ending", ["yaml", "json"])
@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_files(name: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"recipe.{ending}"
    save_recipe(load_recipe(name), path)
    assert load_recipe(str(path)) == load_recipe(name)
    assert load_recipe(name).name == name


@pytest.mark.parametrize(
    ("name", "model", "rate", "batch", "decay", "warmup", "sizes"),
    [
        ("resnet", "resnet34", 0.2, 256, 5e-5, 0.0, (224, 256)),
        ("resnet", "models/my.py:resnet50", 0.2, 256, 5e-5, 0.0, (224, 256)),
        ("regnet", "regnet_x_1_6gf", 0.8, 1024, 5e-5, 5.0, (224, 256)),
        ("efficientnet", "efficientnet_lite4", 0.1, 64, 1e-5, 0.0, (300, 342)),
        ("efficientnet-b5", "efficientnet_b5", 0.1, 64, 1e-5, 0.0, (456, 522)),
    ],
)
def test_presets_are_the_published_trainings(
    name: str, model: str, rate: float, batch: int, decay: float, warmup: float, sizes: tuple[int, int]
) -> None:
    recipe = load_recipe("nnstretch", model)
    assert load_recipe(name) == dataclasses.replace(recipe, name=name)
    assert (recipe.lr, recipe.batch_size, recipe.weight_decay, recipe.warmup_epochs) == (rate, batch, decay, warmup)
    assert (recipe.epochs, recipe.opt, recipe.momentum, recipe.amp_dtype) == (100, "sgd", 0.9, "float32")
    assert recipe.rate(100 * 10 - 1, 10) < 1e-3 * rate  # a cosine without a plateau
    assert recipe.hold_epochs == 0
    assert (recipe.smoothing, recipe.mixup, recipe.cutmix, recipe.reprob, recipe.aa) == (0, 0, 0, 0, None)
    assert (recipe.color_pca, recipe.hflip) == (0.1, 0.5)
    assert recipe.precise_bn_samples == 8192
    assert recipe.model_ema
    assert (recipe.image_size, photo_preprocessing(sizes[0], 3).covered[0]) == sizes
    assert recipe.crop_pct == pytest.approx(sizes[0] / sizes[1])


def test_former_names_mean_what_they_meant() -> None:
    former = {
        "batch": 16, "learning_rate": 0.5, "label_smoothing": 0.1, "ema_decay": 0.9, "distillation_weight": 0.3,
        "temperature": 2.0, "blockwise_rate": 0.01, "gradient_clip": 2.0, "precision": "bfloat16", "nesterov": False,
        "augmentation": {"shift": 0.1, "rotation": 5.0, "scale": 0.2, "mirror": True, "colour": 0.3},
    }  # fmt: skip
    assert recipe_from_json(former) == Recipe(
        batch_size=16, lr=0.5, smoothing=0.1, model_ema=True, model_ema_decay=0.9, kd_loss_weight=0.3,
        kd_temperature=2.0, blockwise_lr=0.01, clip_grad=2.0, amp_dtype="bfloat16", opt="momentum",
        shift=0.1, rotation=5.0, zoom=0.2, hflip=0.5, color_pca=0.3,
    )  # fmt: skip
    off = {"ema_decay": 0, "gradient_clip": 0, "nesterov": True, "augmentation": {"mirror": False}}
    assert recipe_from_json(off) == Recipe()


def test_missing_fields_keep_their_defaults() -> None:
    assert recipe_from_json({"epochs": 3, "augmentation": {"shift": 0.5}}).shift == 0.5
    assert recipe_from_json({}) == Recipe()


def test_fields_of_a_model_replace_the_others(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "description: mine\nlr: 1e-2\nscale: [0.5, 1]\nmodels:\n  'resnet*': {lr: 5e-3, momentum: 0.5}\n  '*50': {epochs: 7}"
    )
    assert load_recipe(str(path)) == Recipe(name="mine", lr=0.01, scale=(0.5, 1.0))
    one = load_recipe(str(path), "ResNet50")
    assert (one.lr, one.momentum, one.epochs) == (0.005, 0.5, 7)
    assert load_recipe(str(path), "vgg50").lr == 0.01


def test_every_field_is_an_option() -> None:
    declared = declared_options(Recipe)
    assert [name for name, (_, _, one) in declared.items() if not one.spelling] == ["name"]
    for name, (_, _, one) in declared.items():
        assert not one.spelling or one.flags[0].partition("/")[0] == f"--{name.replace('_', '-')}"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "object"),
        ({"epoch": 3}, "did you mean epochs"),
        ({"epochs": "3"}, 'epochs is "3"'),
        ({"epochs": True}, "epochs is true"),
        ({"epochs": 2.5}, "epochs is 2.5"),
        ({"nesterov": 1}, "nesterov is 1"),
        ({"epochs": -1}, "epochs is -1"),
        ({"learning_rate": math.nan}, "lr is nan"),
        ({"lr": "fast"}, 'lr is "fast"'),
        ({"momentum": 1.5}, "0 to 1"),
        ({"batch": 1}, "2 or more"),
        ({"momentum": 0}, "nesterov"),
        ({"precision": "int4"}, "float32"),
        ({"sched": "stairs"}, "cosine"),
        ({"target_accuracy": 101}, "target_accuracy is 101"),
        ({"patience": 2, "evaluate_every": 0}, "evaluate_every"),
        ({"scales": [[1, 0.5]]}, "add up to 1"),
        ({"scales": [[10, 2.0]]}, "pairs"),
        ({"scales": [[10]]}, r"scales has \[10\]"),
        ({"scales": 1}, "scales is 1"),
        ({"scale": 1}, "scale is 1"),
        ({"scale": [0.9, 0.1]}, "the lower bound comes first"),
        ({"ratio": [0, 1]}, "ratio is 0"),
        ({"ratio": None}, "ratio is null"),
        ({"models": 3}, "models is 3"),
        ({"models": {"*": 3}}, "models has 3"),
        ({"augmentation": {"shear": 1}}, "augmentation has no field 'shear'"),
        ({"augmentation": {"rotation": 1000}}, "rotation is 1000"),
    ],
)
def test_bad_values_are_named(values: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recipe_from_json(values)


def test_files_that_are_no_recipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quick-retrain"):
        load_recipe("qick")
    for absent in ("absent.json", "absent.yaml"):
        with pytest.raises(FileError, match=absent):
            load_recipe(str(tmp_path / absent))
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(dataclasses.asdict(Recipe()))[:-5])
    with pytest.raises(UsageError, match="no JSON"):
        load_recipe(str(path))
    path = tmp_path / "recipe.yaml"
    path.write_text("epoch: 3")
    with pytest.raises(UsageError, match=re.escape(f"{path}: recipe has no field 'epoch'; did you mean epochs?")):
        load_recipe(str(path))
    path.write_text("epochs: [3")
    with pytest.raises(UsageError, match="no YAML") as caught:
        load_recipe(str(path))
    assert "\n" not in str(caught.value)
