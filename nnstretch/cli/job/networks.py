"""The networks of a job (`transform_and_train`), its images and recipes: the model, its branchings and their control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.job.stages import Stage
from nnstretch.cli.job.transform_options import RETRAIN
from nnstretch.cli.models.networks import Network, branch
from nnstretch.cli.training import about_images, check_outputs, training_images, with_given_head
from nnstretch.support.image_size import size_text
from nnstretch.support.measures import TOP1, Measure

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.cli.console import Reporter
    from nnstretch.cli.job.transform_options import TransformOptions
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.recipe import Recipe

ORIGINAL, CONTROL = "original", "control"
"""Names of the networks that are no designs."""


@dataclass(frozen=True)
class Candidate:
    """A network of the job: the original, the control or a design.

    Attributes:
        name: "original", "control" or the design's id.
        weights: its weights file.
        validation_score, test_score: in percent.
        design: its file; None if it is not branched.
        measure: of the scores.
    """

    name: str
    weights: Path
    validation_score: float
    test_score: float
    design: Path | None = None
    measure: Measure = TOP1

    @classmethod
    def of(cls, name: str, stage: Stage, design: Path | None = None) -> Candidate:
        """The network that a stage has trained or evaluated."""
        measure = stage_measure(stage)
        validation, test = (float(stage.answer[f"{split}_{measure.key}"]) for split in ("validation", "test"))
        return cls(name, stage.file("weights"), validation, test, design, measure)

    def to_json(self) -> dict[str, Any]:
        """The fields, with paths as text; scores stand under ``validation_KEY`` and ``test_KEY``, by the measure."""
        return {
            "name": self.name,
            "weights": str(self.weights),
            f"validation_{self.measure.key}": self.validation_score,
            f"test_{self.measure.key}": self.test_score,
            "design": None if self.design is None else str(self.design),
        }


def stage_measure(stage: Stage) -> Measure:
    """The measure of a stage's scores; stages of earlier versions have top-1."""
    return Measure(**stage.answer.get("measure", TOP1._asdict()))


class JobNetworks:
    """Builds the networks of a job.

    Attributes:
        options: of the job.
        report: gets notes and progress of all that works with the networks.
        graphs: of candidates, by name; each is exported once.
    """

    def __init__(self, options: TransformOptions, report: Reporter) -> None:
        self.options = options
        self.report = report
        self.graphs: dict[str, ir.Model] = {}

    @cached_property
    def dataset(self) -> Dataset:
        """The images, loaded once: of the size and with the preprocessing of the weights, if they say.

        Raises:
            UsageError: a recipe is for another task, or there is a head without need or none where one is needed.
            NNStretchError: the images cannot be read, or do not fit their targets.
        """
        options = self.options
        with self.report.progress("Looking at images") as advance:
            dataset = training_images(
                options.data,
                options.model,
                self.recipe(options.recipe),
                image_size=options.image_size,
                weights=options.weights,
                progress=advance,
            )
        dataset = with_given_head(dataset, options.head)
        self._check_recipes(dataset)
        self.report.note(dataset.note)
        if options.image_size is None:
            self.report.note(f"images are {size_text(dataset.image_size)}; --image-size names another size")
        return dataset

    def _check_recipes(self, dataset: Dataset) -> None:
        """Refuses recipes that the task cannot follow, before the first training."""
        options, task = self.options, dataset.task
        task.check_recipe(self.recipe(options.recipe))
        if RETRAIN not in options.skip:
            recipe = self.recipe(options.retrain_recipe)
            task.check_recipe(recipe)
            if recipe.epochs:
                task.check_teaching(recipe.kd_feature_weight)
        if options.int8_recipe is not None:
            task.check_recipe(self.recipe(options.int8_recipe))

    @property
    def measure(self) -> Measure:
        """What scores are, in percent."""
        task = self.dataset.task
        return Measure(task.measure, task.key)

    @property
    def about(self) -> dict[str, Any]:
        """What weights say of their images."""
        return about_images(self.options.data, self.dataset)

    def recipe(self, name: str) -> Recipe:
        """A recipe for this model, with the changes of the options."""
        from nnstretch.training.recipe_files import load_recipe, recipe_from_json

        found = load_recipe(name, self.options.model).to_json()
        # The stages of progressive resizing add up to the recipe's own epochs.
        stages: dict[str, Any] = {"scales": []} if "epochs" in self.options.changes else {}
        return recipe_from_json({**found, **stages, **self.options.changes})

    def network(self, weights: Path | None, design: Path | None = None) -> Network:
        """The model, or a branching of it. Its example input is a training image, by which the search ranks blocks."""
        import numpy as np
        import torch

        from nnstretch.cli.models.networks import NetworkOptions, build_network
        from nnstretch.training.data.unreadable import inputs_to_learn_from

        dataset, recipe = self.dataset, self.recipe(self.options.recipe)
        form = NetworkOptions(dataset.num_classes, None, dataset.channels, dataset.image_size, recipe.seed)
        network = build_network(self.options.model, form, weights)
        example = torch.from_numpy(inputs_to_learn_from(dataset.train, np.arange(1)))
        network = replace(network, example_input=example)
        check_outputs(network, dataset)
        return network if design is None else branch(network, design)

    def inherited(self, original: Candidate, name: str, design: Path) -> Network:
        """A design with weights inherited from the original, or the control of one."""
        return self._control(original, design) if name == CONTROL else self.network(original.weights, design)

    def _control(self, original: Candidate, design: Path) -> Network:
        """The original scaled in width to the design's MACs."""
        from nnstretch.branching.design.design import load_design
        from nnstretch.branching.transform.control import single_branch_control

        network, made = self.network(original.weights), load_design(design)
        module = single_branch_control(network.module, network.example_input, made.macs, made.multiple)
        return replace(network, module=module)

    def rebuilt(self, original: Candidate, candidate: Candidate, designs: Sequence[Path]) -> Network:
        """A candidate with its weights; the control is that of the first design."""
        from nnstretch.training.weights import load_weights

        if candidate.name == ORIGINAL:
            return self.network(candidate.weights)
        network = self.inherited(original, candidate.name, candidate.design or designs[0])
        load_weights(network.module, candidate.weights)
        network.module.eval()
        return network

    def graph(self, original: Candidate, candidate: Candidate, design: Path) -> ir.Model:
        """The graph of a candidate, exported once; `design` is the one that it is the control of, if it is the control."""
        if candidate.name not in self.graphs:
            self.graphs[candidate.name] = self.rebuilt(original, candidate, [design]).export()
        return self.graphs[candidate.name]
