"""The trainings of the accuracy study, resumable one by one.

Every network and seed has a job (`cli.job.stages`) with these stages:

    original            trained from scratch
    design              the search's branching of it
    accuracy-…          retrained with the original as teacher: the original itself, the control and the branched network
    quarter-…           the branched network at a quarter of this retraining, from scratch to all that the product does
    ablation-…          other ways to scale branches

Whatever selects reads validation images. Test images are read once per training, after its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bench.accuracy.results import (
    ABLATION,
    ACCURACY,
    BRANCHED,
    CONTROL,
    FURTHER,
    MODELS,
    ORIGINAL,
    QUARTER,
    TABLES,
    Result,
    Results,
)
from nnstretch.cli.job.stages import Answer, Job, Stage
from nnstretch.cli.training import blockwise_phase, event_shown
from nnstretch.errors import UsageError
from nnstretch.support.locks import lock_folder

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.branching.design.design import Design
    from nnstretch.branching.transform.network import BranchedNetwork
    from nnstretch.cli.console import Reporter
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.recipe import Recipe

STAGES = ("original", "design", *TABLES)
"""Kinds of stages of a network and seed, in order."""
ABLATED = "resnet34"
"""The network of the tables but the first."""
IMAGE_SIZE = 32

_WEIGHTS, _DESIGN = "weights.safetensors", "design.json"
_CHECKPOINT_MINUTES = 2.0
# For small networks and some thousand steps. Images vary without augmentation, and every epoch has other ones.
COMMON: Mapping[str, Any] = {
    "batch_size": 64,
    "amp_dtype": "float32",
    "threads": 1,
    "evaluate_every": 0,
    "scale": None,
    "hflip": 0.0,
    "model_ema": True,
    "model_ema_decay": 0.99,
    "precise_bn_samples": 2048,
}
TRAINING = {"lr": 0.05, "weight_decay": 1e-4, "warmup_epochs": 1, "smoothing": 0.1, "evaluate_every": 4}
RETRAINING = {"lr": 0.1}


@dataclass(frozen=True)
class StudyOptions:
    """What `scripts/studies/accuracy_study.py` takes.

    Attributes:
        folder: for all that is written.
        models: networks of the study.
        seeds: number of seeds, from 0.
        tables: of `TABLES`.
        epochs: of the first training.
        retrain_epochs: of the retraining, a multiple of 8.
        epoch_images: training images per epoch.
        held_out: validation images, and as many test images; None: all.
        redo: of `STAGES`, the first one whose products are given up.
    """

    folder: Path
    models: tuple[str, ...]
    seeds: int = 3
    tables: tuple[str, ...] = TABLES
    epochs: int = 16
    retrain_epochs: int = 8
    epoch_images: int = 10_000
    held_out: int | None = None
    redo: str | None = None

    def __post_init__(self) -> None:
        """Check the names and numbers.

        Raises:
            UsageError: there is no such network or table, or a number is out of range.
        """
        for option, given, known in (("--models", self.models, MODELS), ("--tables", self.tables, TABLES)):
            for name in given:
                if name not in known:
                    raise UsageError(f"{option} {name}: there are {', '.join(known)}")
        if self.redo is not None and self.redo not in STAGES:
            raise UsageError(f"--redo {self.redo}: the stages are {', '.join(STAGES)}")
        if self.seeds < 1:
            raise UsageError(f"--seeds {self.seeds}: 1 or more is wanted")
        if self.retrain_epochs < 8 or self.retrain_epochs % 8:
            raise UsageError(f"--retrain-epochs {self.retrain_epochs}: a multiple of 8 is wanted, for the quarters")


class AccuracyStudy:
    """All trainings.

    Attributes:
        elsewhere: folders that another process is writing to, whose trainings are missing.
    """

    def __init__(self, options: StudyOptions, report: Reporter, advice: str = "") -> None:
        """Takes the options.

        Args:
            options: of the study.
            report: gets progress and notes.
            advice: what the message of a training that a signal has stopped says to do.
        """
        self.options, self._report, self._advice = options, report, advice
        self.elsewhere: list[str] = []
        self._studies: dict[tuple[str, int], SeedStudy] = {}

    def run(self) -> Results:
        """Runs the trainings that are not done; returns what is known of all."""
        results: dict[str, dict[str, dict[str, list[Result]]]] = {}
        for table in self.options.tables:
            models = self.options.models if table == ACCURACY else {*self.options.models} & {ABLATED}
            for seed in range(self.options.seeds):
                for model in models:
                    for row, result in self._rows(model, seed, table).items():
                        results.setdefault(table, {}).setdefault(model, {}).setdefault(row, []).append(result)
        return results

    def _rows(self, model: str, seed: int, table: str) -> Mapping[str, Result]:
        """One seed's part of a table; nothing if another process is at it."""
        folder = self.options.folder / model / f"seed-{seed}"
        try:
            lock = lock_folder(folder, "-o")
        except UsageError:
            self._report.note(f"{folder} is left to another process, which is writing to it")
            self.elsewhere.append(str(folder))
            return {}
        with lock:
            if (model, seed) not in self._studies:
                made = SeedStudy(self.options, model, seed, self.dataset, self._report, self._advice)
                self._studies[model, seed] = made
            study = self._studies[model, seed]
            return {ACCURACY: study.accuracy, QUARTER: study.quarter, ABLATION: study.ablation}[table]()

    @cached_property
    def dataset(self) -> Dataset:
        """The images."""
        from nnstretch.bench.accuracy.images import stored_textures

        options = self.options
        return stored_textures(options.folder / "images", IMAGE_SIZE, options.epoch_images, options.held_out)


