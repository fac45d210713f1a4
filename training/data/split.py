"""Splits of labelled images, and data sets.

Inputs are float32 ``N x C x H x W`` arrays, normalised (`training.data.preprocessing`). Nothing here needs torch, but the
images as tensors do: ONNX models are calibrated and evaluated without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import FileError, UsageError
from nnstretch.support.image_size import ImageSize, as_image_size
from nnstretch.training.data.preprocessing import Images, Pixels, Preprocessing, normalise
from nnstretch.training.tasks.base import SpatialTask, Targets, Task
from nnstretch.training.tasks.classification import CLASSIFICATION

if TYPE_CHECKING:
    from torch import Tensor

Indices = NDArray[np.int64]
"""Positions of images in a split, or classes of images: ``N``."""

_DECODER_THREADS = 4
_NAMED_FILES = 3
_HELD_OUT_SHARE = 0.1
"""Share of the training images that validate, and of those that test, where the data set has no such images."""


class UnreadableImageError(FileError):
    """An image that cannot be decoded. Its message is the image's name and the reason, such as ``a/1.jpg (truncated)``."""


class UnreadableImagesError(FileError):
    """Images of a batch that cannot be decoded, or their targets. Its message names the first few."""


class Split(Protocol):
    """Labelled images with access by index."""

    @property
    def labels(self) -> Indices:
        """The class of every image: int64, ``N``."""

    def __len__(self) -> int:
        """Number of images."""

    def arrays(self, indices: Indices) -> Images:
        """The images at ``indices`` as inputs: ``len(indices) x C x H x W``, contiguous, the caller's to change."""

    def images(self, indices: Tensor) -> Tensor:
        """`arrays` as a tensor; ``indices`` are int64, on the CPU."""

    def targets(self, indices: Indices) -> Targets:
        """What outputs for the images at ``indices`` are compared to: the labels, or what the data set's task says."""

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index`` before it is resized and cropped: uint8 ``H x W x C``, 1 or 3 channels, not to be changed.

        A split that generates images has others in every ``epoch`` (from 0).
        """


class TensorImages:
    """Base class of splits: gives their images as tensors."""

    @property
    def in_memory(self) -> bool:
        """Whether an image costs so little that no other process should load it."""
        return False

    def image_name(self, index: int) -> str:
        """What messages call the image at ``index``: its file, or else its number."""
        return str(index)

    def images(self: Split, indices: Tensor) -> Tensor:
        """`arrays` as a tensor; ``indices`` are int64, on the CPU."""
        import torch

        return torch.from_numpy(self.arrays(indices.numpy()))

    def targets(self: Split, indices: Indices) -> Targets:
        """The labels at ``indices``."""
        return self.labels[indices]

    def raw(self, index: int, epoch: int) -> Pixels:
        """Refuses: the split has preprocessed images only."""
        raise UsageError(
            "these images are preprocessed already; train without scale, aa and color_jitter, which need whole images"
        )


class RawImages(TensorImages):
    """Base class of splits that are whole images and a preprocessing. A subclass is a frozen dataclass and defines `raw`.

    Attributes:
        labels: the class of every image.
        preprocessing: makes inputs of them.
    """

    labels: Indices
    preprocessing: Preprocessing

    @property
    def may_be_unreadable(self) -> bool:
        """Whether `raw` can fail: the images are decoded."""
        return True

    def __len__(self) -> int:
        return len(self.labels)

    def class_text(self, index: int) -> str:
        """The class of an image, as messages name it."""
        return f"class {self.labels[index]}"

    def arrays(self, indices: Indices) -> Images:
        """The images at ``indices`` as inputs: ``len(indices) x C x height x width``.

        Raises:
            UnreadableImagesError: images that cannot be decoded; the first few are named.
        """
        if self.in_memory or len(indices) < 2:
            decoded = [self._pixels(index) for index in indices.tolist()]
        else:
            with ThreadPoolExecutor(_DECODER_THREADS) as pool:
                decoded = list(pool.map(self._pixels, indices.tolist()))
        bad = [outcome for outcome in decoded if isinstance(outcome, str)]
        if bad:
            raise UnreadableImagesError(f"cannot read {names(bad, '; ')}; replace or remove what is no whole image")
        shape = *self.preprocessing.shape, self.preprocessing.channels
        pixels = np.stack(decoded) if decoded else np.empty((0, *shape), np.uint8)
        return self.preprocessing.normalised(pixels)

    def target(self, index: int, epoch: int) -> Any:
        """The target of the whole image at ``index``: its label, or what the data set's task says.

        Raises:
            UnreadableImageError: it cannot be read.
        """
        return int(self.labels[index])

    @property
    def spatial_task(self) -> SpatialTask | None:
        """What says what the targets are, if they lie in the images."""
        return None

    @property
    def has_headers(self) -> bool:
        """Whether `header_fault` finds targets that do not fit their images."""
        return False

    def header_fault(self, index: int) -> str:
        """Why the target of the image at ``index`` cannot be its own, as the headers of files say; empty if it can.

        Raises:
            UnreadableImageError: a header cannot be read.
        """
        return ""

    def _pixels(self, index: int) -> Pixels | str:
        """``height x width x C`` pixels, or the image's name and why it cannot be read."""
        try:
            return self.preprocessing.pixels(self.raw(index, 0))
        except UnreadableImageError as error:
            return str(error)

    def preprocessed(self, preprocessing: Preprocessing) -> RawImages:
        """The same images with another preprocessing."""
        return replace(self, preprocessing=preprocessing)  # type: ignore[type-var]

    def subset(self, indices: Indices) -> SubsetSplit:
        """The split of the images at ``indices``."""
        return SubsetSplit(self, indices, self.labels[indices], self.preprocessing)


