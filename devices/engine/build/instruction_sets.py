"""The instruction sets and systems that the engine can be built for."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from nnstretch.devices.engine.build.cpu_features import gcc_flags, level_features, local_features, zig_cpu
from nnstretch.errors import DeviceError, UsageError


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
        """The architecture as compilers and `uname -m` write it."""
        return "aarch64" if self.name.startswith("aarch64") else "x86_64"

    @property
    def level(self) -> int:
        """The level of the architecture: 2 to 4 for x86-64-v2 to v4, 1 for aarch64."""
        return int(self.name[-1]) if self.architecture == "x86_64" else 1

    @property
    def features(self) -> frozenset[str]:
        """The features that a CPU must have, as /proc/cpuinfo names them."""
        return level_features(self.architecture, self.level)

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
)
"""For each architecture the best comes first."""


@cache
def local_isa() -> Isa:
    """The best instruction set of this machine.

    Raises:
        DeviceError: the CPU supports none of them.
    """
    found = frozenset(local_features())
    for isa in ISAS:
        if isa.architecture == platform.machine() and isa.features <= found:
            return isa
    names = ", ".join(isa.name for isa in ISAS)
    raise DeviceError(f"this CPU ({platform.machine()}) has none of the instruction sets {names}; use another machine")


@dataclass(frozen=True)
class BuildTarget:
    """A target of the compiler.

    Attributes:
        isa: the instruction set.
        system: "" for this machine's system and C library; else "linux-gnu" or "linux-musl".
    """

    isa: Isa
    system: str = ""

    def __str__(self) -> str:
        return f"{self.isa.name}-{self.system}" if self.system else self.isa.name


SYSTEMS = ("linux-gnu", "linux-musl")


def parse_target(text: str) -> BuildTarget:
    """Parses a target: `local`, or an instruction set followed by `-linux-gnu` (the default) or `-linux-musl`.

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
        f"unknown target {text!r}; write local, or one of {names} with -linux-gnu or -linux-musl behind it"
    )
