"""Training images by which a network is calibrated for int8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nnstretch.training.data.preprocessing import Images
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
        """The batches: float32 ``batch x C x S x S``.

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
