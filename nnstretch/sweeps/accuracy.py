"""Accuracies of designs on validation images, at three fidelities: after the block-wise start, a short and a full training."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.support.progress import Progress, silent
from nnstretch.sweeps.objectives import Fidelity
from nnstretch.sweeps.results import ResultStore, digest
from nnstretch.sweeps.space import PredictedDesign
from nnstretch.training.data.split import Dataset
from nnstretch.training.distillation.blockwise import BlockwiseStart
from nnstretch.training.distillation.blockwise_phase import BlockwisePhase
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.loop.trainer import train
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import load_weights, save_weights

_SHORT = 10  # a short training has a tenth of the recipe's epochs, and one at least
_START = 0.5  # epochs of the block-wise start where the recipe has none


@dataclass(frozen=True)
class DesignTraining:
    """Trains designs with the original network as their teacher.

    Attributes:
        original: the trained network.
        dataset: images; test images are never read.
        recipe: of the full training.
        device: that trains.
        results: where accuracies and weights are kept.
        about: what results depend on beside the design and the recipe.
        progress: called during trainings.
    """

    original: nn.Module
    dataset: Dataset
    recipe: Recipe
    device: torch.device
    results: ResultStore
    about: Mapping[str, Any]
    progress: Progress = silent

    def recipe_of(self, fidelity: Fidelity) -> Recipe:
        """The recipe of a fidelity: all designs train equally long below the last one."""
        if fidelity is Fidelity.TRAINED:
            return replace(self.recipe, blockwise_epochs=0.0)
        whole = replace(self.recipe, target_accuracy=0.0, patience=0, scales=())
        if fidelity is Fidelity.DISTILLED:
            return replace(whole, epochs=0, blockwise_epochs=self.recipe.blockwise_epochs or _START)
        short = max(1, self.recipe.epochs // _SHORT)
        scale = short / max(1, self.recipe.epochs)
        warmup, hold = self.recipe.warmup_epochs * scale, self.recipe.hold_epochs * scale
        return replace(whole, epochs=short, blockwise_epochs=0.0, warmup_epochs=warmup, hold_epochs=hold)

    def key(self, predicted: PredictedDesign, fidelity: Fidelity) -> str:
        """The name of a result."""
        design = predicted.design
        parts = {**self.about, "design": design.id, "image_size": design.image_size, "fidelity": fidelity.label}
        return digest({**parts, "data": self.dataset.name, "recipe": asdict(self.recipe_of(fidelity))})

    def __call__(self, predicted: PredictedDesign, fidelity: Fidelity) -> dict[str, float]:
        """The accuracy of a design in percent; it and its weights are kept."""
        key = self.key(predicted, fidelity)
        return self.results.get(key, lambda: {"accuracy": self._train(predicted, fidelity, key)})

    def _train(self, predicted: PredictedDesign, fidelity: Fidelity, key: str) -> float:
        """Trains a design from the weights of the block-wise start; returns its accuracy on the validation images."""
        network = build(predicted.latencies.blueprint, predicted.design)
        recipe, start = self.recipe_of(fidelity), None
        if fidelity is Fidelity.DISTILLED:
            start = BlockwisePhase(lambda: self._start(network, recipe), self.dataset.name)
        else:
            load_weights(network, self.results.weights(self.key(predicted, Fidelity.DISTILLED)))
        network.to(self.device)
        run = RunOptions(self.results.run_folder(key), resume=True, keep=0)
        result = train(network, self.dataset, recipe, self._teacher, run=run, start=start)
        save_weights(network.cpu(), self.results.weights(key), {})
        shutil.rmtree(run.folder, ignore_errors=True)
        return result.validation_score

    def _start(self, network: BranchedNetwork, recipe: Recipe) -> BlockwiseStart:
        return BlockwiseStart.of(network, self._teacher, self.dataset, recipe)

    @cached_property
    def _teacher(self) -> nn.Module:
        return self.original.to(self.device).eval()
