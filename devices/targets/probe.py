"""What a target is: the runner's `--probe`, and the clusters of cores derived from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

from nnstretch.devices.base.spec import ProcessorSpec, format_cores, simplest_ratios
from nnstretch.devices.targets.base import TargetError

_PARTS = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD04): "Cortex-A35",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73",
    (0x41, 0xD0A): "Cortex-A75",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse N1",
    (0x41, 0xD0D): "Cortex-A77",
    (0x41, 0xD40): "Neoverse V1",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD44): "Cortex-X1",
    (0x41, 0xD46): "Cortex-A510",
    (0x41, 0xD47): "Cortex-A710",
    (0x41, 0xD48): "Cortex-X2",
    (0x41, 0xD49): "Neoverse N2",
    (0x41, 0xD4D): "Cortex-A715",
    (0x41, 0xD4E): "Cortex-X3",
    (0x41, 0xD4F): "Neoverse V2",
    (0x41, 0xD80): "Cortex-A520",
    (0x41, 0xD81): "Cortex-A720",
    (0x41, 0xD82): "Cortex-X4",
    (0x41, 0xD85): "Cortex-X925",
    (0x41, 0xD87): "Cortex-A725",
    (0x51, 0x001): "Oryon",
}
"""Types of ARM cores by implementer and part of MIDR_EL1."""

_BIG = 0.5
"""Least share of the fastest core's capacity at which a core computes by default."""
_RATIO_STEPS = 8
"""Ratios of cores that differ in capacity are multiples of this share of the fastest."""


@dataclass(frozen=True)
class Cpu:
    """One CPU of the system; None where the system does not say.

    Attributes:
        number: of the CPU.
        online, allowed: whether it runs, and whether a process of this user may use it.
        min_khz, max_khz, khz: least, highest and current clock.
        governor: of its clock.
        capacity: relative speed; the fastest CPU of a system has 1024.
        package, core, node: numbers of its package, its core and its NUMA node.
        siblings: CPUs of the same core, itself included.
        implementer, part: of an ARM core; text is as in "0xd0b".
    """

    number: int
    online: bool | None = None
    allowed: bool | None = None
    min_khz: int | None = None
    max_khz: int | None = None
    khz: int | None = None
    governor: str | None = None
    capacity: int | None = None
    package: int | None = None
    core: int | None = None
    node: int | None = None
    siblings: tuple[int, ...] | None = None
    implementer: int | str | None = None
    part: int | str | None = None

    @property
    def usable(self) -> bool:
        """Whether it may be used, as far as the system says."""
        return self.online is not False and self.allowed is not False

    @property
    def core_type(self) -> str:
        """Name of the core's type; empty if it is not known."""
        return _PARTS.get((_number(self.implementer), _number(self.part)), "")

    @property
    def kind(self) -> str:
        """Type and highest clock, such as "Cortex-A76 2.40 GHz"; empty if neither is known."""
        clock = f"{self.max_khz / 1e6:.2f} GHz" if self.max_khz else ""
        return " ".join(filter(None, (self.core_type, clock)))

    @property
    def speed(self) -> int:
        """What orders CPUs by speed: capacity, else the highest clock."""
        return self.capacity or self.max_khz or 0


@dataclass(frozen=True)
class ThermalZone:
    """A sensor of temperature."""

    zone: str
    type: str | None = None
    c: float | None = None


@dataclass(frozen=True)
class PowerSupply:
    """A battery or mains adapter; capacity in percent, power in microwatts."""

    name: str
    type: str | None = None
    status: str | None = None
    capacity: float | None = None
    uw: float | None = None


@dataclass(frozen=True)
class OpenCLDevice:
    """An OpenCL device of the target, in the order in which `opencl:INDEX` counts.

    Attributes:
        platform, name, version, driver: as its driver names them.
        on_cpu: whether it runs kernels on CPU cores.
        vendor: as its driver names it.
        unified, fine_grained, scalar, compute_units, local_memory, group_items, wave, half_arithmetic, int8_dot,
            image_buffer, allocation_bytes, address_bits: as of `DeviceInfo`.
        image_width, image_height: of `DeviceInfo.image`.
    """

    platform: str = ""
    name: str = ""
    version: str = ""
    driver: str = ""
    on_cpu: bool | None = None
    unified: bool = False
    fine_grained: bool = False
    scalar: bool = False
    compute_units: int = 1
    local_memory: int = 0
    group_items: int = 0
    vendor: str = ""
    wave: int = 0
    half_arithmetic: bool = False
    int8_dot: str = ""
    image_width: int = 0
    image_height: int = 0
    image_buffer: int = 0
    allocation_bytes: int = 0
    address_bits: int = 0


@dataclass(frozen=True)
class Cluster:
    """CPUs of one speed.

    Attributes:
        cpus: in ascending order; those that may be used.
        threads: one CPU of every core: no two of them are siblings.
    """

    cpus: tuple[Cpu, ...]
    threads: tuple[int, ...]

    @property
    def specification(self) -> str:
        """The cluster as `--processors` takes it."""
        return str(ProcessorSpec("cpu", cores=self.threads))


