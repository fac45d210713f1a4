"""Images by which a network is calibrated for int8: those that a data set trains with, or all in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from nnstretch.errors import UsageError
from nnstretch.support.extras import extras_named
from nnstretch.support.image_size import size_of
from nnstretch.training.data import check_shape, load_dataset, names_data_set, usage
from nnstretch.training.data.preprocessing import Images, Preprocessing, photo_preprocessing, pillow
from nnstretch.training.data.sources.folder import unlabelled
from nnstretch.training.data.sources.unlabelled import folder_of_images
from nnstretch.training.data.split import Split
from nnstretch.training.data.unreadable import inputs_to_learn_from, replaced_note
from nnstretch.training.randomness import permutation


@dataclass(frozen=True)
class CalibrationImages:
    """Some images of a split, drawn at random: the first ones of a folder are all of one class.

    Attributes:
        split: the training images.
        count: of the images; rounded up to whole batches, but no more than the split can fill.
        batch: images per batch.
        seed: of the draw. The same seed draws the same images.
        unreadable: index of every image that could not be decoded so far -> its name and the reason. Another image of its
            class took its place.
    """

    split: Split
    count: int
    batch: int = 1
    seed: int = 0
    unreadable: dict[int, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Images]:
        """The batches: float32 ``batch x C x height x width``.

        Raises:
            FileError: no image of a class can be decoded.
        """
        order = permutation(self.seed, 0, len(self.split), "calibration")
        batches = min(-(-self.count // self.batch), len(order) // self.batch)
        for first in range(0, batches * self.batch, self.batch):
            yield inputs_to_learn_from(self.split, order[first : first + self.batch], self.unreadable)

    @property
    def note(self) -> str:
        """What is to be said of `unreadable`; one line, or empty."""
        return replaced_note(self.unreadable, len(self.split))


@extras_named()
def images_to_calibrate(
    source: str, size: tuple[int, int], channels: int, stated: Preprocessing | None
) -> tuple[Split, Preprocessing]:
    """The images of a data set or of a folder, and how they become inputs.

    Args:
        source: a data set, whose training images are taken, or a folder, which gives all images in it.
        size: height and width of the inputs in pixels.
        channels: of the inputs.
        stated: the network's own preprocessing, if it states one; else that of the data set, of photographs for a folder.

    Raises:
        NNStretchError: there are no such images, or the network cannot read them.
    """
    folder, image_size = folder_of_images(source), size_of(*size)
    if folder is None:
        if not names_data_set(source) and not Path(source).is_dir():
            raise UsageError(
                f"no data set is called {source!r}, and it is neither a folder of images nor a .npz file with an array for "
                f"every input, which are calibration data, too; there are {usage()}"
            )
        dataset = load_dataset(source, image_size, channels, preprocessing=stated)
        return dataset.train, dataset.preprocessing
    pillow()
    check_shape(image_size, channels)
    preprocessing = replace(stated or photo_preprocessing(image_size, channels), image_size=image_size)
    return unlabelled(folder, preprocessing), preprocessing
