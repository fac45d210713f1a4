"""What commands and jobs that train have in common: the images, the block-wise start, progress."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import UsageError
from nnstretch.support.image_size import ImageSize
from nnstretch.support.progress import Progress, silent

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.branching.transform.network import BranchedNetwork
    from nnstretch.cli.models.networks import Network
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.distillation.blockwise_phase import BlockwisePhase
    from nnstretch.training.loop.events import TrainingEvent, TrainingResult
    from nnstretch.training.recipe import Recipe

_SPINS = "3000"  # of GNU's OpenMP, which torch brings on Linux: some 0.1 ms


def let_idle_threads_sleep() -> None:
    """Lets OpenMP's idle threads spin briefly, then sleep, unless the environment says how; must run before torch is loaded.

    Threads that spin for milliseconds make torch's work many times slower where other work shares their cores, and threads that
    sleep at once wake up too late, hundreds of times per step: a step of a ResNet-18 on 16 images of 48×48 takes 174 ms on two
    quiet cores, 147 ms with `_SPINS`, and 140 ms with ever more. Not where torch itself is timed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def training_images(
    data: str,
    model: str,
    recipe: Recipe,
    *,
    image_size: ImageSize | None = None,
    weights: Path | None = None,
    design: Path | None = None,
    teacher: Path | None = None,
    progress: Progress = silent,
) -> Dataset:
    """The images of a training, looked at as `nnstretch.training.data.checks` does it.

    Args:
        data: as `load_dataset` reads it.
        model: zoo name, `module.py:factory`, or an ONNX or TFLite file.
        recipe: of the training.
        image_size: of the images; None: that of the weights, the design, the file or factory, or the recipe, in this
            order.
        weights: of the network, whose preprocessing the images get.
        design: a file.
        teacher: weights, whose preprocessing the images get if those of the network, or its file, state none.
        progress: called with the number of images that were looked at.

    Raises:
        NNStretchError: the images or a file cannot be read, or they do not fit each other.
    """
    from nnstretch.cli.models.networks import known_options, known_preprocessing, preprocessing_of_file, read_about
    from nnstretch.frontends.resolve import stated_image_size, stated_input_shape
    from nnstretch.training.data import load_dataset
    from nnstretch.training.data.checks import checked

    about = read_about(weights) if weights else {}
    shape = stated_input_shape(model)
    size = image_size or known_options(about, design).image_size or stated_image_size(shape)
    stated = known_preprocessing(about, str(weights)) or preprocessing_of_file(model)
    if stated is None and teacher is not None:
        stated = known_preprocessing(read_about(teacher), str(teacher))
    channels = shape[1] if len(shape) == 4 and shape[1] else None
    dataset = load_dataset(data, size or recipe.image_size, channels, crop_pct=recipe.crop_pct, preprocessing=stated)
    return checked(dataset, recipe.workers, progress)


def check_outputs(network: Network, dataset: Dataset) -> None:
    """Checks that a network fits the classes of its images, before anything is written.

    Args:
        network: that will be trained, on the CPU and in evaluation mode.
        dataset: its images.

    Raises:
        ModelError: it does not.
    """
    import torch

    with torch.no_grad():
        outputs = network.module(network.example_input)
    dataset.task.check_outputs(outputs, len(network.example_input), dataset.num_classes)


def with_given_head(dataset: Dataset, head: str | None) -> Dataset:
    """The data set with the head of `--head`, if there is one.

    Raises:
        UsageError: the data set has no boxes, or there is no such head.
    """
    if head is None:
        return dataset
    from nnstretch.training.tasks.detection import Detection, with_head

    if not isinstance(dataset.task, Detection):
        raise UsageError(f"--head is for detection; {dataset.name} is for {dataset.task.name}")
    return replace(dataset, task=with_head(dataset.task, head, dataset.num_classes, dataset.image_size))


def check_classification(dataset: Dataset, what: str) -> None:
    """Refuses data sets of other tasks.

    Args:
        dataset: the images.
        what: works with classification only, as the subject of a sentence.

    Raises:
        UsageError: it is for another task.
    """
    from nnstretch.training.tasks.base import CountedTask

    if not isinstance(dataset.task, CountedTask):
        raise UsageError(
            f"{what} is for classification, and {dataset.name} for {dataset.task.name}; use nnstretch train, stretch and "
            "evaluate, step by step"
        )


def about_images(data: str, dataset: Dataset) -> dict[str, Any]:
    """What weights say of the images that they were trained on."""
    return {"data": data, "preprocessing": dataset.preprocessing.to_object(), "classes": list(dataset.class_names)}


def blockwise_phase(
    module: BranchedNetwork, teacher: nn.Module, images: Dataset, recipe: Recipe, advance: Progress
) -> BlockwisePhase:
    """The start of a training in which the segments learn side by side."""
    from nnstretch.training.distillation.blockwise import BlockwiseStart
    from nnstretch.training.distillation.blockwise_phase import BlockwisePhase

    def show_step(step: int, steps: int, loss: float) -> None:
        advance(step, steps, f"segments side by side, loss {loss:.3f}")

    return BlockwisePhase(
        lambda: BlockwiseStart.of(module, teacher, images, recipe), images.name, show_step, images.image_size
    )


def quantised(network: Network, dataset: Dataset, recipe: Recipe, advance: Progress) -> Network:
    """A trained network with the roundings of its int8 file, on its device; itself if it has them.

    Raises:
        NNStretchError: it cannot be quantised.
    """
    from nnstretch.training.quantization import QuantizedNetwork, quantization_aware

    if isinstance(network.module, QuantizedNetwork):
        return network
    device = next(network.module.parameters()).device
    network.module.cpu()
    made = quantization_aware(network.export(), dataset, recipe, progress=advance)
    return replace(network, module=made.to(device))


def on_chosen_epoch(result: TrainingResult, kept: Path) -> str:
    """Says which epoch's weights are the result if not the last one's, or that others were better; else empty.

    Args:
        result: of the training.
        kept: the file with the weights of the best evaluation.
    """
    start, best = result.start_score, result.best_score
    last = len(result.history)
    if result.history and start is not None and start > result.validation_score:
        return (
            f"the training made the network worse: {result.measure} {start:.2f} % of the validation images before its first "
            f"epoch, {result.validation_score:.2f} % after epoch {result.epoch} of {last}; give a lower --lr (a tenth of it "
            "where the network has no batch normalisation), or more --epochs or images"
        )
    if result.epoch < last:
        return (
            f"epoch {result.epoch} of {last} was the best on the validation images, and these are its weights; "
            "--checkpoint last gives those of the last epoch"
        )
    scores = [record.validation_score or 0.0 for record in result.history[:-1]]
    if best is not None and max(scores, default=0.0) > result.validation_score:
        return f"an earlier epoch had {result.measure} {best:.2f} % of the validation images; its weights are in {kept}"
    return ""


def event_shown(advance: Progress) -> Callable[[TrainingEvent], None]:
    """What shows the events of a training as progress."""

    def show(event: TrainingEvent) -> None:
        left = event.seconds / max(1, event.step) * (event.steps - event.step)
        said = f"{event.images_per_second:.0f} images/s, {timedelta(seconds=round(left))} left"
        if event.validation_score is not None:
            said = f"{event.measure} {event.validation_score:.1f} %"
        advance(event.step, event.steps, f"{event.epoch}/{event.epochs}, loss {event.loss:.3f}, {said}")

    return show
