"""CPU features, and the instruction sets and systems that the engine can be built for."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from nnstretch.errors import DeviceError, UsageError
from nnstretch.support.settings import hidden_cpu_features

TABLE = Path(__file__).parents[1] / "runtime" / "cpu" / "cpu_features.inc"
"""One row per feature, which the engine's C sources expand."""

_ROW = re.compile(r'^NNS_(X86|ARM|ARM32)\((\w+), (\d), .*?(\w+), "([\w.-]+)"\)$', re.MULTILINE)


@dataclass(frozen=True)
class CpuFeature:
    """A row of the table.

    Attributes:
        name: as in /proc/cpuinfo.
        architecture: as in `Isa`.
        level: the lowest level of the architecture that includes the feature; 0: none does.
        option: LLVM's name for it.
        block: floats in the widest vectors that the feature needs on x86-64; 0 if vectors of 16 bytes do.
        must_ask: a process must ask the system for the feature's registers, which may refuse them.
    """

    name: str
    architecture: str
    level: int
    option: str
    block: int
    must_ask: bool


@cache
def cpu_features() -> dict[str, CpuFeature]:
    """All features by name, in the order of their bits."""
    architectures = {"X86": "x86_64", "ARM": "aarch64", "ARM32": "armv7"}
    blocks = {"NNS_YMM": 8, "NNS_ZMM": 16}
    rows = _ROW.findall(TABLE.read_text())
    return {
        name: CpuFeature(name, architectures[kind], int(level), option, blocks.get(last, 0), last == "NNS_TILES")
        for kind, name, level, last, option in rows
    }


_AVX512 = "avx512f"


def local_features() -> tuple[str, ...]:
    """The features of this machine's CPU that NNSTRETCH_CPU_FEATURES does not hide, in the order of their bits.

    Raises:
        UsageError: NNSTRETCH_CPU_FEATURES hides a feature that does not exist.
    """
    hidden = hidden_cpu_features()
    if unknown := sorted(hidden - cpu_features().keys()):
        raise UsageError(
            f"NNSTRETCH_CPU_FEATURES hides {', '.join(unknown)}, which nnstretch does not know; "
            f"it knows {', '.join(cpu_features())}"
        )
    found = _cpuinfo() - hidden
    if _AVX512 in hidden:  # engines of the instruction set below have no kernels for what builds on it
        found = frozenset(name for name in found if not name.startswith(("avx512", "amx")))
    machine = architecture_of(platform.machine())
    return tuple(f.name for f in cpu_features().values() if f.architecture == machine and f.name in found)


@cache
def _cpuinfo() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def zig_cpu(features: Iterable[str]) -> str:
    """What selects features, after the CPU's name, in `-mcpu=NAME` of the ziglang wheel's compiler."""
    return "".join("+" + re.sub(r"[.-]", "_", cpu_features()[name].option) for name in features)


def gcc_flags(flags: tuple[str, ...], features: Iterable[str]) -> tuple[str, ...]:
    """The flags of an instruction set for GCC and Clang, with features added."""
    rows = [cpu_features()[name] for name in features]
    options = ["fp16" if row.option == "fullfp16" else row.option for row in rows]
    if rows and rows[0].architecture == "aarch64":
        return (flags[0] + "".join(f"+{option}" for option in options), *flags[1:])
    return (*flags, *(f"-m{option}" for option in options))


@dataclass(frozen=True)
class Isa:
    """An instruction set that the engine can be built for.

    Attributes:
        name: as in file names and packages.
        zig_flags: flags of the ziglang wheel's compiler.
        flags: flags of GCC and Clang.
        block: floats per vector, which is the channel block of blocked layouts.
    """

    name: str
    zig_flags: tuple[str, ...]
    flags: tuple[str, ...]
    block: int

    @property
    def architecture(self) -> str:
        """The architecture, as `architecture_of` names it."""
        return "x86_64" if self.name.startswith("x86-64") else self.name

    @property
    def level(self) -> int:
        """The level of the architecture: 2 to 4 for x86-64-v2 to v4, 1 for others."""
        return int(self.name[-1]) if self.architecture == "x86_64" else 1

    @property
    def features(self) -> frozenset[str]:
        """The features that a CPU must have, as /proc/cpuinfo names them."""
        features = cpu_features().values()
        return frozenset(f.name for f in features if f.architecture == self.architecture and 1 <= f.level <= self.level)

    def with_features(self, features: Sequence[str]) -> Isa:
        """The instruction set with the compiler options of more features."""
        if not features:
            return self
        zig_flags = (self.zig_flags[0] + zig_cpu(features), *self.zig_flags[1:])
        return replace(self, zig_flags=zig_flags, flags=gcc_flags(self.flags, features))

    @property
    def oldest_flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """`zig_flags` and `flags` for the oldest CPU of the architecture."""
        if self.architecture == "x86_64":
            return ("-mcpu=x86_64",), ("-march=x86-64",)
        return self.zig_flags, self.flags