class SeedStudy:
    """The trainings of one network and seed."""

    def __init__(
        self, options: StudyOptions, model: str, seed: int, dataset: Dataset, report: Reporter, advice: str
    ) -> None:
        self._options, self._model, self._seed = options, model, seed
        self._dataset, self._report, self._advice = dataset, report, advice
        self._job = Job(options.folder / model / f"seed-{seed}", options.redo)
        self._retraining = self._recipe("finetune", options.retrain_epochs, RETRAINING)

    def accuracy(self) -> dict[str, Result]:
        """The original, and what it becomes at equal budgets of retraining."""
        from nnstretch.bench.accuracy.designs import MULTIPLE
        from nnstretch.branching.transform.control import single_branch_control

        original, design, recipe = self._original, self._design, self._retraining

        def control() -> nn.Module:
            return single_branch_control(self._trained(), self._image, design.macs, MULTIPLE)

        rows = {
            FURTHER: ("further", self._trained, replace(recipe, blockwise_epochs=0.0)),
            CONTROL: ("control", control, replace(recipe, blockwise_epochs=0.0)),
            BRANCHED: ("branched", lambda: self._build(design), _with_start(recipe, 1)),
        }
        found = {row: self._retrain(ACCURACY, *training) for row, training in rows.items()}
        return {ORIGINAL: original, **found}

    def quarter(self) -> dict[str, Result]:
        """The branched network with more and more of what the product does, at a quarter of the retraining."""
        original, design = self._original, self._design
        epochs = self._options.retrain_epochs // 4
        alone = replace(self._retraining, epochs=epochs, kd_loss_weight=0.0, blockwise_epochs=0.0)
        taught = replace(alone, kd_loss_weight=self._retraining.kd_loss_weight)
        features = replace(taught, kd_feature_weight=1.0)

        def fresh() -> nn.Module:
            from nnstretch.branching.stretch import reinitialise

            network = self._build(design)
            reinitialise(network, self._image, self._seed)
            return network

        def inherited() -> nn.Module:
            return self._build(design)

        from_scratch = replace(alone, lr=TRAINING["lr"])
        rows = {
            "from scratch": ("scratch", fresh, from_scratch),
            "inherited weights": ("inherited", inherited, alone),
            "and logits of the original": ("logits", inherited, taught),
            "and its feature maps": ("features", inherited, features),
            "and a block-wise start": ("blockwise", inherited, _with_start(features, epochs / 2)),
        }
        found = {row: self._retrain(QUARTER, *training) for row, training in rows.items()}
        return {ORIGINAL: original, **found}

    def ablation(self) -> dict[str, Result]:
        """Ways to scale branches."""
        from nnstretch.bench.accuracy.designs import ablation_designs

        original = self._original
        designs = ablation_designs(self._trained(), self._image)
        recipe = _with_start(self._retraining, 1)

        def make(design: Design) -> Callable[[], nn.Module]:
            return lambda: self._build(design)

        found = {
            row: self._retrain(ABLATION, row.replace(", ", "-").replace(" ", "-"), make(design), recipe)
            for row, design in designs.items()
        }
        return {ORIGINAL: original, **found}

    # -- stages --------------------------------------------------------------------------------------------------

    @cached_property
    def _original(self) -> Result:
        """The original, trained from scratch."""
        from nnstretch.bench.accuracy.networks import build_network

        recipe = self._recipe("nnstretch", self._options.epochs, TRAINING)

        def work(folder: Path) -> Answer:
            network = build_network(self._model, self._dataset.num_classes, self._seed)
            return self._finished(network, self._train(network, recipe, None, folder), folder)

        return self._stage("original", {**self._images, "recipe": recipe.to_json()}, work).answer

    @cached_property
    def _design(self) -> Design:
        """The branching that the search finds for the trained original."""
        from nnstretch.bench.accuracy.designs import searched_design
        from nnstretch.branching.design.design import load_design, save_design

        assert self._original

        def work(folder: Path) -> Answer:
            with self._report.progress("Searching") as advance:
                design = searched_design(self._trained(), self._image, advance)
            save_design(design, folder / _DESIGN)
            return {"design": _DESIGN}

        return load_design(self._stage("design", {}, work, ["original"]).file("design"))

    def _retrain(self, table: str, name: str, make: Callable[[], nn.Module], recipe: Recipe) -> Result:
        """A network, retrained with the original as its teacher."""

        def work(folder: Path) -> Answer:
            network = make()
            return self._finished(network, self._train(network, recipe, self._trained(), folder), folder)

        after = ["original"] if table == ABLATION else ["original", "design"]
        return self._stage(f"{table}-{name}", {**self._images, "recipe": recipe.to_json()}, work, after).answer

    def _stage(
        self, name: str, settings: Mapping[str, Any], work: Callable[[Path], Answer], after: Sequence[str] = ()
    ) -> Stage:
        title = f"{self._model}, seed {self._seed}, {name}"

        def announced(folder: Path) -> Answer:
            self._report.note(f"{title} …")
            return work(folder)

        stage = self._job.run(name, settings, announced, after)
        if not stage.was_done:
            top1 = stage.answer.get("validation_top1")
            said = "" if top1 is None else f", {top1:.2f} % of the validation images"
            self._report.note(f"{title}: {stage.seconds:.0f} s{said}")
        return stage

    def _train(self, network: nn.Module, recipe: Recipe, teacher: nn.Module | None, folder: Path) -> dict[str, Any]:
        from nnstretch.branching.transform.network import BranchedNetwork
        from nnstretch.training.loop.run_folder import RunOptions
        from nnstretch.training.loop.stopping import stopped_by_signals
        from nnstretch.training.loop.trainer import train

        run = RunOptions(folder / "run", resume=True, minutes=_CHECKPOINT_MINUTES, keep=0)
        with self._report.progress("Training") as advance, stopped_by_signals(self._advice) as stop:
            start = None
            if teacher is not None and isinstance(network, BranchedNetwork) and recipe.blockwise_epochs:
                start = blockwise_phase(network, teacher, self._dataset, recipe, advance)
            result = train(network, self._dataset, recipe, teacher, event_shown(advance), run, stop, start)
        return {"epochs": recipe.epochs + recipe.blockwise_epochs, "loss": result.history[-1].loss}

    def _finished(self, network: nn.Module, found: Mapping[str, Any], folder: Path) -> Answer:
        """Keeps a trained network; returns what was found and its counts and accuracies."""
        from nnstretch.branching.design.accounting import count_macs, count_parameters
        from nnstretch.training.evaluation.accuracy import top1
        from nnstretch.training.weights import save_weights

        save_weights(network, folder / _WEIGHTS, {})
        accuracies = {
            f"{name}_top1": round(top1(network, getattr(self._dataset, name), self._dataset.num_classes), 4)
            for name in ("validation", "test")
        }
        counts = {"macs": count_macs(network, self._image), "params": count_parameters(network)}
        return {"seed": self._seed, **counts, **accuracies, **found}

    # -- networks ------------------------------------------------------------------------------------------------

    def _trained(self) -> nn.Module:
        """The original with its trained weights."""
        from nnstretch.bench.accuracy.networks import build_network
        from nnstretch.training.weights import load_weights

        network = build_network(self._model, self._dataset.num_classes, self._seed)
        load_weights(network, self._job.folder / "original" / _WEIGHTS)
        return network.eval()

    def _build(self, design: Design) -> BranchedNetwork:
        """A design with weights inherited from the original."""
        from nnstretch.branching.stretch import rebuild

        return rebuild(self._trained(), self._image, design)

    @cached_property
    def _image(self) -> Any:
        """The input by which blocks are ranked."""
        import torch

        return self._dataset.train.images(torch.arange(1))

    @property
    def _images(self) -> dict[str, Any]:
        """What the trainings depend on beside their recipes."""
        from nnstretch.bench.accuracy.images import StoredSplit, look

        splits = (self._dataset.train, self._dataset.validation, self._dataset.test)
        looks = [look(split) for split in splits if isinstance(split, StoredSplit)]
        return {"size": IMAGE_SIZE, "images": [len(split) for split in splits], "looks": looks}

    def _recipe(self, preset: str, epochs: int, changes: Mapping[str, Any]) -> Recipe:
        from nnstretch.training.recipe_files import load_recipe

        return replace(load_recipe(preset), name=preset, epochs=epochs, seed=self._seed, **{**COMMON, **changes})


def _with_start(recipe: Recipe, epochs: float) -> Recipe:
    """The recipe with a block-wise start that takes some of its epochs, so that as many images are seen."""
    return replace(recipe, blockwise_epochs=epochs, epochs=recipe.epochs - round(epochs))
