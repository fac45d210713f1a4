"""Uncertainty of a design's prediction, from the cross-validated errors of layers that were not measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from nnstretch.branching.design.blueprint import Blueprint
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.design.from_choices import choices_of
from nnstretch.branching.latency.prediction import Prediction
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.network_latency import branch_seconds
from nnstretch.branching.transform.merge import merged_channels
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.stored_predictor import StoredPredictor, describe_layer
from nnstretch.scheduler.costmodel.trees import Spread


@dataclass(frozen=True)
class Uncertainty:
    """Relative error of predicted seconds if the errors of predicted layers do not cancel.

    Attributes:
        median: error with the median cross-validated error of every predicted layer.
        p90: error with the 90th percentile of every predicted layer.
        guessed: share of the seconds from predicted layers; 0 if every layer was measured.
    """

    median: float
    p90: float
    guessed: float

    def __str__(self) -> str:
        return f"±{self.median:.1%} (nine of ten within {self.p90:.0%})" if self.guessed else "measured"


@dataclass(frozen=True)
class DesignUncertainty:
    """Uncertainties of a design.

    Attributes:
        whole: uncertainty of its latency, without that of meeting points.
        branches: uncertainty of each segment's branches, alone on their processors.
        layers: (processor number, description) of the predicted layers.
    """

    whole: Uncertainty
    branches: tuple[tuple[Uncertainty, ...], ...]
    layers: tuple[tuple[int, str], ...]


def design_uncertainty(
    blueprint: Blueprint, design: Design, prediction: Prediction, predictor: StoredPredictor, processors: int
) -> DesignUncertainty:
    """Uncertainty of a design's prediction.

    Args:
        blueprint: the design's network.
        design: the design.
        prediction: predicted latencies of its parts.
        predictor: the predictor that was used.
        processors: number of processors.
    """
    choices = choices_of(design)
    guessed: dict[tuple[int, str], None] = {}

    def weighted(weight: Callable[[Spread], float]) -> tuple[list[list[float]], float]:
        latencies = LatencyTable(blueprint, _Weighted(predictor, weight, guessed), processors)
        return branch_seconds(latencies, choices), _head_seconds(latencies, design, prediction)

    seconds = [[branch.alone for branch in part.branches] for part in prediction.segments]
    branches, heads = zip(*map(weighted, (_median, _p90, _one)), strict=True)
    uncertainty = tuple(
        tuple(Uncertainty(*(_share(kind[i][j], alone) for kind in branches)) for j, alone in enumerate(some))
        for i, some in enumerate(seconds)
    )
    return DesignUncertainty(_whole(prediction, uncertainty, heads), uncertainty, tuple(guessed))


def _median(spread: Spread) -> float:
    return spread.median


def _p90(spread: Spread) -> float:
    return spread.p90


def _one(_: Spread) -> float:
    return 1.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 and math.isfinite(part) else 0.0


def _head_seconds(latencies: LatencyTable, design: Design, prediction: Prediction) -> float:
    """Seconds of the head on its processor."""
    last, blueprint = design.segments[-1], latencies.blueprint
    channels = merged_channels(design.merge, [branch.channels for branch in last.branches])
    whole = channels == blueprint.channels_before(len(blueprint.traced.blocks))
    exact = whole and (len(last.branches) == 1 or design.merge is not Merge.CONCAT)
    (branch,) = prediction.head.branches
    return latencies.head(channels, branch.processor, exact=exact)


def _whole(prediction: Prediction, uncertainty: Sequence[Sequence[Uncertainty]], heads: Sequence[float]) -> Uncertainty:
    """Uncertainty of the latency: that of each segment's slowest branch, and of the head."""
    slowest = [
        max(zip((branch.contended for branch in part.branches), some, strict=True), key=lambda one: one[0])
        for part, some in zip(prediction.segments, uncertainty, strict=True)
    ]
    missed = [
        sum(seconds * getattr(uncertain, name) for seconds, uncertain in slowest) + head
        for name, head in zip(("median", "p90", "guessed"), heads, strict=True)
    ]
    return Uncertainty(*(_share(one, prediction.seconds) for one in missed))


class _Weighted:
    """A predictor in which measured layers take no time, and predicted ones their seconds times a weight."""

    def __init__(
        self,
        predictor: StoredPredictor,
        weight: Callable[[Spread], float],
        guessed: dict[tuple[int, str], None],
    ) -> None:
        self._predictor, self._weight, self._guessed = predictor, weight, guessed

    def seconds(self, layers: Sequence[Layer], processor: int) -> float:
        total = 0.0
        for layer in layers:
            spread = self._predictor.guess(layer, processor)
            if spread is not None:
                self._guessed[processor, describe_layer(layer)] = None
                total += self._predictor.seconds([layer], processor) * self._weight(spread)
        return total

    def fused_seconds(self, pair: Layer, processor: int) -> float:
        return math.inf

    def confirm(self, layers: Sequence[Layer], processor: int) -> bool:
        return False

    def meeting_seconds(self, tensor: TensorType, processors: Sequence[int] = ()) -> float:
        return 0.0

    def fetch_seconds(self, tensor: TensorType) -> float:
        return 0.0

    def contention_factor(self, processor: int, others: Collection[int]) -> float:
        return 1.0
