"""Top-1 accuracy of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nnstretch.errors import ModelError
from nnstretch.training.data.split import Dataset, batches

Predict = Callable[[NDArray[np.float32]], NDArray[Any]]


def top1(network: nn.Module | Predict, dataset: Dataset, batch: int = 32) -> float:
    """Share of the test images whose highest logit is that of their class, in percent.

    Args:
        network: a module, run in evaluation mode, without gradients and on its own device; or any function from a
            float32 array ``batch x C x S x S`` to logits ``batch x classes``, such as a session's ``run``. A function
            always gets whole batches: the last one is filled up with repeated images that do not count.
        dataset: whose ``test`` is used.
        batch: images per call.

    Raises:
        ModelError: the logits have the wrong shape.
    """
    logits = _module_logits(network) if isinstance(network, nn.Module) else _function_logits(network, batch)
    right = 0
    for images, labels in batches(dataset.test, batch):
        found = logits(images)
        if found.shape != (len(images), dataset.num_classes):
            raise ModelError(
                f"the network writes {list(found.shape)} for {len(images)} images of {dataset.num_classes} "
                f"classes; {[len(images), dataset.num_classes]} is wanted: use the data it was made for"
            )
        right += int((found.argmax(dim=1) == labels).sum())
    return 100.0 * right / len(dataset.test)


def _module_logits(module: nn.Module) -> Callable[[Tensor], Tensor]:
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))

    def logits(images: Tensor) -> Tensor:
        was_training = module.training
        module.eval()
        try:
            with torch.inference_mode():
                found: Tensor = module(images.to(device)).float().cpu()
        finally:
            module.train(was_training)
        return found

    return logits


def _function_logits(predict: Predict, batch: int) -> Callable[[Tensor], Tensor]:
    def logits(images: Tensor) -> Tensor:
        count = len(images)
        if count < batch:
            images = images[torch.arange(batch) % count]
        found = np.asarray(predict(np.ascontiguousarray(images.numpy())))
        return torch.from_numpy(found.astype(np.float32))[:count]

    return logits
