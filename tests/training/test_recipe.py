"""Recipes: learning-rate schedule, JSON round trip, and errors for bad values."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.errors import FileError, UsageError
from nnstretch.training.recipe import PRESETS, Recipe, load_recipe, recipe_from_json


def test_the_rate_warms_up_holds_and_follows_a_cosine() -> None:
    recipe = Recipe(epochs=10, learning_rate=0.4, warmup_epochs=1, hold_epochs=1)
    rates = [recipe.rate(step, 8) for step in range(80)]
    assert rates[:8] == pytest.approx([0.05 * (step + 1) for step in range(8)])
    assert rates[8:17] == pytest.approx([0.4] * 9)
    assert rates[16 + 32] == pytest.approx(0.2)
    assert rates[16 + 16] == pytest.approx(0.2 * (1 + math.sqrt(0.5)))
    assert rates[-1] == pytest.approx(0.2 * (1 + math.cos(math.pi * 63 / 64)))


@given(st.integers(1, 20), st.integers(1, 50), st.floats(0, 5), st.floats(0, 30))
def test_the_rate_never_leaves_its_range_and_rises_only_at_first(
    epochs: int, steps: int, warmup: float, hold: float
) -> None:
    recipe = Recipe(epochs=epochs, learning_rate=0.3, warmup_epochs=warmup, hold_epochs=hold)
    rates = [recipe.rate(step, steps) for step in range(epochs * steps)]
    assert all(0 < rate <= 0.3 * (1 + 1e-12) for rate in rates)
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_scales_come_in_their_order() -> None:
    recipe = Recipe(epochs=4, scales=((1, 0.25), (2, 0.5), (1, 1.0)))
    assert [recipe.scale(epoch) for epoch in range(4)] == [0.25, 0.5, 0.5, 1.0]
    assert Recipe().scale(3) == 1.0


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    load_recipe(name).save(path)
    assert load_recipe(str(path)) == PRESETS[name]
    assert PRESETS[name].name == name


def test_missing_fields_keep_their_defaults() -> None:
    assert recipe_from_json({"epochs": 3, "augmentation": {"shift": 0.5}}).augmentation.shift == 0.5
    assert recipe_from_json({}) == Recipe()


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
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"momentum": 1.5}, "0 to 1"),
        ({"batch": 1}, "2 or more"),
        ({"momentum": 0}, "nesterov"),
        ({"precision": "int4"}, "float32"),
        ({"scales": [[1, 0.5]]}, "add up to 1"),
        ({"scales": [[10, 2.0]]}, "pairs"),
        ({"scales": [[10]]}, r"scales has \[10\]"),
        ({"scales": 1}, "scales is 1"),
        ({"augmentation": {"shear": 1}}, "augmentation has no field 'shear'"),
        ({"augmentation": {"rotation": 1000}}, "augmentation.rotation is 1000"),
    ],
)
def test_bad_values_are_named(values: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recipe_from_json(values)


def test_files_that_are_no_recipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quick-retrain"):
        load_recipe("qick")
    with pytest.raises(FileError, match=r"absent\.json"):
        load_recipe(str(tmp_path / "absent.json"))
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(dataclasses.asdict(Recipe()))[:-5])
    with pytest.raises(UsageError, match="no JSON"):
        load_recipe(str(path))
