"""What the predictions for a design may miss by, where some of its layers were guessed from others that were measured."""

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
    """What predicted seconds may miss by, relative to them, if the errors of guessed layers do not cancel.

    Attributes:
        median, p90: with every guessed layer as far off as half, or nine of ten, of those like it by cross-validation.
        guessed: share of the seconds that is guessed; 0: every layer was measured.
    """

    median: float
    p90: float
    guessed: float

    def __str__(self) -> str:
        return f"±{self.median:.1%} (nine of ten within {self.p90:.0%})" if self.guessed else "measured"


@dataclass(frozen=True)
class DesignUncertainty:
    """Uncertainties about a design.

    Attributes:
        whole: about its latency, without what meeting points miss by.
        branches: about those of every segment, alone on their processors.
        layers: that were guessed, described, each with the number of its processor.
    """

    whole: Uncertainty
    branches: tuple[tuple[Uncertainty, ...], ...]
    layers: tuple[tuple[int, str], ...]


def design_uncertainty(
    blueprint: Blueprint, design: Design, prediction: Prediction, predictor: StoredPredictor, processors: int
) -> DesignUncertainty:
    """What the prediction for a design may miss by.

    Args:
        blueprint: the network that it is a design of.
        design: the branching.
        prediction: what its parts are predicted to take.
        predictor: by whom.
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
    """Seconds of the head on the processor that is predicted to compute it."""
    last, blueprint = design.segments[-1], latencies.blueprint
    channels = merged_channels(design.merge, [branch.channels for branch in last.branches])
    whole = channels == blueprint.channels_before(len(blueprint.traced.blocks))
    exact = whole and (len(last.branches) == 1 or design.merge is not Merge.CONCAT)
    (branch,) = prediction.head.branches
    return latencies.head(channels, branch.processor, exact=exact)


def _whole(prediction: Prediction, uncertainty: Sequence[Sequence[Uncertainty]], heads: Sequence[float]) -> Uncertainty:
    """Uncertainty about the latency: that of the slowest branch of every segment, and of the head."""
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
    """A predictor by which layers that were measured take no time, and guessed ones their seconds times a weight."""

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
