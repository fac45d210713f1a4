"""Predictions for remote processors, from profiles that were exported there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nnstretch.devices.base.description import Description
from nnstretch.devices.base.spec import ProcessorSpec, parse_processors
from nnstretch.devices.remote.processor import ProfiledProcessor
from nnstretch.errors import UsageError
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.stored_predictor import StoredPredictor, StoredTransfers
from nnstretch.scheduler.measurement.caches import CacheSizes
from nnstretch.scheduler.measurement.contention import stored_contention_factors
from nnstretch.scheduler.measurement.store.profiles_file import Profiles, read_profiles
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.support.settings import cache_dir

_MOST_CORES = 1024  # more than any machine's cores


@dataclass(frozen=True)
class Profiled:
    """Processors of a profile file with predictions for them.

    Attributes:
        names: names of the processors, as the caller wrote them.
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
    return Profiled(_names(wanted, found), processors, predictor)


def _names(wanted: Sequence[str], found: Sequence[Description]) -> tuple[str, ...]:
    """Names of the processors: as the caller wrote them, with cores if these were left out."""
    return tuple(part if ":" in part else one.name for part, one in zip(wanted, found, strict=True))


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
        if one.kind == "cpu" and one.block == device.blocked.block:
            return ProfiledProcessor(one)
    raise UsageError(f"{path} has no CPU beside its devices; tune one network with a CPU there, and export again")
