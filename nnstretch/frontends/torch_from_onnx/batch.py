"""Where the images of a batch lie in a tensor, so that a module takes batches of another size than the file's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchAxis:
    """The axis of a tensor along which the images of a batch lie: its length is `outer · images · inner`.

    Attributes:
        axis: number of the axis.
        outer: elements of the axis that are the same for consecutive images and vary more slowly.
        inner: elements of the axis that belong to one image and vary faster.
    """

    axis: int
    outer: int = 1
    inner: int = 1

    def reshaped(self, before: Sequence[int], after: Sequence[int], images: int) -> BatchAxis | None:
        """Where the images lie after a reshape in row-major order; the first axis that can hold them.

        Args:
            before: shape for a batch of `images`, without axes of length 0.
            after: shape of as many elements.
            images: of the batch.

        Returns:
            None if the images spread over several axes.
        """
        stride = self.inner * math.prod(before[self.axis + 1 :])
        repeats = self.outer * math.prod(before[: self.axis])
        for axis, length in enumerate(after):
            behind, ahead = math.prod(after[axis + 1 :]), math.prod(after[:axis])
            if stride % behind or repeats % ahead:
                continue
            inner, outer = stride // behind, repeats // ahead
            if outer * images * inner == length:
                return BatchAxis(axis, outer, inner)
        return None
