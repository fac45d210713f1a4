"""Processors as people write them: `cpu:0-3,opencl:0@1`.

    spec      := processor ("," processor)*
    processor := "cpu" [":" cores] | "opencl" [":" index] ["@" cores]
    cores     := range ("+" range)*          range := N | N "-" M

A comma separates processors, so several core ranges of one processor are joined by "+" (`cpu:0-1+4`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from nnstretch.devices.cgroup import cpu_quota
from nnstretch.errors import UsageError

KINDS = ("cpu", "opencl")


@dataclass(frozen=True)
class ProcessorSpec:
    """One processor as written. `cores` is empty until resolved; `index` is the OpenCL device's number."""

    kind: str
    index: int = 0
    cores: tuple[int, ...] = ()

    def __str__(self) -> str:
        cores = format_cores(self.cores)
        if self.kind == "cpu":
            return f"cpu:{cores}" if cores else "cpu"
        return f"{self.kind}:{self.index}" + (f"@{cores}" if cores else "")


def usable_cores() -> tuple[int, ...]:
    """Cores that this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def default_cores() -> tuple[int, ...]:
    """Cores that processors use if none are named, ascending.

    As many of the usable ones as the control groups of this process give it time for: more threads would wait for each
    other whenever that time is used up.
    """
    return usable_cores()[: cpu_quota()]


def parse_processors(text: str, usable: tuple[int, ...] | None = None) -> tuple[ProcessorSpec, ...]:
    """Reads a comma-separated list of processors and gives every one its cores.

    A processor without cores gets those that nobody else named; several such share them as evenly as possible, the later
    ones taking what the earlier ones leave. If nothing is left, a processor gets all cores. Where control groups limit the
    process's time, only as many cores are given away as that time is enough for (`default_cores`).

    Args:
        text: the list.
        usable: the cores that there are, ascending; those that this process may run on if None.

    Raises:
        UsageError: malformed text, unknown kind, a core that cannot be used, or a core named twice.
    """
    default = default_cores() if usable is None else usable
    usable = usable_cores() if usable is None else usable
    specs = [_parse_one(part.strip(), usable) for part in text.split(",")]
    if len({str(s) for s in specs}) != len(specs):
        raise UsageError(f"processors {text!r} name one processor twice; name each once, with cores of its own")
    named = [core for spec in specs for core in spec.cores]
    if len(set(named)) != len(named):
        raise UsageError(f"processors {text!r} give one core to two processors; two would wait for each other on it")
    free = [core for core in usable if core not in named][: max(0, len(default) - len(named))]
    return tuple(_share_cores(specs, free, default))


def _parse_one(text: str, usable: tuple[int, ...]) -> ProcessorSpec:
    match = re.fullmatch(r"(\w+)(?::([^@]*))?(?:@(.*))?", text)
    if not match or match[1] not in KINDS:
        raise UsageError(f"unknown processor {text!r}; write one of cpu[:CORES], opencl[:INDEX][@CORES]")
    kind, argument, cores = match.groups()
    if kind == "cpu":
        if cores is not None:
            raise UsageError(f"processor {text!r}: a CPU's cores follow a colon, as in cpu:0-3")
        return ProcessorSpec("cpu", cores=_parse_cores(argument, text, usable) if argument else ())
    if argument and not argument.isdigit():
        raise UsageError(f"processor {text!r}: {argument!r} is not a device number; see `nnstretch devices`")
    return ProcessorSpec(kind, int(argument or 0), _parse_cores(cores, text, usable) if cores else ())


def _parse_cores(text: str, whole: str, usable: tuple[int, ...]) -> tuple[int, ...]:
    cores: list[int] = []
    for part in text.split("+"):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(f"processor {whole!r}: {part!r} is not a core or a range of cores such as 0-3")
        cores.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    for core in cores:
        if core not in usable:
            raise UsageError(f"processor {whole!r}: core {core} cannot be used; usable are {format_cores(usable)}")
    return tuple(sorted(set(cores)))


def _share_cores(specs: list[ProcessorSpec], free: list[int], default: tuple[int, ...]) -> list[ProcessorSpec]:
    """Gives `free` to processors without cores, or `default` to those for which nothing is left."""
    waiting = sum(not spec.cores for spec in specs)
    shared: list[ProcessorSpec] = []
    for spec in specs:
        if not spec.cores:
            take = -(-len(free) // waiting) if waiting else 0
            mine, free, waiting = free[:take], free[take:], waiting - 1
            spec = replace(spec, cores=tuple(mine) or default)
        shared.append(spec)
    return shared


def format_cores(cores: tuple[int, ...]) -> str:
    """Cores as ranges: (0, 1, 2, 5) -> "0-2+5"."""
    parts: list[str] = []
    start = previous = -1
    for core in (*cores, -2):
        if start >= 0 and core != previous + 1:
            parts.append(f"{start}-{previous}" if previous > start else f"{start}")
            start = core
        elif start < 0:
            start = core
        previous = core
    return "+".join(parts)
