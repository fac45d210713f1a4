"""What networks answer on labelled images: top-k accuracies, classes one by one, and two networks on the same images.

Functions on arrays are evaluated without torch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import ModelError
from nnstretch.training.data.split import Indices, Split, batches
from nnstretch.training.evaluation.accuracy import Predict, outputs_of
from nnstretch.training.evaluation.statistics import mcnemar, wilson_interval
from nnstretch.training.tasks.classification import CLASSIFICATION

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.support.progress import Progress

RANKS = 5
"""Classes that are kept per image."""


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers.

    Attributes:
        right: images that are right.
        images: all images.
    """

    right: int
    images: int

    @property
    def percent(self) -> float:
        """The share in percent; 0 without images."""
        return 100.0 * self.right / self.images if self.images else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The share's 95 % confidence interval (Wilson), in percent."""
        low, high = wilson_interval(self.right, self.images)
        return 100.0 * low, 100.0 * high


@dataclass(frozen=True)
class ClassAccuracy:
    """Answers on the images of one class.

    Attributes:
        number: of the class.
        top1: share of its images that are right.
        answered: images of all classes that are taken for this one.
        taken_for: the other class that most of its images are taken for, and how many; None if all are right.
    """

    number: int
    top1: Accuracy
    answered: int
    taken_for: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Predictions:
    """A network's answers.

    Attributes:
        labels: class of every image: int64, `N`.
        ranked: the classes with the highest logits, the highest first: int64, `N x min(RANKS, classes)`. Of equal logits,
            that of the lower class comes first.
        num_classes: number of classes.
    """

    labels: Indices
    ranked: Indices
    num_classes: int

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Whether the highest logit is that of the image's class: `N`."""
        return np.equal(self.ranked[:, 0], self.labels)

    def top(self, k: int) -> Accuracy:
        """Share of images whose class is among the `k` first ones; `k` is 1 to RANKS."""
        found = (self.ranked[:, :k] == self.labels[:, None]).any(axis=1)
        return Accuracy(int(found.sum()), len(self.labels))

    @property
    def ranks_five(self) -> bool:
        """Whether five classes are fewer than all, so that the top-5 accuracy says something."""
        return self.num_classes > RANKS

    def per_class(self) -> list[ClassAccuracy]:
        """The answers on every class, in the order of classes."""
        shown = np.bincount(self.labels, minlength=self.num_classes)
        right = np.bincount(self.labels[self.right], minlength=self.num_classes)
        answered = np.bincount(self.ranked[:, 0], minlength=self.num_classes)
        worst: dict[int, tuple[int, int]] = {}
        for (label, answer), count in sorted(self.confusions.items()):
            if label not in worst or count > worst[label][1]:
                worst[label] = (answer, count)
        return [
            ClassAccuracy(
                number, Accuracy(int(right[number]), int(shown[number])), int(answered[number]), worst.get(number)
            )
            for number in range(self.num_classes)
        ]

    @cached_property
    def confusions(self) -> Counter[tuple[int, int]]:
        """(class, answer) -> number of images, for wrong answers."""
        wrong = ~self.right
        return Counter(zip(self.labels[wrong].tolist(), self.ranked[wrong, 0].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two networks' answers on the same images.

    Attributes:
        first, second: their answers.
    """

    first: Predictions
    second: Predictions

    def __post_init__(self) -> None:
        if not np.array_equal(self.first.labels, self.second.labels):
            raise ValueError("the predictions are not for the same images")

    @property
    def agreement(self) -> Accuracy:
        """Share of images on which both give the same answer, right or wrong."""
        same = self.first.ranked[:, 0] == self.second.ranked[:, 0]
        return Accuracy(int(same.sum()), len(same))

    @property
    def both_right(self) -> int:
        """Images that both get right."""
        return int((self.first.right & self.second.right).sum())

    @property
    def only_first(self) -> int:
        """Images that only the first network gets right."""
        return int((self.first.right & ~self.second.right).sum())

    @property
    def only_second(self) -> int:
        """Images that only the second network gets right."""
        return int((~self.first.right & self.second.right).sum())

    @property
    def both_wrong(self) -> int:
        """Images that both get wrong."""
        return int((~self.first.right & ~self.second.right).sum())

    @property
    def p_value(self) -> float:
        """McNemar's exact test: probability of such a difference, or a larger one, if both were equally good."""
        return mcnemar(self.only_first, self.only_second)

    def confusion_changes(self, most: int) -> list[tuple[int, int, int, int]]:
        """Confusions whose numbers of images differ most between the networks.

        Args:
            most: number of entries.

        Returns:
            (class, answer, images of the first network, images of the second one), the largest difference first.
        """
        before, after = self.first.confusions, self.second.confusions
        changed = [(*pair, before[pair], after[pair]) for pair in {*before, *after} if before[pair] != after[pair]]
        return sorted(changed, key=lambda row: (-abs(row[3] - row[2]), -max(row[2:]), row[:2]))[:most]


def predict(
    network: nn.Module | Predict, split: Split, num_classes: int, batch: int = 32, progress: Progress | None = None
) -> Predictions:
    """The answers of a network on all images of `split`, in their order.

    Args:
        network: a module or a function, as `evaluation.top1` takes it.
        split: labelled images.
        num_classes: number of classes.
        batch: images per call.
        progress: called after every batch.

    Raises:
        ModelError: the logits have the wrong shape, or are not numbers.
    """
    logits = outputs_of(network, batch)
    ranked: list[Indices] = []
    done = 0
    for images, labels in batches(split, batch):
        found = logits(images)
        CLASSIFICATION.check_outputs(found, len(images), num_classes)
        if np.isnan(found).any():
            image = done + int(np.isnan(found).any(axis=1).argmax())
            raise ModelError(
                f"the network writes logits that are not numbers for image {image}; "
                "look for values that are not finite in its weights"
            )
        ranked.append(np.argsort(-found.astype(np.float64), axis=1, kind="stable")[:, :RANKS])
        done += len(labels)
        if progress is not None:
            progress(done, len(split), "evaluating")
    rows = np.concatenate(ranked) if ranked else np.zeros((0, min(RANKS, num_classes)), np.int64)
    return Predictions(np.asarray(split.labels), rows, num_classes)
