"""A task: what training, distillation and evaluation need to know of a network's outputs and of the targets of its images.

A data set brings its task (`Dataset.task`). Nothing here needs torch, but the losses: they run in trainings only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from nnstretch.training.data.preprocessing import Preprocessing
    from nnstretch.training.recipe import Recipe

Targets = NDArray[Any]
"""Targets of a batch, first axis N; the task says what they are."""


class Scorer(ABC):
    """Compares the outputs of a network with targets, batch after batch."""

    @abstractmethod
    def add(self, outputs: Any, targets: Targets) -> None:
        """Counts a batch.

        Args:
            outputs: what the network returns, with arrays in the place of tensors.
            targets: of the same images.
        """

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Adds what another scorer of the same kind has counted, of other images."""

    @abstractmethod
    def measures(self) -> dict[str, float]:
        """All measures in percent, the task's own first, by their keys in JSON."""

    @property
    def percent(self) -> float:
        """The task's own measure."""
        return next(iter(self.measures().values()))

    def per_class(self) -> list[float | None]:
        """The task's own measure for every class; None for a class without targets. Empty if there is no such measure."""
        return []


class Task(ABC):
    """What a network is trained for.

    Attributes:
        name: as people say it.
        measure: name of the measure of a network, in percent; higher is better.
        key: of that measure in logs and JSON.
    """

    name: ClassVar[str]
    measure: ClassVar[str]
    key: ClassVar[str]

    @abstractmethod
    def check_outputs(self, outputs: Any, images: int, num_classes: int) -> None:
        """Checks the form of a network's outputs.

        Args:
            outputs: of tensors or arrays.
            images: number of images.
            num_classes: number of classes.

        Raises:
            ModelError: the network is for another task or other classes.
        """

    @abstractmethod
    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """The mean loss of a batch, a scalar with gradients; `outputs` are float32."""

    @abstractmethod
    def scorer(self, num_classes: int) -> Scorer:
        """A scorer that has counted nothing."""

    def logits(self, outputs: Any) -> Any:
        """The outputs as logits, `rows x classes`, in which a network learns from a teacher's; None if they are no logits."""
        del outputs

    @property
    def has_logits(self) -> bool:
        """Whether a network learns from a teacher's outputs: the class defines `logits`."""
        return type(self).logits is not Task.logits

    def check_teaching(self, feature_weight: float) -> None:
        """Refuses a teacher that teaches nothing.

        Args:
            feature_weight: of its feature maps.

        Raises:
            UsageError: outputs are no logits, and feature maps have no weight.
        """
        if not (self.has_logits or feature_weight > 0):
            raise UsageError(
                f"a teacher of {self.name} teaches by feature maps; set kd_feature_weight, or leave the teacher out"
            )

    def check_recipe(self, recipe: Recipe) -> None:  # noqa: B027 (classification takes all)
        """Refuses a recipe that the task cannot follow.

        Raises:
            UsageError: it has settings for other tasks.
        """


class CountedTask(Task):
    """A task for which an image is either right or wrong."""

    @abstractmethod
    def right(self, outputs: Any, labels: Tensor) -> Tensor:
        """Number of images that the network recognises, an integer scalar."""


class SpatialTask(Task):
    """A task whose targets lie in the image, such as masks and boxes: what moves pixels moves them, too.

    Targets have three forms: that of a split (`raw`), that of one input, and that of a batch (`Targets`).
    """

    _CLASSIFICATION_ONLY = ("mixup", "cutmix", "aa", "scales", "smoothing")

    @abstractmethod
    def fitted(self, raw: Any, preprocessing: Preprocessing) -> Any:
        """The target of a whole image as that of the input that `Preprocessing.pixels` makes of the image."""

    @abstractmethod
    def wrapped(self, raw: Any, library: Any) -> Any:
        """The target of a whole image or of an input, for the transforms of torchvision.

        Args:
            raw: the target.
            library: the module `torchvision.tv_tensors`.

        Returns:
            A tuple, list or dictionary with the library's tensors in it.
        """

    @abstractmethod
    def unwrapped(self, wrapped: Any) -> Any:
        """The target of one input, after the transforms have made one of its image."""

    @abstractmethod
    def collated(self, targets: Sequence[Any]) -> Targets:
        """The targets of inputs as those of a batch."""

    @abstractmethod
    def check_size(self, raw: Any, height: int, width: int) -> str:
        """Why a target cannot be that of an image of this size; empty if it can."""

    def classes_in(self, raw: Any) -> NDArray[np.int64]:
        """The classes that the target of an image has, each once; empty where the task does not say."""
        return np.empty(0, np.int64)

    @property
    def fill(self) -> int:
        """Value of masks where there is no image after a shift or rotation."""
        return 0

    def check_recipe(self, recipe: Recipe) -> None:
        """Refuses changes of images that do not move targets, or that mix them."""
        for name in self._CLASSIFICATION_ONLY:
            if getattr(recipe, name):
                raise UsageError(
                    f"recipe: {name} is {getattr(recipe, name)!r}, which is for classification; "
                    f"turn it off for {self.name}, or take the recipe dense"
                )


def as_array(tensor: Any) -> NDArray[Any]:
    """A tensor, or an array, as an array."""
    return np.asarray(tensor.detach().cpu() if hasattr(tensor, "detach") else tensor)
