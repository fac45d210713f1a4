"""Accuracies of designs on validation images, at three fidelities: after the block-wise start, a short and a full training."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.graph.int8_form import INT8
from nnstretch.sweeps.measures.quantizer import Quantizer
from nnstretch.sweeps.measures.results import ResultStore, digest
from nnstretch.sweeps.objectives import Fidelity
from nnstretch.sweeps.space import PredictedDesign
from nnstretch.sweeps.workers.turns import Turns
from nnstretch.training.data.split import Dataset
from nnstretch.training.distillation.blockwise import BlockwiseStart
from nnstretch.training.distillation.blockwise_phase import BlockwisePhase
from nnstretch.training.evaluation.accuracy import top1
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.loop.trainer import train
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import load_weights, save_weights

_SHORT = 10  # a short training has a tenth of the recipe's epochs, and one at least
_TRAININGS = (Fidelity.DISTILLED, Fidelity.FINETUNED, Fidelity.TRAINED)
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
        turns: trainings wait while another process of this machine measures.
        quantizer: of designs in int8; None: there are none.
    """

    original: nn.Module
    dataset: Dataset
    recipe: Recipe
    device: torch.device
    results: ResultStore
    about: Mapping[str, Any]
    turns: Turns = field(default_factory=Turns)
    quantizer: Quantizer | None = None

    def recipe_of(self, fidelity: Fidelity) -> Recipe:
        """The recipe of a fidelity, which goes on from the weights of the one before.

        The short and the full training together have the recipe's epochs. All designs train equally long below the full one.
        """
        recipe = self.recipe
        short = min(recipe.epochs, max(1, recipe.epochs // _SHORT))
        if fidelity is Fidelity.TRAINED:
            whole, epochs = replace(recipe, scales=()), recipe.epochs - short
        else:
            whole = replace(recipe, target_accuracy=0.0, patience=0, scales=())
            epochs = short
        if fidelity is Fidelity.DISTILLED:
            return replace(whole, epochs=0, blockwise_epochs=recipe.blockwise_epochs or _START)
        share = epochs / max(1, recipe.epochs)
        return replace(
            whole,
            epochs=epochs,
            blockwise_epochs=0.0,
            warmup_epochs=recipe.warmup_epochs * share,
            hold_epochs=recipe.hold_epochs * share,
            scales=_scales_after(recipe, short) if fidelity is Fidelity.TRAINED else (),
            mixup_off_epoch=_mixing_after(recipe, short) if fidelity is Fidelity.TRAINED else recipe.mixup_off_epoch,
        )

    def key(self, predicted: PredictedDesign, fidelity: Fidelity) -> str:
        """The name of a result: of the design, the images, and the recipes up to this fidelity."""
        design = predicted.design
        parts = {**self.about, "design": design.id, "image_size": design.image_size, "fidelity": fidelity.label}
        recipes = [asdict(self.recipe_of(one)) for one in _TRAININGS if one <= fidelity]
        return digest({**parts, "data": self.dataset.name, "recipes": recipes})

    def __call__(self, predicted: PredictedDesign, fidelity: Fidelity) -> dict[str, float]:
        """The accuracy of a design in percent; it and its weights are kept.

        The same training in float32 serves a design in any type: one in int8 is quantised after it.
        """
        key = self.key(predicted, fidelity)
        found = self.results.get(
            key, lambda: {"accuracy": self._train(predicted, fidelity, key)}, self.results.weights(key)
        )
        if predicted.dtype != INT8:
            return found
        return self.results.get(f"{key}.{INT8}", lambda: {"accuracy": self._quantized(predicted, key)})

    def of_original(self) -> dict[str, float]:
        """The accuracy of the original in percent, with the weights that it came with; it is kept."""
        key = digest({**self.about, "design": "original", "data": self.dataset.name})
        return self.results.get(key, lambda: {"accuracy": self._evaluated()})

    def _evaluated(self) -> float:
        """The accuracy of the original on the validation images."""
        with self.turns.beside_others():
            return top1(self._teacher, self.dataset.validation, self.dataset.num_classes)

    def _quantized(self, predicted: PredictedDesign, key: str) -> float:
        """The accuracy of a trained design after it is quantised."""
        assert self.quantizer is not None
        blueprint = predicted.latencies.blueprint
        network = build(blueprint, predicted.design)
        load_weights(network, self.results.weights(key))
        with self.turns.beside_others():
            return self.quantizer.accuracy(network.eval(), blueprint.traced.example_input)

    def _train(self, predicted: PredictedDesign, fidelity: Fidelity, key: str) -> float:
        """Trains a design from the weights of the fidelity before; returns its accuracy on the validation images.

        Processes that wait to measure do so between two steps.
        """
        network = build(predicted.latencies.blueprint, predicted.design)
        recipe = self.recipe_of(fidelity)
        before = _TRAININGS.index(fidelity) - 1
        if before >= 0:
            load_weights(network, self.results.weights(self.key(predicted, _TRAININGS[before])))
        network.to(self.device)
        run = RunOptions(self.results.run_folder(key), resume=True, keep=0)
        with self.turns.beside_others() as pause:
            start = None
            if fidelity is Fidelity.DISTILLED:
                start = BlockwisePhase(
                    lambda: self._start(network, recipe), self.dataset.name, pause, self.dataset.image_size
                )
            result = train(network, self.dataset, recipe, self._teacher, progress=pause, run=run, start=start)
        save_weights(network.cpu(), self.results.weights(key), {})
        shutil.rmtree(run.folder, ignore_errors=True)
        return result.validation_score

    def _start(self, network: BranchedNetwork, recipe: Recipe) -> BlockwiseStart:
        return BlockwiseStart.of(network, self._teacher, self.dataset, recipe)

    @cached_property
    def _teacher(self) -> nn.Module:
        return self.original.to(self.device).eval()


def _mixing_after(recipe: Recipe, epochs: int) -> int:
    """The epoch from which on images are not mixed, counted from after the first `epochs`; 0: they always are."""
    return max(1, recipe.mixup_off_epoch - epochs) if recipe.mixup_off_epoch else 0


def _scales_after(recipe: Recipe, epochs: int) -> tuple[tuple[int, float], ...]:
    """Scales of a recipe's images after its first epochs."""
    each = [scale for count, scale in recipe.scales for _ in range(count)][epochs:]
    return tuple((len(list(group)), scale) for scale, group in itertools.groupby(each))
