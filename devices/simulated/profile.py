"""Profiles: JSON descriptions of the processors of a simulated machine.

The classes' fields are the JSON's fields, which `docs/formats.md` defines. Reading a profile checks every field.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nnstretch.errors import DeviceError, FileError
from nnstretch.graph.dtypes import DEFAULT_DTYPE, element_type
from nnstretch.support.settings import atomic_write

FORMAT_VERSION = 1
COMPUTE_KINDS = ("conv", "grouped", "depthwise", "dense")
MEMORY_KINDS = ("any", *COMPUTE_KINDS, "pool", "elementwise", "move", "other")
MULTIPLES = (4, 8, 16)
SHIPPED = Path(__file__).parent / "profiles"
"""Folder of the shipped profiles."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SIZED = re.compile(r"(conv|grouped|depthwise):[1-9]\d*x[1-9]\d*")
_FLAT = re.compile(r"\[\n[^][{}\"]*\]")


@dataclass(frozen=True)
class Throughput:
    """Arithmetic throughput of a processor for one kind of layer.

    Attributes:
        gmacs_per_s: points (MACs of the layer, 10^9 MACs per second), MACs ascending; rates are interpolated over the
            logarithm of MACs and constant beyond the ends.
        step: numbers of input and output channels are rounded up to multiples of these.
        half: numbers of input and output channels at which the rate is half of its limit; 0 for no effect.
        group_us: microseconds per group of the layer.
    """

    gmacs_per_s: tuple[tuple[float, float], ...]
    step: tuple[int, int] = (1, 1)
    half: tuple[float, float] = (0.0, 0.0)
    group_us: float = 0.0


@dataclass(frozen=True)
class ProcessorProfile:
    """One processor.

    Attributes:
        launch_us: microseconds to launch a layer.
        compute: kind of layer -> throughput. A kind is one of COMPUTE_KINDS, or one with a kernel size, such as "conv:1x1",
            which takes precedence. The processor does not support unlisted kinds.
        memory_gb_per_s: kind of layer, of MEMORY_KINDS, -> memory bandwidth in 10^9 bytes per second; "any" is the
            default.
    """

    launch_us: float
    compute: Mapping[str, Throughput]
    memory_gb_per_s: Mapping[str, float]


