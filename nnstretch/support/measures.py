"""The measures of networks: what people and JSON call them."""

from __future__ import annotations

from typing import NamedTuple


class Measure(NamedTuple):
    """A measure in percent; higher is better.

    Attributes:
        name: as people say it.
        key: in logs, weights and JSON.
    """

    name: str
    key: str


TOP1, MEAN_IOU, MEAN_AP = Measure("top-1", "top1"), Measure("mIoU", "miou"), Measure("mAP", "map")
MEASURES = (TOP1, MEAN_IOU, MEAN_AP)
"""Those of the tasks that the project has."""
