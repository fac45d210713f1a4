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

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
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
    STAGES_OF,
    Result,
    Results,
    tables,
)
from nnstretch.cli.job.stages import Answer, Job, Stage
from nnstretch.cli.job.study_options import ABLATED, BATCH, COMMON, RETRAINING, TRAINING, StudyOptions
from nnstretch.cli.training import blockwise_phase, event_shown
from nnstretch.errors import UsageError
from nnstretch.support.locks import lock_folder
from nnstretch.support.settings import write_text

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.branching.design.design import Design
    from nnstretch.branching.transform.network import BranchedNetwork
    from nnstretch.cli.console import Reporter
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.recipe import Recipe

_WEIGHTS, _DESIGN = "weights.safetensors", "design.json"
_CHECKPOINT_MINUTES = 2.0


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
        for table in self.options.tables:
            for seed in range(self.options.seeds):
                for model in self._models(table):
                    self._train(model, seed, table)
        return self.write()

    def write(self) -> Results:
        """Writes the tables of the trainings that are done, by whichever process; returns their results."""
        found = self._finished()
        write_text(self.options.folder / "tables.md", tables(found))
        write_text(self.options.folder / "results.json", json.dumps(found, indent=1) + "\n")
        return found

    def _finished(self) -> Results:
        results: dict[str, dict[str, dict[str, list[Result]]]] = {}
        for table in self.options.tables:
            for model in self._models(table):
                jobs = [Job(self._folder(model, seed)) for seed in range(self.options.seeds)]
                for row, stage in self._stages(table).items():
                    if found := [answer for job in jobs if (answer := job.found(stage)) is not None]:
                        results.setdefault(table, {}).setdefault(model, {})[row] = found
        return results

    def _models(self, table: str) -> Sequence[str]:
        """The networks of a table."""
        if self.options.models is not None:
            return self.options.models
        return MODELS if table in (ORIGINAL, ACCURACY) else (ABLATED,)

    def _stages(self, table: str) -> Mapping[str, str]:
        """The stage of every row of a table."""
        return STAGES_OF[table]

    def _folder(self, model: str, seed: int) -> Path:
        return self.options.folder / model / f"seed-{seed}"

    def _train(self, model: str, seed: int, table: str) -> None:
        """Runs one seed's part of a table unless another process is at it."""
        folder = self._folder(model, seed)
        try:
            lock = lock_folder(folder, "-o")
        except UsageError:
            self._report.note(f"{folder} is left to another process, which is writing to it")
            self.elsewhere.append(str(folder))
            return
        with lock:
            if (model, seed) not in self._studies:
                self._studies[model, seed] = self._seed_study(model, seed)
            self._studies[model, seed].train(table)

    def _seed_study(self, model: str, seed: int) -> SeedStudy:
        """The trainings of a network and seed."""
        return SeedStudy(self.options, model, seed, self.dataset, self._report, self.write, self._advice)

    @cached_property
    def dataset(self) -> Dataset:
        """The images."""
        from nnstretch.bench.accuracy.images import stored_textures

        options = self.options
        return stored_textures(options.images, options.image_size, options.epoch_images, options.held_out)