class ImagesInMemory(RawImages):
    """Base class of splits whose images need no decoding: reading them costs little and cannot fail."""

    @property
    def in_memory(self) -> bool:
        """They are."""
        return True

    @property
    def may_be_unreadable(self) -> bool:
        """They cannot."""
        return False


@dataclass(frozen=True, eq=False)
class SubsetSplit(RawImages):
    """Some images of a split.

    Attributes:
        whole: the split.
        indices: of the images in it.
        labels: the class of every image.
        preprocessing: makes inputs of them.
    """

    whole: RawImages
    indices: Indices
    labels: Indices
    preprocessing: Preprocessing

    @property
    def in_memory(self) -> bool:
        """Whether an image costs so little that no other process should load it."""
        return self.whole.in_memory

    @property
    def may_be_unreadable(self) -> bool:
        """Whether `raw` can fail."""
        return self.whole.may_be_unreadable

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``."""
        return self.whole.raw(int(self.indices[index]), epoch)

    def image_name(self, index: int) -> str:
        """That of the image in the whole split."""
        return self.whole.image_name(int(self.indices[index]))

    def class_text(self, index: int) -> str:
        """As in the whole split."""
        return self.whole.class_text(int(self.indices[index]))

    def target(self, index: int, epoch: int) -> Any:
        """The target of the image at ``index``."""
        return self.whole.target(int(self.indices[index]), epoch)

    @property
    def spatial_task(self) -> SpatialTask | None:
        """That of the whole split."""
        return self.whole.spatial_task

    @property
    def has_headers(self) -> bool:
        """Whether the whole split has."""
        return self.whole.has_headers

    def header_fault(self, index: int) -> str:
        """What the whole split says."""
        return self.whole.header_fault(int(self.indices[index]))

    def targets(self, indices: Indices) -> Targets:
        """The targets of the inputs at ``indices``."""
        return self.whole.targets(self.indices[indices])

    def preprocessed(self, preprocessing: Preprocessing) -> SubsetSplit:
        """The same images with another preprocessing."""
        return replace(self, whole=self.whole.preprocessed(preprocessing), preprocessing=preprocessing)


@dataclass(frozen=True)
class ArraySplit(TensorImages):
    """Inputs held in memory.

    Attributes:
        pixels: the inputs.
        labels: their classes.
        preprocessing: that made them; None where it is not known.
    """

    pixels: Images
    labels: Indices
    preprocessing: Preprocessing | None = None

    @property
    def in_memory(self) -> bool:
        """It is."""
        return True

    def __len__(self) -> int:
        return len(self.labels)

    def arrays(self, indices: Indices) -> Images:
        """The images at ``indices``."""
        return np.take(self.pixels, indices, axis=0)

    def raw(self, index: int, epoch: int) -> Pixels:
        """The image at ``index``, of the size that inputs have."""
        if self.preprocessing is None:
            return super().raw(index, epoch)
        whole: Pixels = self.preprocessing.denormalised(self.pixels[index : index + 1])[0]
        return whole

    def preprocessed(self, preprocessing: Preprocessing) -> ArraySplit:
        """The same images with another preprocessing: the inputs so far are taken for whole images.

        Raises:
            UsageError: the preprocessing so far is not known.
        """
        before = self.preprocessing
        if before is None:
            raise UsageError("images in memory without a preprocessing cannot be given another one")
        if before == preprocessing:
            return self
        if replace(before, mean=preprocessing.mean, std=preprocessing.std) == preprocessing:
            mean, std = (np.array(values, np.float32).reshape(1, -1, 1, 1) for values in (before.mean, before.std))
            pixels = normalise(self.pixels * std + mean, preprocessing.mean, preprocessing.std)
        else:
            whole = before.denormalised(self.pixels)
            pixels = preprocessing.normalised(np.stack([preprocessing.pixels(image) for image in whole]))
        return ArraySplit(pixels, self.labels, preprocessing)


@dataclass(frozen=True, eq=False)
class SpatialImages(RawImages):
    """Base class of splits with targets that lie in the images. A subclass defines `raw` and `target`.

    Attributes:
        preprocessing: makes inputs of the images.
        task: says what the targets are.
        labels: 0 for every image.
    """

    preprocessing: Preprocessing
    task: SpatialTask
    labels: Indices

    @property
    def spatial_task(self) -> SpatialTask:
        """The task."""
        return self.task

    def targets(self, indices: Indices) -> Targets:
        """The targets of the inputs at ``indices``.

        Raises:
            UnreadableImagesError: targets that cannot be read; the first few are named.
        """
        found, bad = [], []
        for index in indices.tolist():
            try:
                found.append(self.task.fitted(self.target(index, 0), self.preprocessing))
            except UnreadableImageError as error:
                bad.append(str(error))
        if bad:
            raise UnreadableImagesError(f"cannot read {names(bad, '; ')}; replace or remove them")
        return self.task.collated(found)


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


def held_out(
    train: RawImages, given: Mapping[str, RawImages], split_seed: int, source: str
) -> tuple[tuple[RawImages, RawImages, RawImages], str]:
    """Training, validation and test images where the data set may lack some of them.

    Where one of two is given, it is the test split, as with ImageNet, and the validation split is a stratified share of the
    training images. Where none is given, so is the test split.

    Args:
        train: all images to learn from.
        given: the other splits by name, in this order: validation, `test`.
        split_seed: draws the shares.
        source: the data set, for the note.

    Returns:
        The three splits, and how they were made in one line; empty if all were given.
    """
    if len(given) == 2:
        validation, test = given.values()
        return (train, validation, test), ""
    absent = "val and test"
    said = ""
    if given:
        ((name, test),) = given.items()
        said, absent = f"{name} is the test split; ", "val" if name == "test" else "test"
    else:
        kept, chosen = stratified_split(train.labels, _HELD_OUT_SHARE, split_seed + 1, at_least=1)
        train, test = train.subset(kept), train.subset(chosen)
    kept, chosen = stratified_split(train.labels, _HELD_OUT_SHARE, split_seed, at_least=1)
    train, validation = train.subset(kept), train.subset(chosen)
    also = "" if given else f" and {len(test)} the test split"
    note = f"{said}{len(validation)} of the training images are the validation split{also}"
    return (train, validation, test), f"{source}: {note} (add {absent} to choose them)"


def batches(split: Split, batch: int) -> Iterator[tuple[Images, Targets]]:
    """All images and targets of ``split`` in order, ``batch`` at a time; the last batch may be smaller."""
    if batch < 1:
        raise UsageError(f"a batch of {batch} images was asked for; give 1 or more")
    for start in range(0, len(split), batch):
        indices = np.arange(start, min(start + batch, len(split)))
        yield split.arrays(indices), split.targets(indices)


def image_names(split: Split, indices: Indices, most: int) -> str:
    """What messages call the first images at ``indices``, on one line: their files, where the split has files.

    Args:
        split: with the images; a split without `image_name` has numbers alone.
        indices: of the images.
        most: that are named; `` …`` stands for the others.
    """
    named = getattr(split, "image_name", str)
    return ", ".join(named(index) for index in indices[:most].tolist()) + (" …" if len(indices) > most else "")


def names(things: Sequence[str], separator: str = ", ", most: int = _NAMED_FILES) -> str:
    """The first few of many names and how many more there are, on one line."""
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return f"{separator.join(things[:most])}{more}"


def stratified_split(labels: Indices, share: float, seed: int, at_least: int = 0) -> tuple[Indices, Indices]:
    """Splits images into two sets with the same shares of classes.

    Args:
        labels: the class of every image.
        share: share of every class that goes to the second set.
        seed: of the draw.
        at_least: minimum number of images of a class in the second set. With 1 or more, the first set keeps at least
            one image of every class.

    Returns:
        Indices of the first and of the second set, both ascending.
    """
    # The legacy generator: its numbers are the same in every version of numpy, so no network is ever tested on images
    # that another version gave it for training.
    generator = np.random.RandomState(seed % 2**32)
    in_second = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = round(share * len(members))
        if at_least:
            count = min(max(count, at_least), len(members) - 1)
        in_second[members[_shuffled(len(members), generator)[:count]]] = True
    return np.flatnonzero(~in_second), np.flatnonzero(in_second)


def _shuffled(count: int, generator: np.random.RandomState) -> list[int]:
    """0 … ``count - 1`` in random order: the permutation that ``torch.randperm`` draws from the same seed."""
    order = list(range(count))
    words = generator.randint(0, 2**32, size=max(count - 1, 0), dtype=np.uint32).tolist()
    for position, word in enumerate(words):
        other = position + word % (count - position)
        order[position], order[other] = order[other], order[position]
    return order
