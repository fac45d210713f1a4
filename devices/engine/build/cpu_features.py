"""The CPU features of runtime/cpu_features.inc: those of this machine, and their compiler options."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nnstretch.errors import UsageError
from nnstretch.support.settings import hidden_cpu_features

TABLE = Path(__file__).parents[1] / "runtime" / "cpu_features.inc"
"""One row per feature, which the engine's C sources expand."""

_ROW = re.compile(r'^NNS_(X86|ARM)\((\w+), (\d), .*"([\w.-]+)"\)$', re.MULTILINE)


@dataclass(frozen=True)
class CpuFeature:
    """A row of the table.

    Attributes:
        name: as in /proc/cpuinfo.
        architecture: as `uname -m` writes it.
        level: the lowest level of the architecture that includes the feature; 0: none does.
        option: LLVM's name for it.
    """

    name: str
    architecture: str
    level: int
    option: str


@cache
def cpu_features() -> dict[str, CpuFeature]:
    """All features by name, in the order of their bits."""
    architectures = {"X86": "x86_64", "ARM": "aarch64"}
    rows = _ROW.findall(TABLE.read_text())
    return {row[1]: CpuFeature(row[1], architectures[row[0]], int(row[2]), row[3]) for row in rows}


def level_features(architecture: str, level: int) -> frozenset[str]:
    """The features that a level of an architecture includes."""
    features = cpu_features().values()
    return frozenset(f.name for f in features if f.architecture == architecture and 1 <= f.level <= level)


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
    return tuple(f.name for f in cpu_features().values() if f.architecture == platform.machine() and f.name in found)


@cache
def _cpuinfo() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def zig_cpu(features: Iterable[str]) -> str:
    """What selects features behind the CPU's name in `-mcpu=NAME` of the ziglang wheel's compiler."""
    return "".join("+" + re.sub(r"[.-]", "_", cpu_features()[name].option) for name in features)


def gcc_flags(flags: tuple[str, ...], features: Iterable[str]) -> tuple[str, ...]:
    """The flags of an instruction set for GCC and Clang, with features added."""
    rows = [cpu_features()[name] for name in features]
    options = ["fp16" if row.option == "fullfp16" else row.option for row in rows]
    if rows and rows[0].architecture == "aarch64":
        return (flags[0] + "".join(f"+{option}" for option in options), *flags[1:])
    return (*flags, *(f"-m{option}" for option in options))
