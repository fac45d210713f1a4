"""Segmentation: every pixel has a class. Outputs are logits, `N x classes x H x W`; targets are masks, int64 `N x H x W`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import ModelError
from nnstretch.support.measures import MEAN_IOU
from nnstretch.training.tasks.base import Scorer, SpatialTask, Targets, as_array

if TYPE_CHECKING:
    from torch import Tensor

    from nnstretch.training.data.preprocessing import Preprocessing

IGNORED = 255
"""Value of mask pixels that count in neither loss nor measure, as usual in PASCAL VOC and Cityscapes."""

Mask = NDArray[np.uint8]
"""The class of every pixel, or `IGNORED`: ``H x W``."""


@dataclass(frozen=True)
class Segmentation(SpatialTask):
    """Cross entropy per pixel; mean intersection over union.

    Logits of a smaller map are enlarged to the mask (bilinear). Of a dictionary the entry ``out`` counts, as torchvision's
    networks return it; of a tuple, the first tensor.

    Attributes:
        ignored: value of pixels that do not count.
    """

    name = "segmentation"
    measure, key = MEAN_IOU
    ignored: int = IGNORED

    def check_outputs(self, outputs: Any, images: int, num_classes: int) -> None:
        """Checks that there is a map per image and class."""
        shape = getattr(_main(outputs), "shape", ())
        if len(shape) != 4 or tuple(shape[:2]) != (images, num_classes):
            given = f"{images} image{'' if images == 1 else 's'}"
            raise ModelError(
                f"the network writes {list(shape)} for {given} with masks of {num_classes} classes; "
                f"[{images}, {num_classes}, height, width] is wanted: use the data it was made for"
            )

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """The mean cross entropy of all pixels that count; 0 if there is none."""
        from torch.nn import functional

        found = self._enlarged(_main(outputs), targets.shape[-2:])
        total = functional.cross_entropy(found, targets, ignore_index=self.ignored, reduction="sum")
        return total / (targets != self.ignored).sum().clamp(min=1)

    def logits(self, outputs: Any) -> Any:
        """One row per pixel of the network's own map."""
        return _main(outputs).movedim(1, -1).flatten(0, -2)

    def scorer(self, num_classes: int) -> ClassOverlaps:
        """Intersections over unions."""
        return ClassOverlaps(num_classes, self)

    # -- targets -------------------------------------------------------------------------------------------------

    def fitted(self, raw: Mask, preprocessing: Preprocessing) -> Mask:
        """The mask resized (nearest pixel) and cropped as its image is."""
        return preprocessing.cropped_mask(raw)

    def wrapped(self, raw: Mask, library: Any) -> Any:
        """A mask of torchvision."""
        import torch

        return library.Mask(torch.from_numpy(raw.copy()))

    def unwrapped(self, wrapped: Any) -> Mask:
        """The mask."""
        return as_array(wrapped)

    def collated(self, targets: Sequence[Mask]) -> Targets:
        """The masks: int64 ``N x H x W``."""
        return np.stack(targets).astype(np.int64)

    def check_size(self, raw: Mask, height: int, width: int) -> str:
        """A mask has the size of its image."""
        return mask_fault(raw.shape, height, width)

    def classes_in(self, raw: Mask) -> NDArray[np.int64]:
        """The values of the mask, but for pixels that do not count."""
        found = np.flatnonzero(np.bincount(raw.reshape(-1), minlength=1))
        counted: NDArray[np.int64] = found[found != self.ignored]
        return counted

    @property
    def fill(self) -> int:
        """Pixels that do not count."""
        return self.ignored

    def _enlarged(self, logits: Tensor, size: Sequence[int]) -> Tensor:
        from torch.nn import functional

        if tuple(logits.shape[-2:]) == tuple(size):
            return logits
        return functional.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)

    def answers(self, outputs: Any, size: Sequence[int]) -> NDArray[np.int64]:
        """The class of every pixel of masks of a size: `N x H x W`."""
        found = np.asarray(_main(outputs))
        if found.shape[-2:] != tuple(size):
            import torch

            found = self._enlarged(torch.from_numpy(found).float(), size).numpy()
        answers: NDArray[np.int64] = found.argmax(axis=1)
        return answers


class ClassOverlaps(Scorer):
    """Intersection over union of every class, over all pixels of all images; their mean over the classes that occur.

    Attributes:
        counts: pixels by (class, answer): int64.
    """

    def __init__(self, num_classes: int, task: Segmentation) -> None:
        self.counts = np.zeros((num_classes, num_classes), np.int64)
        self._task = task

    def add(self, outputs: Any, targets: Targets) -> None:
        """Counts the pixels of a batch."""
        classes = len(self.counts)
        answers = self._task.answers(outputs, targets.shape[-2:])
        counted = targets != self._task.ignored
        places = targets[counted] * classes + answers[counted]
        self.counts += np.bincount(places, minlength=classes**2).reshape(classes, classes)

    def merge(self, other: ClassOverlaps) -> None:
        """Adds the counts."""
        self.counts = self.counts + other.counts

    def measures(self) -> dict[str, float]:
        """Mean intersection over union, and the share of right pixels."""
        found = [share for share in self.per_class() if share is not None]
        right, pixels = int(np.trace(self.counts)), int(self.counts.sum())
        return {
            Segmentation.key: float(np.mean(found)) if found else 0.0,
            "pixel_accuracy": 100.0 * right / pixels if pixels else 0.0,
        }

    def per_class(self) -> list[float | None]:
        """Intersection over union in percent; None for a class that is neither in masks nor in answers."""
        both = np.diag(self.counts)
        either = self.counts.sum(axis=0) + self.counts.sum(axis=1) - both
        return [100.0 * float(one) / float(all_) if all_ else None for one, all_ in zip(both, either, strict=True)]


def mask_fault(mask: Sequence[int], height: int, width: int) -> str:
    """Why a mask of a height and width cannot be that of an image of a size; empty if it can."""
    if tuple(mask) == (height, width):
        return ""
    return f"the image has {width}×{height} pixels, its mask {mask[1]}×{mask[0]}; make them of one size"


def _main(outputs: Any) -> Any:
    """The logits among what a network returns."""
    if isinstance(outputs, Mapping):
        return outputs.get("out")
    return outputs[0] if isinstance(outputs, tuple | list) else outputs