@dataclass(frozen=True)
class PairProfile:
    """Two processors that work at the same time.

    Attributes:
        processors: their names.
        sync_us: synchronisation latency in microseconds.
        gb_per_s: transfer bandwidth in 10^9 bytes per second.
        slowdown: contention factor of each while the other computes.
    """

    processors: tuple[str, str]
    sync_us: float
    gb_per_s: float
    slowdown: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class SocProfile:
    """The processors of one machine.

    Attributes:
        processors: name -> profile.
        pairs: one for every two processors that work together.
        element_bytes: bytes per tensor element on this machine, 1 for int8.
        channel_multiple: preferred multiple of channels of scaled layers.
        description: the machine and the source of the figures.
    """

    processors: Mapping[str, ProcessorProfile]
    pairs: tuple[PairProfile, ...] = ()
    element_bytes: int = element_type(DEFAULT_DTYPE).bytes
    channel_multiple: int = 8
    description: str = ""

    def pair(self, one: str, other: str) -> PairProfile:
        """The pair of two processors, in either order.

        Raises:
            DeviceError: the profile has no such pair.
        """
        found = self._pairs.get(frozenset((one, other)))
        if found is None:
            raise DeviceError(
                f"the profile has no pair of {one} and {other}; add one to its pairs, or name only one of the processors"
            )
        return found

    @cached_property
    def _pairs(self) -> dict[frozenset[str], PairProfile]:
        return {frozenset(pair.processors): pair for pair in self.pairs}

    def slowdown(self, processor: str, others: frozenset[str]) -> float:
        """Contention factor of a processor while `others` compute too."""
        factors = []
        for other in others:
            pair = self.pair(processor, other)
            factors.append(pair.slowdown[pair.processors.index(processor)])
        return math.prod(factors)

    def transfer_seconds(self, processor: str, others: frozenset[str], elements: float) -> float:
        """Seconds until a processor can read a tensor of `elements` elements that `others` have written in part.

        The slowest transfer decides.
        """
        size = elements * self.element_bytes
        pairs = [self.pair(processor, other) for other in others]
        return max((p.sync_us * 1e-6 + size / (p.gb_per_s * 1e9) for p in pairs), default=0.0)

    def to_json(self) -> str:
        """The profile as a JSON object; `from_json` is the inverse."""
        fields: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "description": self.description,
            "element_bytes": self.element_bytes,
            "channel_multiple": self.channel_multiple,
            "processors": {name: asdict(processor) for name, processor in self.processors.items()},
            "pairs": [asdict(pair) for pair in self.pairs],
        }
        return _FLAT.sub(_on_one_line, json.dumps(fields, indent=1)) + "\n"

    @staticmethod
    def from_json(text: str) -> SocProfile:
        """Reads a profile from JSON.

        Raises:
            DeviceError: the profile is invalid; the message names the field.
        """
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DeviceError(f"not JSON ({error}); write a profile as docs/formats.md says") from error
        return _soc(raw)

    @cached_property
    def identity(self) -> str:
        """Short hash of all fields that affect latencies."""
        text = json.dumps({**json.loads(self.to_json()), "description": ""}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def load_profile(name: str) -> SocProfile:
    """Loads a shipped profile by name, or a profile from a path that ends in .json.

    Raises:
        DeviceError: the profile does not exist or is invalid.
        FileError: the file cannot be read.
    """
    path = Path(name) if name.endswith(".json") else SHIPPED / f"{name}.json"
    if not name.endswith(".json") and (not _NAME.fullmatch(name) or not path.exists()):
        raise DeviceError(
            f"there is no shipped profile {name!r}; name one of {', '.join(shipped_profiles())}, or the path of a .json file"
        )
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise FileError(f"cannot read profile {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise DeviceError(f"profile {path} is not text; write one as docs/formats.md says") from error
    try:
        return SocProfile.from_json(text)
    except DeviceError as error:
        raise DeviceError(f"profile {name}: {error}") from error


def shipped_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.json")))


def save_profile(profile: SocProfile, path: Path) -> None:
    """Writes `profile` to `path` atomically.

    Raises:
        FileError: `path` is not writable or the disk is full.
    """
    with atomic_write(path) as file:
        file.write(profile.to_json().encode())


def _on_one_line(found: re.Match[str]) -> str:
    """A list of numbers without line breaks."""
    return json.dumps(json.loads(found[0]))


# -- reading -------------------------------------------------------------------------------------------------------


def _wrong(where: str, found: object, wanted: str) -> DeviceError:
    text = json.dumps(found, default=str)
    return DeviceError(f"{where} is {text if len(text) <= 60 else text[:57] + '...'}; write {wanted}")


def _object(raw: object, where: str, known: tuple[str, ...], needed: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise _wrong(where, raw, "an object")
    for name in raw:
        if name not in known:
            raise DeviceError(f"{where} has a field {name!r}; its fields are {', '.join(known)}")
    for name in needed:
        if name not in raw:
            raise DeviceError(f"{where} has no {name}; add it")
    return raw


def _number(raw: object, where: str, wanted: str, least: float, most: float = 1e12) -> float:
    """A number from `least` to `most`."""
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not least <= raw <= most:
        raise _wrong(where, raw, wanted)
    return float(raw)


_RATE = 1e-6
"""Minimum of every rate, so that all times are finite."""


def _soc(raw: object) -> SocProfile:
    known = ("format", "description", "element_bytes", "channel_multiple", "processors", "pairs")
    if isinstance(raw, dict) and isinstance(raw.get("format"), int) and raw["format"] > FORMAT_VERSION:
        raise DeviceError(
            f"format {raw['format']} is not supported; this version reads up to {FORMAT_VERSION}; upgrade it"
        )
    fields = _object(raw, "the profile", known, ("format", "processors"))
    if fields["format"] != FORMAT_VERSION or isinstance(fields["format"], bool):
        raise _wrong("format", fields["format"], str(FORMAT_VERSION))
    description = fields.get("description", "")
    if not isinstance(description, str):
        raise _wrong("description", description, "a text")
    if not isinstance(fields["processors"], dict) or not fields["processors"]:
        raise _wrong("processors", fields["processors"], "an object with a field for every processor")
    for name in fields["processors"]:
        if not _NAME.fullmatch(name):
            raise _wrong("a processor's name", name, "letters, digits, - and _ only")
    processors = {name: _processor(value, f"processor {name}") for name, value in fields["processors"].items()}
    multiple = fields.get("channel_multiple", 8)
    if multiple not in MULTIPLES or isinstance(multiple, bool | float):
        raise _wrong("channel_multiple", multiple, "4, 8 or 16")
    size = fields.get("element_bytes", element_type(DEFAULT_DTYPE).bytes)
    if size not in (1, 2, 4) or isinstance(size, bool | float):
        raise _wrong("element_bytes", size, "1, 2 or 4")
    return SocProfile(processors, _pairs(fields.get("pairs", []), processors), size, multiple, description)


def _processor(raw: object, where: str) -> ProcessorProfile:
    names = ("launch_us", "compute", "memory_gb_per_s")
    fields = _object(raw, where, names, names)
    compute = fields["compute"]
    if not isinstance(compute, dict):
        raise _wrong(f"{where}: compute", compute, "an object with a field for every kind of layer")
    for kind in compute:
        if kind not in COMPUTE_KINDS and not _SIZED.fullmatch(kind):
            wanted = f"{', '.join(COMPUTE_KINDS)}, or one of the first three with a kernel's size, such as conv:1x1"
            raise _wrong(f"{where}: a kind of compute", kind, wanted)
    memory = _object(fields["memory_gb_per_s"], f"{where}: memory_gb_per_s", MEMORY_KINDS, ("any",))
    wanted = "a rate above 0 in GB/s"
    return ProcessorProfile(
        _number(fields["launch_us"], f"{where}: launch_us", "microseconds from 0 on", 0.0),
        {kind: _throughput(value, f"{where}: {kind}") for kind, value in compute.items()},
        {kind: _number(v, f"{where}: memory_gb_per_s of {kind}", wanted, _RATE) for kind, v in memory.items()},
    )


def _throughput(raw: object, where: str) -> Throughput:
    fields = _object(raw, where, ("gmacs_per_s", "step", "half", "group_us"), ("gmacs_per_s",))
    step = _two(fields.get("step", [1, 1]), f"{where}: step", "two whole numbers of channels from 1 on", 1.0)
    if any(s != int(s) for s in step):
        raise _wrong(f"{where}: step", fields["step"], "two whole numbers of channels from 1 on")
    return Throughput(
        _curve(fields["gmacs_per_s"], f"{where}: gmacs_per_s"),
        (int(step[0]), int(step[1])),
        _two(fields.get("half", [0, 0]), f"{where}: half", "two numbers of channels from 0 on", 0.0),
        _number(fields.get("group_us", 0), f"{where}: group_us", "microseconds from 0 on", 0.0),
    )


def _curve(raw: object, where: str) -> tuple[tuple[float, float], ...]:
    wanted = "points [MACs, GMAC/s] above 0, MACs ascending"
    if not isinstance(raw, list) or not raw:
        raise _wrong(where, raw, wanted)
    points = tuple(_two(point, where, wanted, _RATE, 1e15) for point in raw)
    if any(one[0] >= other[0] for one, other in itertools.pairwise(points)):
        raise _wrong(where, raw, wanted)
    return points


def _two(raw: object, where: str, wanted: str, least: float, most: float = 1e12) -> tuple[float, float]:
    if not isinstance(raw, list) or len(raw) != 2:
        raise _wrong(where, raw, wanted)
    return _number(raw[0], where, wanted, least, most), _number(raw[1], where, wanted, least, most)


def _pairs(raw: object, processors: Mapping[str, ProcessorProfile]) -> tuple[PairProfile, ...]:
    if not isinstance(raw, list):
        raise _wrong("pairs", raw, "a list")
    pairs: list[PairProfile] = []
    for item in raw:
        names = ("processors", "sync_us", "gb_per_s")
        fields = _object(item, "a pair", (*names, "slowdown"), names)
        both = fields["processors"]
        if not isinstance(both, list) or len(both) != 2 or both[0] == both[1] or not {*both} <= {*processors}:
            raise _wrong("processors of a pair", both, f"two of {', '.join(processors)}")
        where = f"pair {both[0]}, {both[1]}"
        if any({*pair.processors} == {*both} for pair in pairs):
            raise DeviceError(f"{where} is listed twice; remove one")
        pairs.append(
            PairProfile(
                (both[0], both[1]),
                _number(fields["sync_us"], f"{where}: sync_us", "microseconds from 0 on", 0.0),
                _number(fields["gb_per_s"], f"{where}: gb_per_s", "a rate above 0 in GB/s", _RATE),
                _two(fields.get("slowdown", [1, 1]), f"{where}: slowdown", "two factors from 1 on", 1.0, 1e3),
            )
        )
    return tuple(pairs)
