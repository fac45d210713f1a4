"""Data sets: training, validation and test images, and what they are images of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from nnstretch.errors import UsageError
from nnstretch.support.image_size import ImageSize, as_image_size
from nnstretch.training.data.preprocessing import Preprocessing
from nnstretch.training.data.split.base import Split
from nnstretch.training.data.split.raw import RawImages
from nnstretch.training.tasks.base import Task
from nnstretch.training.tasks.classification import CLASSIFICATION


@dataclass(frozen=True)
class Dataset:
    """A data set.

    Attributes:
        name: the text that :func:`load_dataset` read.
        num_classes: number of classes; labels are 0 … ``num_classes - 1``.
        channels: channels of an image.
        image_size: of the inputs.
        class_names: names of the classes.
        mean, std: statistics of the normalisation of pixels (0 … 1), per channel.
        train: images to learn from, and to calibrate with.
        validation: images for everything that selects: early stopping, bounds, comparisons of settings.
        test: images for the accuracy that is reported. Nothing may be selected by them.
        note: how the splits were made, if the data set does not fix them; one line, or empty.
        crop_pct, interpolation: the rest of the preprocessing (`Preprocessing`).
        task: what networks are trained for, and what the targets are.

    The three splits are disjoint.
    """

    name: str
    num_classes: int
    channels: int
    image_size: ImageSize
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: Split
    validation: Split
    test: Split
    note: str = ""
    crop_pct: float = 1.0
    interpolation: str = "bilinear"
    task: Task = CLASSIFICATION

    def __post_init__(self) -> None:
        """Takes a list of height and width, too."""
        object.__setattr__(self, "image_size", as_image_size(self.image_size))

    @property
    def preprocessing(self) -> Preprocessing:
        """From a whole image to an input."""
        rest = self.crop_pct, self.interpolation
        return Preprocessing(self.image_size, self.channels, self.mean, self.std, *rest)

    def preprocessed(self, preprocessing: Preprocessing) -> Dataset:
        """The same images with another preprocessing.

        Raises:
            UsageError: images that lie preprocessed in memory do not allow it.
        """
        if preprocessing == self.preprocessing:
            return self
        values: dict[str, Any] = {one.name: getattr(preprocessing, one.name) for one in fields(preprocessing)}
        for name in ("train", "validation", "test"):
            split = getattr(self, name)
            if not hasattr(split, "preprocessed"):
                raise UsageError(f"the images of {self.name} cannot be given another preprocessing; it has its own")
            values[name] = split.preprocessed(preprocessing)
        return replace(self, **values)


def dataset_of(
    name: str,
    class_names: tuple[str, ...],
    splits: Sequence[RawImages],
    note: str = "",
    task: Task = CLASSIFICATION,
) -> Dataset:
    """A data set of whole images.

    Args:
        name: of the data set.
        class_names: names of the classes.
        splits: training, validation and test images, with the same preprocessing.
        note: how the splits were made.
        task: what networks are trained for.
    """
    train, validation, test = splits
    one = train.preprocessing
    return Dataset(
        name=name,
        num_classes=len(class_names),
        channels=one.channels,
        image_size=one.image_size,
        class_names=class_names,
        mean=one.mean,
        std=one.std,
        train=train,
        validation=validation,
        test=test,
        note=note,
        crop_pct=one.crop_pct,
        interpolation=one.interpolation,
        task=task,
    )
