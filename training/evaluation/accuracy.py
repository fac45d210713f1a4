"""What networks reach on the images of a split. Functions on arrays are evaluated without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from nnstretch.training.data.preprocessing import Images
from nnstretch.training.data.split import Dataset, Split, batches
from nnstretch.training.tasks.base import Scorer, Task
from nnstretch.training.tasks.classification import CLASSIFICATION

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.support.progress import Progress

Predict = Callable[[Images], Any]
"""From inputs to what a network returns: an array, or a tuple of arrays."""


def top1(network: nn.Module | Predict, split: Split, num_classes: int, batch: int = 32) -> float:
    """Share of the images of ``split`` whose highest logit is that of their class, in percent.

    Args:
        network: a module, run in evaluation mode, without gradients and on its own device; or any function from a
            float32 array ``batch x C x H x W`` to logits ``batch x classes``, such as a session's ``run``. A function
            always gets whole batches: the last one is filled up with repeated images that do not count.
        split: labelled images: the validation split to select something, the test split to report accuracy.
        num_classes: number of classes.
        batch: images per call.

    Raises:
        ModelError: the logits have the wrong shape.
    """
    counted = _counted(network, split, CLASSIFICATION, num_classes, batch)
    return counted.percent


def scored(
    network: nn.Module | Predict, split: Split, dataset: Dataset, batch: int = 32, progress: Progress | None = None
) -> Scorer:
    """What a network reaches on the images of a split, by the task of the data set.

    Args:
        network: as `top1` takes it, with what the task wants as outputs.
        split: images with targets.
        dataset: its task and number of classes.
        batch: images per call.
        progress: called after every batch.

    Raises:
        ModelError: the outputs have the wrong form.
    """
    return _counted(network, split, dataset.task, dataset.num_classes, batch, progress)


def _counted(
    network: nn.Module | Predict,
    split: Split,
    task: Task,
    num_classes: int,
    batch: int,
    progress: Progress | None = None,
) -> Scorer:
    outputs, scorer = outputs_of(network, batch), task.scorer(num_classes)
    done = 0
    for images, targets in batches(split, batch):
        found = outputs(images)
        task.check_outputs(found, len(images), num_classes)
        scorer.add(found, targets)
        done += len(images)
        if progress is not None:
            progress(done, len(split), "evaluating")
    return scorer


def outputs_of(network: nn.Module | Predict, batch: int) -> Predict:
    """A function from up to `batch` images to their outputs, float32 arrays with one row for each image.

    Args:
        network: a module or a function, as `top1` takes it.
        batch: images per call of a function.
    """
    return _module_outputs(network) if _is_module(network) else _function_outputs(network, batch)


def _is_module(network: nn.Module | Predict) -> TypeGuard[nn.Module]:
    torch = sys.modules.get("torch")  # a caller who has a module has loaded it
    return torch is not None and isinstance(network, torch.nn.Module)


def _module_outputs(module: nn.Module) -> Predict:
    import torch
    from torch.utils import _pytree

    from nnstretch.frontends.modes import evaluating

    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))

    def outputs(images: Images) -> Any:
        with evaluating(module), torch.inference_mode():
            found = module(torch.from_numpy(images).to(device))
            return _pytree.tree_map(lambda value: value.float().cpu().numpy(), found)

    return outputs


def _function_outputs(predict: Predict, batch: int) -> Predict:
    def outputs(images: Images) -> Any:
        count = len(images)
        if count < batch:
            images = images[np.arange(batch) % count]
        found = predict(np.ascontiguousarray(images))
        if isinstance(found, tuple):
            return tuple(np.asarray(one)[:count] for one in found)
        return np.asarray(found)[:count]

    return outputs
