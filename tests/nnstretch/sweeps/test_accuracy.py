"""Accuracies of designs: what each fidelity trains, that nothing is trained twice, and a full disk."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch

from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.transform.build import build
from nnstretch.compiler.processors import build_processors
from nnstretch.errors import FileError
from nnstretch.sweeps.designs import DesignSweep, SweepSpec
from nnstretch.sweeps.evaluation import DesignEvaluation
from nnstretch.sweeps.measures.accuracy import DesignTraining
from nnstretch.sweeps.measures.quantizer import Quantizer
from nnstretch.sweeps.measures.results import ResultStore
from nnstretch.sweeps.objectives import Fidelity, parse_objectives
from nnstretch.sweeps.study import FILES, RUNG, VALUES, states
from nnstretch.sweeps.workers.worker import SweepBudget
from nnstretch.training.evaluation.accuracy import top1
from nnstretch.training.loop.trainer import train
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import load_weights
from tests.kits.networks.small_training import few_digits
from tests.kits.networks.tiny_branching import original

LOOSE = SearchLimits(alpha=1e4, beta=1e4, min_macs=0.01, max_segment=1.0)
RECIPE = Recipe(epochs=3, batch_size=16, lr=0.01, evaluate_every=0, threads=1)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes of all trainings."""
    recipes: list[Recipe] = []

    def counted(module: Any, dataset: Any, recipe: Recipe, *arguments: Any, **more: Any) -> Any:
        recipes.append(recipe)
        return train(module, dataset, recipe, *arguments, **more)

    monkeypatch.setattr("nnstretch.sweeps.measures.accuracy.train", counted)
    return recipes


def sweep_of(folder: Path, study: str, trials: int) -> DesignSweep:
    names, directions = ("latency", "accuracy"), ("minimize", "maximize")
    spec = SweepSpec(
        limits=LOOSE, names=names, directions=directions, budget=SweepBudget(trials),  # type: ignore[arg-type]
        storage=str(folder / "sweep.journal"), study=study, sampler="random",
    )  # fmt: skip
    return DesignSweep(original(), torch.randn(1, 1, 16, 16), build_processors("sim:phone/cpu,sim:phone/gpu"), spec)


def training_of(folder: Path, recipe: Recipe = RECIPE) -> DesignTraining:
    results = ResultStore(folder / "work")
    return DesignTraining(original(), few_digits(32, 20), recipe, torch.device("cpu"), results, {})


def run(sweep: DesignSweep, training: DesignTraining, fidelity: Fidelity) -> optuna.Study:
    study, objectives = sweep.open(), parse_objectives("latency,accuracy")
    found = DesignEvaluation(
        study, sweep.space, objectives, fidelity, sweep.space.limits, sweep.spec.bounds, training.results,
        training=training, reduction=2,
    )  # fmt: skip
    sweep.run(study, found)
    return study


def test_every_fidelity_goes_on_from_the_one_before_and_nothing_is_trained_twice(
    tmp_path: Path, trained: list[Recipe]
) -> None:
    training = training_of(tmp_path)
    sweep = sweep_of(tmp_path, "one", 3)
    study = run(sweep, training, Fidelity.TRAINED)
    assert {trial.user_attrs[RUNG] for trial in study.trials} >= {"predicted", "trained"}
    done = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    for trial in done:
        assert all(f"{VALUES}{rung}" in trial.user_attrs for rung in ("distilled", "finetuned", "trained"))
    assert {recipe.epochs for recipe in trained} == {0, 1, 2}  # block-wise start, a tenth of 3 epochs or 1, the rest
    predicted = sweep.space.design(done[0].params)
    assert done[0].user_attrs[FILES] == training.key(predicted, Fidelity.TRAINED)
    network = build(predicted.latencies.blueprint, predicted.design)
    load_weights(network, training.results.weights(done[0].user_attrs[FILES]))
    assert top1(network.eval(), training.dataset.validation, 10) == pytest.approx(done[0].values[1])
    count = len(trained)
    again = run(sweep_of(tmp_path, "two", 3), training_of(tmp_path), Fidelity.TRAINED)
    assert len(trained) == count
    assert [trial.values for trial in again.trials] == [trial.values for trial in study.trials]
    training.results.weights(done[0].user_attrs[FILES]).unlink()
    training(predicted, Fidelity.TRAINED)
    assert len(trained) == count + 1, "lost weights are made again"


def test_one_training_serves_a_design_in_both_types(tmp_path: Path, trained: list[Recipe]) -> None:
    training = training_of(tmp_path)
    training = replace(training, quantizer=Quantizer(training.dataset))
    space = sweep_of(tmp_path, "one", 1).space
    predicted = space.design(
        optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask(space.distributions).params
    )
    found = training(predicted, Fidelity.DISTILLED)
    rounded = training(replace(predicted, dtype="int8"), Fidelity.DISTILLED)
    assert len(trained) == 1
    assert rounded["accuracy"] == pytest.approx(found["accuracy"], abs=10)  # of 20 images
    (kept,) = training.results.folder.glob("*.int8.json")
    assert json.loads(kept.read_text()) == rounded


def test_the_short_and_the_full_training_share_the_epochs_of_the_recipe(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=20, warmup_epochs=5.0, scales=((5, 0.5), (15, 1.0)))
    recipe = replace(recipe, evaluate_every=1, patience=3, mixup=0.2, mixup_off_epoch=15)
    training = training_of(tmp_path, recipe)
    short, rest = (training.recipe_of(fidelity) for fidelity in (Fidelity.FINETUNED, Fidelity.TRAINED))
    assert (short.epochs, short.warmup_epochs, short.scales, short.patience) == (2, 0.5, (), 0)
    assert (rest.epochs, rest.warmup_epochs, rest.scales, rest.patience) == (18, 4.5, ((3, 0.5), (15, 1.0)), 3)
    assert (short.mixup_off_epoch, rest.mixup_off_epoch) == (15, 13)
    one = training_of(tmp_path, replace(RECIPE, epochs=1))
    assert [one.recipe_of(fidelity).epochs for fidelity in (Fidelity.FINETUNED, Fidelity.TRAINED)] == [1, 0]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can be larger than this, in bytes, except those that are."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_below_the_results_is_one_line_and_no_trial_is_lost(tmp_path: Path, trained: list[Recipe]) -> None:
    training = training_of(tmp_path)
    with full_disk(16 << 10), pytest.raises(FileError, match=r"work.*File too large; free some space"):
        run(sweep_of(tmp_path, "one", 2), training, Fidelity.DISTILLED)
    assert not list(training.results.folder.glob("*.json"))
    sweep = sweep_of(tmp_path, "one", 2)
    resumed = replace(sweep, spec=replace(sweep.spec, resume=True))
    study = run(resumed, training, Fidelity.DISTILLED)
    assert states(study) == {"complete": 1, "pruned": 1, "fail": 0, "running": 0, "waiting": 0}
