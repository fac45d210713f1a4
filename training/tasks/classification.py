"""Classification: an image has one class. Outputs are logits, `N x classes`; targets are classes, int64 `N`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.errors import ModelError
from nnstretch.support.measures import TOP1
from nnstretch.training.tasks.base import CountedTask, Scorer, Targets

if TYPE_CHECKING:
    from torch import Tensor


class Classification(CountedTask):
    """Cross entropy; top-1. Targets of trainings may also be shares of classes: float `N x classes`."""

    name = "classification"
    measure, key = TOP1

    def check_outputs(self, outputs: Any, images: int, num_classes: int) -> None:
        """Checks that there is a logit per image and class."""
        shape = getattr(outputs, "shape", None)
        if shape is None or tuple(shape) != (images, num_classes):
            if shape is None:
                raise ModelError(
                    f"the network has no single output; a classifier's training and evaluation take one tensor, of "
                    f"{[images, num_classes]} here: return that alone"
                )
            raise ModelError(
                f"the network writes {list(shape)} for {images} image{'' if images == 1 else 's'} of {num_classes} "
                f"classes; {[images, num_classes]} is wanted: use the data it was made for, or give its last layer "
                f"{num_classes} outputs"
            )

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """The cross entropy."""
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets)

    def logits(self, outputs: Any) -> Any:
        """The outputs."""
        return outputs

    def right(self, outputs: Any, labels: Tensor) -> Tensor:
        """Number of images whose highest logit is that of their class."""
        found: Tensor = (outputs.argmax(dim=1) == labels).sum()
        return found

    def scorer(self, num_classes: int) -> TopOne:
        """Top-1."""
        return TopOne()


class TopOne(Scorer):
    """Share of the images whose highest logit is that of their class.

    Attributes:
        right: their number.
        images: number of images.
    """

    def __init__(self) -> None:
        self.right = 0
        self.images = 0

    def add(self, outputs: Any, targets: Targets) -> None:
        """Counts the right answers; `outputs` are `N x classes`, `targets` int64 `N`."""
        self.right += int((np.asarray(outputs).argmax(axis=1) == targets).sum())
        self.images += len(targets)

    def merge(self, other: TopOne) -> None:
        """Adds the counts."""
        self.right += other.right
        self.images += other.images

    def measures(self) -> dict[str, float]:
        """Top-1."""
        return {Classification.key: 100.0 * self.right / self.images if self.images else 0.0}


CLASSIFICATION = Classification()
"""The task of data sets that name none."""