@dataclass(frozen=True)
class Probe:
    """What a target is. Entries are None, or missing, where the system does not say.

    Attributes:
        machine: architecture as `uname -m` writes it.
        system, kernel, libc: of the system; libc is the runner's.
        page_bytes, memory_bytes, available_bytes: of the memory.
        cpus: in the order of their numbers.
        features: names as in the table of CPU features.
        isa_levels: instruction sets of the engine that the CPU can run.
        thermal, power, opencl: sensors, supplies and devices.
        opencl_error: why there is no OpenCL.
        raw: the runner's JSON.
    """

    machine: str
    system: str = ""
    kernel: str = ""
    libc: str = ""
    page_bytes: int | None = None
    memory_bytes: int | None = None
    available_bytes: int | None = None
    cpus: tuple[Cpu, ...] = ()
    features: tuple[str, ...] = ()
    isa_levels: tuple[str, ...] = ()
    thermal: tuple[ThermalZone, ...] = ()
    power: tuple[PowerSupply, ...] = ()
    opencl: tuple[OpenCLDevice, ...] = ()
    opencl_error: str | None = None
    raw: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Self:
        """The answer of a runner's `--probe`. Entries that this version does not know are only in `raw`.

        Raises:
            TargetError: it is none.
        """
        try:
            return cls(
                **{
                    **_known(cls, answer),
                    "cpus": tuple(Cpu(**_known(Cpu, one)) for one in answer.get("cpus") or ()),
                    "thermal": _all(ThermalZone, answer.get("thermal")),
                    "power": _all(PowerSupply, answer.get("power")),
                    "opencl": _all(OpenCLDevice, answer.get("opencl")),
                    "raw": answer,
                }
            )
        except (AttributeError, TypeError) as error:
            raise TargetError(f"the runner's probe is not understood: {error}; update nnstretch") from error

    @property
    def is_static(self) -> bool:
        """Whether the runner is a static program, which loads no OpenCL drivers."""
        return self.libc == "musl"

    @property
    def shows_energy(self) -> bool:
        """Whether a counter of energy, or the power of a battery, can be read."""
        counters = (self.raw or {}).get("energy") or ()
        return any(one.get("uj") is not None for one in counters) or any(one.uw is not None for one in self.power)

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Usable CPUs of equal type, capacity and highest clock, the slowest first."""
        groups: dict[tuple[object, ...], list[Cpu]] = {}
        for cpu in self.cpus:
            if cpu.usable:
                groups.setdefault((cpu.speed, cpu.max_khz, cpu.core_type, cpu.package), []).append(cpu)
        ordered = sorted(groups.values(), key=lambda group: (group[0].speed, group[0].number))
        return tuple(Cluster(tuple(group), _one_per_core(group)) for group in ordered)

    @property
    def nodes(self) -> Mapping[int, tuple[int, ...]]:
        """CPUs of every NUMA node; empty where the system does not say."""
        found: dict[int, list[int]] = {}
        for cpu in self.cpus:
            if cpu.node is not None:
                found.setdefault(cpu.node, []).append(cpu.number)
        return {node: tuple(numbers) for node, numbers in sorted(found.items())}

    def processor(self, threads: int | None = None) -> str:
        """The processor that computes by default: one CPU of every core that is half as fast as the fastest, or faster.

        Args:
            threads: largest number of cores; the fastest are taken. None: no limit.
        """
        speeds = {number: cluster.cpus[0].speed for cluster in self.clusters for number in cluster.threads}
        if not speeds:
            return "cpu"
        fastest = max(speeds.values())
        fast = [number for number, speed in speeds.items() if speed >= _BIG * fastest]
        cores = tuple(sorted(sorted(fast, key=lambda number: (-speeds[number], number))[:threads]))
        ratios = simplest_ratios(tuple(round(_RATIO_STEPS * speeds[n] / fastest) if fastest else 1 for n in cores))
        return str(ProcessorSpec("cpu", cores=cores, ratios=ratios))


def _number(value: int | str | None) -> int:
    return int(value, 0) if isinstance(value, str) else value or 0


_Entry = TypeVar("_Entry")


def _all(kind: type[_Entry], entries: Iterable[Mapping[str, Any]] | None) -> tuple[_Entry, ...]:
    return tuple(kind(**_known(kind, one)) for one in entries or ())


def _known(kind: type, entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that a dataclass has, with tuples instead of lists."""
    names = {f.name for f in fields(kind)}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in entries.items() if name in names
    }


def _one_per_core(cpus: Sequence[Cpu]) -> tuple[int, ...]:
    taken: set[int] = set()
    chosen = []
    for cpu in cpus:
        if cpu.number not in taken:
            chosen.append(cpu.number)
            taken.update(cpu.siblings or ())
    return tuple(chosen)


def parse_probe(output: bytes, target: str) -> Probe:
    """The probe in a runner's output.

    Raises:
        TargetError: it is none.
    """
    try:
        answer = json.loads(output)
    except ValueError as error:
        raise TargetError(f"{target}: the runner's probe is not JSON: {output[:80]!r}") from error
    return Probe.from_json(answer)


def cluster_text(cluster: Cluster) -> str:
    """A cluster in a few words: "cpu:4-7, 4 × Cortex-A76, 0.4–2.4 GHz"."""
    first = cluster.cpus[0]
    parts = [f"{len(cluster.cpus)} × {first.core_type}" if first.core_type else f"{len(cluster.cpus)} CPUs"]
    if first.max_khz:
        least = f"{first.min_khz / 1e6:.1f}–" if first.min_khz else ""
        parts.append(f"{least}{first.max_khz / 1e6:.1f} GHz")
    if first.capacity:
        parts.append(f"capacity {first.capacity}")
    if len(cluster.threads) < len(cluster.cpus):
        parts.append(
            f"{len(cluster.threads)} cores with sibling threads {format_cores(tuple(c.number for c in cluster.cpus))}"
        )
    return ", ".join((cluster.specification, *parts))