class SeedStudy:
    """The trainings of one network and seed."""

    def __init__(
        self,
        options: StudyOptions,
        model: str,
        seed: int,
        dataset: Dataset,
        report: Reporter,
        written: Callable[[], object],
        advice: str,
    ) -> None:
        """Takes the options of the study, a network, a seed and the images.

        Args:
            options: of the study.
            model: the network.
            seed: of its trainings.
            dataset: the images.
            report: gets progress and notes.
            written: is called after every training.
            advice: what the message of a training that a signal has stopped says to do.
        """
        self._options, self._model, self._seed = options, model, seed
        self._dataset, self._report, self._written, self._advice = dataset, report, written, advice
        self._job = Job(options.folder / model / f"seed-{seed}", options.redo)

    def train(self, table: str) -> None:
        """Runs the trainings of a table that are not done."""
        assert self._original
        if table != ORIGINAL:
            {ACCURACY: self._accuracy, QUARTER: self._quarter, ABLATION: self._ablation}[table]()

    @cached_property
    def _training(self) -> Recipe:
        """The recipe of the first training."""
        return self._recipe("nnstretch", self._options.epochs, {**TRAINING, "lr": self._options.lr})

    @cached_property
    def _retraining(self) -> Recipe:
        """The recipe of a retraining."""
        return self._recipe("finetune", self._options.retrain_epochs, {**RETRAINING, "lr": self._options.retrain_lr})

    def _accuracy(self) -> None:
        """What the original becomes at equal budgets of retraining; the control comes last if time should not suffice."""
        from nnstretch.bench.accuracy.designs import MULTIPLE
        from nnstretch.branching.transform.control import single_branch_control

        design, recipe = self._design, self._retraining

        def control() -> nn.Module:
            return single_branch_control(self._trained(), self._image, design.macs, self._options.width * MULTIPLE)

        rows = {
            FURTHER: (self._trained, replace(recipe, blockwise_epochs=0.0)),
            BRANCHED: (lambda: self._build(design), _with_start(recipe, self._options.blockwise_epochs)),
            CONTROL: (control, replace(recipe, blockwise_epochs=0.0)),
        }
        self._retrain(ACCURACY, rows)

    def _quarter(self) -> None:
        """The branched network with more and more of what the product does, at a quarter of the retraining."""
        design = self._design
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

        from_scratch = replace(alone, lr=self._rate(self._options.lr))
        rows = {
            "from scratch": (fresh, from_scratch),
            "inherited weights": (inherited, alone),
            "and logits of the original": (inherited, taught),
            "and its feature maps": (inherited, features),
            "and a block-wise start": (inherited, _with_start(features, epochs / 2)),
        }
        self._retrain(QUARTER, rows)

    def _ablation(self) -> None:
        """Ways to scale branches."""
        from nnstretch.bench.accuracy.designs import ablation_designs

        designs = ablation_designs(self._trained(), self._image)
        recipe = _with_start(self._retraining, 1)

        def make(design: Design) -> Callable[[], nn.Module]:
            return lambda: self._build(design)

        self._retrain(ABLATION, {row: (make(design), recipe) for row, design in designs.items()})

    # -- stages --------------------------------------------------------------------------------------------------

    @cached_property
    def _original(self) -> Result:
        """The original, trained from scratch."""
        recipe = self._training

        def work(folder: Path) -> Answer:
            network = self._untrained()
            return self._finished(network, self._train(network, recipe, None, folder), folder)

        return self._stage(ORIGINAL, self._settings(recipe), work).answer

    @cached_property
    def _design(self) -> Design:
        """The branching that the search finds for the trained original."""
        from nnstretch.bench.accuracy.designs import searched_design
        from nnstretch.branching.design.design import load_design, save_design

        assert self._original

        def work(folder: Path) -> Answer:
            with self._report.progress("Searching") as advance:
                design = searched_design(self._trained(), self._image, advance, self._options.width)
            save_design(design, folder / _DESIGN)
            return {"design": _DESIGN}

        return load_design(self._stage("design", {}, work, ["original"]).file("design"))

    def _retrain(self, table: str, rows: Mapping[str, tuple[Callable[[], nn.Module], Recipe]]) -> None:
        """Retrains the networks of a table with the original as their teacher."""
        after = [ORIGINAL] if table == ABLATION else [ORIGINAL, "design"]
        for row, (make, recipe) in rows.items():
            work = partial(self._retrained, make, recipe)
            self._stage(STAGES_OF[table][row], self._settings(recipe), work, after)

    def _retrained(self, make: Callable[[], nn.Module], recipe: Recipe, folder: Path) -> Answer:
        network = make()
        return self._finished(network, self._train(network, recipe, self._trained(), folder), folder)

    def _stage(
        self, name: str, settings: Mapping[str, Any], work: Callable[[Path], Answer], after: Sequence[str] = ()
    ) -> Stage:
        title = f"{self._model}, seed {self._seed}, {name}"

        def announced(folder: Path) -> Answer:
            self._report.note(f"{title} …")
            return work(folder)

        stage = self._job.run(name, settings, announced, after)
        if not stage.was_done:
            task = self._dataset.task
            found = stage.answer.get(f"validation_{task.key}")
            said = "" if found is None else f", {task.measure} {found:.2f} % on the validation images"
            self._report.note(f"{title}: {stage.seconds:.0f} s{said}")
            self._written()
        return stage

    def _train(self, network: nn.Module, recipe: Recipe, teacher: nn.Module | None, folder: Path) -> dict[str, Any]:
        """Trains a network, on the device of the study, where it stays."""
        from nnstretch.bench.accuracy.images import generate
        from nnstretch.branching.transform.network import BranchedNetwork
        from nnstretch.training.loop.run_folder import RunOptions
        from nnstretch.training.loop.stopping import stopped_by_signals
        from nnstretch.training.loop.torch_settings import find_device
        from nnstretch.training.loop.trainer import train

        device = find_device(self._options.device)
        generate(self._dataset, self._options.images, recipe.epochs)
        for module in filter(None, (network, teacher)):
            module.to(device)
        run = RunOptions(folder / "run", resume=True, minutes=_CHECKPOINT_MINUTES, keep=0)
        with self._report.progress("Training") as advance, stopped_by_signals(self._advice) as stop:
            start = None
            if teacher is not None and isinstance(network, BranchedNetwork) and recipe.blockwise_epochs:
                start = blockwise_phase(network, teacher, self._dataset, recipe, advance)
            result = train(network, self._dataset, recipe, teacher, event_shown(advance), run, stop, start)
        first = 0.0 if start is None else recipe.blockwise_epochs
        return {"epochs": recipe.epochs + first, "loss": result.history[-1].loss}

    def _finished(self, network: nn.Module, found: Mapping[str, Any], folder: Path) -> Answer:
        """Keeps a trained network; returns what was found and its counts and accuracies."""
        from nnstretch.branching.design.accounting import count_macs, count_parameters
        from nnstretch.training.evaluation.accuracy import scored
        from nnstretch.training.weights import save_weights

        save_weights(network, folder / _WEIGHTS, {})
        dataset, batch = self._dataset, self._options.batch_size
        accuracies = {
            f"{name}_{key}": round(percent, 4)
            for name in ("validation", "test")
            for key, percent in scored(network, getattr(dataset, name), dataset, batch).measures().items()
        }
        network.cpu()
        counts = {"macs": count_macs(network, self._image), "params": count_parameters(network)}
        return {"seed": self._seed, **counts, **accuracies, **found}

    # -- networks ------------------------------------------------------------------------------------------------

    def _untrained(self) -> nn.Module:
        """The original with its first weights."""
        from nnstretch.bench.accuracy.networks import build_network

        return build_network(self._model, self._dataset.num_classes, self._seed, self._options.width)

    def _trained(self) -> nn.Module:
        """The original with its trained weights."""
        from nnstretch.training.weights import load_weights

        network = self._untrained()
        load_weights(network, self._job.folder / ORIGINAL / _WEIGHTS)
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

    def _settings(self, recipe: Recipe) -> dict[str, Any]:
        """What a training depends on."""
        width = self._options.width
        wider = {} if width == 1 else {"width": width}  # studies from before there was a width are of 1
        return {**self._images, **wider, "recipe": recipe.to_json()}

    @cached_property
    def _images(self) -> dict[str, Any]:
        from nnstretch.bench.accuracy.images import StoredScenes, StoredSplit, look

        splits = (self._dataset.train, self._dataset.validation, self._dataset.test)
        looks = [look(split) for split in splits if isinstance(split, StoredSplit | StoredScenes)]
        return {"size": self._options.image_size, "images": [len(split) for split in splits], "looks": looks}

    def _recipe(self, preset: str, epochs: int, changes: Mapping[str, Any]) -> Recipe:
        from nnstretch.training.recipe_files import load_recipe

        options = self._options
        settings = {**COMMON, **changes, "lr": self._rate(changes["lr"]), "batch_size": options.batch_size}
        on_cpu = options.device == "cpu"
        settings["amp_dtype"] = options.amp_dtype or (COMMON["amp_dtype"] if on_cpu else "auto")
        return replace(load_recipe(preset), name=preset, epochs=epochs, seed=self._seed, **settings)

    def _rate(self, rate: float) -> float:
        """The learning rate of the study's batches for that of `BATCH` images."""
        return rate * self._options.batch_size / BATCH


def _with_start(recipe: Recipe, epochs: float) -> Recipe:
    """The recipe with a block-wise start that takes some of its epochs, so that as many images are seen."""
    return replace(recipe, blockwise_epochs=epochs, epochs=recipe.epochs - round(epochs))
