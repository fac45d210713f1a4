"""Predictions for remote processors, from profiles that were exported there, and the uncertainty of these predictions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from nnstretch.branching.channels.scaling import TensorChannels
from nnstretch.branching.design.blueprint import Blueprint
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.design.from_choices import choices_of, head_of
from nnstretch.branching.latency.prediction import Prediction
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.network_latency import branch_seconds
from nnstretch.branching.transform.merge import merged_channels
from nnstretch.devices.base.description import Description
from nnstretch.devices.base.spec import ProcessorSpec, parse_processors
from nnstretch.devices.remote import ProfiledProcessor
from nnstretch.errors import UsageError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.stored_predictor import StoredPredictor, StoredTransfers, describe_layer
from nnstretch.scheduler.costmodel.trees import Spread
from nnstretch.scheduler.measurement.caches import CacheSizes
from nnstretch.scheduler.measurement.interference import stored_contention_factors
from nnstretch.scheduler.measurement.store.profiles_file import Profiles, read_profiles
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.support.settings import cache_dir

_MOST_CORES = 1024  # more than any machine's cores


@dataclass(frozen=True)
class Profiled:
    """Processors of a profile file with predictions for them.

    Attributes:
        names: names of the processors, as the caller wrote them, with cores if these were left out.
        processors: the processors, as described in the file.
        predictor: predictor for the processors in this order.
    """

    names: tuple[str, ...]
    processors: tuple[ProfiledProcessor, ...]
    predictor: StoredPredictor

    @property
    def block(self) -> int:
        """Channels per vector; widths are multiples of it."""
        return max(processor.blocked.block for processor in self.processors)


def open_profiles(path: Path, text: str) -> Profiled:
    """Opens two or more processors of a profile file.

    Args:
        path: file of `nnstretch profiles export`, or a profile store.
        text: processors as written on their machine; `cpu` or `opencl` alone names the only one of its kind.

    Raises:
        FileError: the file cannot be read or is damaged.
        UsageError: it has no such processors.
        DeviceError: it has no measured transfers between them.
    """
    profiles = read_profiles(path)
    wanted = [part.strip() for part in text.split(",")]
    found = [_described(part, profiles, path) for part in wanted]
    if len(found) < 2:
        raise UsageError(
            f"--processors {text} names {len(found)} processor; a branching needs two or more; {path} has {_known(profiles)}"
        )
    processors = tuple(ProfiledProcessor(one) for one in found)
    host = next((p for p in processors if p.backend.serves_caller), None) or _host(profiles, processors[0], path)
    store = ProfileStore(Path(":memory:"))
    store.merge(profiles.rows)
    transfers = StoredTransfers(store, processors, host)
    # Trees that were trained on a file are kept by its contents.
    folder = cache_dir() / "costmodels" / hashlib.sha256(path.read_bytes()).hexdigest()[:20]
    caches = CacheSizes(*found[0].caches) if found[0].caches else None
    learned = LearnedCosts(store, transfers, folder=folder, caches=caches)
    predictor = StoredPredictor(
        processors, store, learned, transfers, lambda group: stored_contention_factors(processors, group, store)
    )
    names = tuple(part if ":" in part else one.name for part, one in zip(wanted, found, strict=True))
    return Profiled(names, processors, predictor)


def _described(text: str, profiles: Profiles, path: Path) -> Description:
    """The processor of that name; of several versions, the one with the latest measurement."""
    if not profiles.processors:
        raise UsageError(
            f"{path} does not say which processors its measurements are of, as files of earlier versions; upgrade nnstretch "
            "there, tune one network, and export the profiles again"
        )
    (spec,) = parse_processors(text, tuple(range(_MOST_CORES)))
    alike = [one for one in profiles.processors if _is_meant(text, spec, one)]
    kinds = {(one.index, one.cores if one.kind == "opencl" else len(one.cores), one.ratios) for one in alike}
    if not alike or len(kinds) > 1:
        many = "several" if alike else "no"
        raise UsageError(f"{path} has {many} processors {text}; write one of {_known(profiles)}")
    last = {row.processor: row.measurement.when for row in sorted(profiles.rows, key=lambda row: row.measurement.when)}
    return max(alike, key=lambda one: last.get(one.fingerprint, 0.0))


def _is_meant(text: str, spec: ProcessorSpec, described: Description) -> bool:
    """Whether `text`, parsed as `spec`, names a processor. Numbers of CPU cores do not count, since cores are alike."""
    if text == described.name:
        return True
    if spec.kind != described.kind:
        return False
    if spec.kind == "cpu":
        return text == "cpu" or (len(spec.cores), spec.ratios) == (len(described.cores), described.ratios)
    if text == "opencl":
        return True
    return spec.index == described.index and ("@" not in text or spec.cores == described.cores)


def _known(profiles: Profiles) -> str:
    """The names of a file's processors."""
    return ",".join(sorted({one.name for one in profiles.processors})) or "none"


def _host(profiles: Profiles, device: ProfiledProcessor, path: Path) -> ProfiledProcessor:
    """The CPU that drives devices if no CPU was named."""
    for one in profiles.processors:
        if one.kind == "cpu" and (not device.spec.cores or one.block == device.blocked.block):
            return ProfiledProcessor(one)
    raise UsageError(f"{path} has no CPU beside its devices; tune one network with a CPU there, and export again")


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
    weights: tuple[Callable[[Spread], float], ...] = (attrgetter("median"), attrgetter("p90"), lambda _: 1.0)
    branches, heads = zip(*map(weighted, weights), strict=True)
    uncertainty = tuple(
        tuple(Uncertainty(*(_share(kind[i][j], alone) for kind in branches)) for j, alone in enumerate(some))
        for i, some in enumerate(seconds)
    )
    return DesignUncertainty(_whole(prediction, uncertainty, heads), uncertainty, tuple(guessed))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 and math.isfinite(part) else 0.0


def _head_seconds(latencies: LatencyTable, design: Design, prediction: Prediction) -> float:
    """Seconds of the head on its processor; of a branched one, those of its slowest branch and of what follows."""
    last, blueprint = design.segments[-1], latencies.blueprint
    channels = merged_channels(design.merge, [branch.channels for branch in last.branches])
    whole = channels == blueprint.channels_before(len(blueprint.traced.blocks))
    exact = whole and (len(last.branches) == 1 or design.merge is not Merge.CONCAT)
    reads = {blueprint.head.source: TensorChannels(channels, exact)}
    slowest = max(prediction.head.branches, key=lambda branch: branch.contended)
    if not design.head:
        return latencies.head(slowest.processor, reads)
    (choice,) = (choice for choice in head_of(design) if choice.processor == slowest.processor)
    return latencies.towers(choice, reads) + latencies.tail(reads)


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
        self, predictor: StoredPredictor, weight: Callable[[Spread], float], guessed: dict[tuple[int, str], None]
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

    def meeting_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        return 0.0

    def fetch_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        return 0.0

    def contention_factor(self, processor: int, others: Collection[int]) -> float:
        return 1.0