# Without this flag clang splits vectors of 16 floats into halves.
_WIDE = "-mprefer-vector-width=512"

ISAS: tuple[Isa, ...] = (
    Isa("x86-64-v4", ("-mcpu=x86_64_v4", _WIDE), ("-march=x86-64-v4", _WIDE), 16),
    Isa("x86-64-v3", ("-mcpu=x86_64_v3",), ("-march=x86-64-v3",), 8),
    Isa("x86-64-v2", ("-mcpu=x86_64_v2",), ("-march=x86-64-v2",), 4),
    Isa("aarch64", ("-mcpu=baseline",), ("-march=armv8-a",), 4),
    # Cortex-A7, A15 and later: fused multiply-add came with VFPv4.
    Isa("armv7", ("-mcpu=generic+v7a+vfp4+neon",), ("-march=armv7-a", "-mfpu=neon-vfpv4"), 4),
    # Without vector registers, some of the loops that the kernels ask for are not unrolled.
    Isa("riscv64", ("-mcpu=baseline_rv64", "-Wno-pass-failed"), ("-march=rv64gc",), 4),
)
"""For each architecture the best comes first."""


def architecture_of(machine: str) -> str:
    """The architecture of a machine that `uname -m` names: "armv7" for 32-bit ARM, the machine's name for others."""
    return "armv7" if machine in ("armv7l", "armv8l") else machine


def best_isa(machine: str, features: frozenset[str]) -> Isa | None:
    """The best instruction set for a CPU; None if the engine has none for it.

    Args:
        machine: the architecture as `uname -m` writes it.
        features: those of the CPU, as /proc/cpuinfo names them.
    """
    architecture = architecture_of(machine)
    return next((isa for isa in ISAS if isa.architecture == architecture and isa.features <= features), None)


@cache
def local_isa() -> Isa:
    """The best instruction set of this machine.

    Raises:
        DeviceError: the CPU supports none of them.
    """
    isa = best_isa(platform.machine(), frozenset(local_features()))
    if isa is not None:
        return isa
    names = ", ".join(isa.name for isa in ISAS)
    raise DeviceError(f"this CPU ({platform.machine()}) has none of the instruction sets {names}; use another machine")


@dataclass(frozen=True)
class BuildTarget:
    """A target of the compiler.

    Attributes:
        isa: the instruction set.
        system: "" for this machine's system and C library; else one of `SYSTEMS`.
    """

    isa: Isa
    system: str = ""

    def __str__(self) -> str:
        return f"{self.isa.name}-{self.system}" if self.system else self.isa.name


SYSTEMS = ("linux-gnu", "linux-musl", "android")
"""glibc; musl, linked statically; Android's C library, by the NDK's compiler."""


def parse_target(text: str) -> BuildTarget:
    """Parses a target: `local`, or an instruction set followed by `-linux-gnu` (the default), `-linux-musl` or `-android`.

    Raises:
        UsageError: unknown target.
        DeviceError: no instruction set fits this machine (`local`).
    """
    if text == "local":
        return BuildTarget(local_isa())
    for isa in ISAS:
        for system in SYSTEMS:
            if text == f"{isa.name}-{system}":
                return BuildTarget(isa, system)
        if text == isa.name:
            return BuildTarget(isa, SYSTEMS[0])
    names = ", ".join(isa.name for isa in ISAS)
    raise UsageError(
        f"unknown target {text!r}; write local, or one of {names} with -linux-gnu, -linux-musl or -android appended"
    )
