"""Processors as people write them: `cpu:0-3,opencl:0@1`.

    spec      := processor ("," processor)*
    processor := "cpu" [":" cores ["*" ratios]] | "opencl" [":" index] ["@" cores] | "litert" [":" delegate] ["@" cores]
               | "ort" ["@" cores] | "sim:" profile "/" name
    cores     := range ("+" range)*          range := N | N "-" M
    ratios    := N (":" N)*

A comma separates processors, so several core ranges of one processor are joined by "+" (`cpu:0-1+4`). Ratios say how fast
the cores are beside each other, in ascending order of cores: with `cpu:0-3*1:1:3:3` the last two get three times the work of
the first two.

A delegate (`nnstretch.devices.external.litert.delegate`) is the part of LiteRT that computes: `xnnpack` (the default),
`builtin`, `gpu`, or the path of a library, each with options if it has any: `litert:/usr/lib/libnpu.so?speed=2@0`. `tflite` is
an older name of `litert`.

`sim:PROFILE/NAME` is the processor NAME of a profile (`nnstretch.devices.simulated`): one that comes with nnstretch, or the
path of a .json file. Such processors can be planned for and simulated, but run nothing; they have no cores.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nnstretch.devices.base.cgroup import cpu_quota
from nnstretch.devices.external.registry import ALIASES, FOLDERS, external_engine
from nnstretch.errors import UsageError

KINDS = ("cpu", "opencl", *FOLDERS, "sim")


@dataclass(frozen=True)
class ProcessorSpec:
    """One processor as written.

    Attributes:
        kind: one of KINDS.
        index: the OpenCL device's number.
        cores: ascending; empty until resolved.
        ratios: relative speeds of a CPU's cores, one for each; empty if they are equal.
        argument: of an external engine, such as LiteRT's delegate; empty for its default and for other kinds.
        profile, part: of a simulated processor: name or path of the profile, and the processor in it.
        shares: whether the cores are everybody's, since none were left. It is then written without them, so that what
            is written means the same when it is read again.
    """

    kind: str
    index: int = 0
    cores: tuple[int, ...] = ()
    ratios: tuple[int, ...] = ()
    argument: str = ""
    profile: str = ""
    part: str = ""
    shares: bool = field(default=False, compare=False)

    def limited(self, count: int) -> ProcessorSpec:
        """The same processor with its first `count` cores at most."""
        return replace(self, cores=self.cores[:count], ratios=simplest_ratios(self.ratios[:count]))

    def __str__(self) -> str:
        if self.kind == "sim":
            return f"sim:{self.profile}/{self.part}"
        cores = "" if self.shares else format_cores(self.cores)
        if self.kind == "cpu":
            ratios = f"*{':'.join(map(str, self.ratios))}" if self.ratios else ""
            return f"cpu:{cores}{ratios}" if cores else "cpu"
        which = f":{self.index}" if self.kind == "opencl" else ""
        if self.argument:
            which = f":{self.argument}"
        return f"{self.kind}{which}" + (f"@{cores}" if cores else "")


def is_simulated(text: str) -> bool:
    """Whether a processor as written exists in a profile only."""
    return text.startswith("sim:")


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
    ones taking what the earlier ones leave. If nothing is left, a processor shares all cores with the others. Where control
    groups limit the process's time, only as many cores are given away as that time is enough for (`default_cores`).

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
        raise UsageError(
            f"processors {text!r} give one core to two processors, which would wait for each other on it; "
            "name others, or none for the one that is to share"
        )
    free = [core for core in usable if core not in named][: max(0, len(default) - len(named))]
    return tuple(_share_cores(specs, free, default))


def all_cores(specs: Iterable[ProcessorSpec]) -> tuple[int, ...]:
    """The cores of several processors, ascending."""
    return tuple(sorted({core for spec in specs for core in spec.cores}))


def _parse_one(text: str, usable: tuple[int, ...]) -> ProcessorSpec:
    if text == "sim" or text.startswith("sim:"):
        return _parse_simulated(text)
    match = re.fullmatch(r"(\w+)(?::([^@*]*))?(?:@([^*]*))?(?:\*(.*))?", text)
    if not match or ALIASES.get(match[1], match[1]) not in KINDS:
        raise UsageError(
            f"unknown processor {text!r}; write one of cpu[:CORES[*RATIOS]], opencl[:INDEX][@CORES], "
            "litert[:DELEGATE][@CORES], ort[@CORES], sim:PROFILE/NAME"
        )
    kind, argument, cores, ratios = match.groups()
    kind = ALIASES.get(kind, kind)
    if kind == "cpu":
        if cores is not None:
            raise UsageError(f"processor {text!r}: a CPU's cores follow a colon, as in cpu:0-3")
        found = _parse_cores(argument, text, usable) if argument else ()
        return ProcessorSpec("cpu", cores=found, ratios=_parse_ratios(ratios, text, found))
    if ratios is not None:
        raise UsageError(f"processor {text!r}: only a CPU's cores have ratios, as in cpu:0-3*1:1:3:3")
    found = _parse_cores(cores, text, usable) if cores else ()
    if kind in FOLDERS:
        return ProcessorSpec(kind, cores=found, argument=external_engine(kind).canonical_argument(argument or ""))
    if argument and not argument.isdigit():
        raise UsageError(f"processor {text!r}: {argument!r} is not a device number; see `nnstretch devices`")
    return ProcessorSpec(kind, int(argument or 0), found)


def _parse_simulated(text: str) -> ProcessorSpec:
    profile, slash, part = text.removeprefix("sim").removeprefix(":").rpartition("/")
    if not (profile and slash and part):
        raise UsageError(
            f"processor {text!r} does not say which one of a profile; write sim:PROFILE/NAME, as in sim:phone/cpu"
        )
    return ProcessorSpec("sim", profile=profile, part=part)


def _parse_ratios(text: str | None, whole: str, cores: tuple[int, ...]) -> tuple[int, ...]:
    """One ratio for every core, as simple as can be."""
    if text is None:
        return ()
    if not re.fullmatch(r"\d{1,5}(:\d{1,5})*", text):
        raise UsageError(
            f"processor {whole!r}: {text!r} are no ratios; write one number per core, as in cpu:0-3*1:1:3:3"
        )
    ratios = tuple(map(int, text.split(":")))
    if len(ratios) != len(cores):
        raise UsageError(
            f"processor {whole!r} has {len(ratios)} ratios for {len(cores)} cores; write one number per core"
        )
    if 0 in ratios:
        raise UsageError(f"processor {whole!r}: a core with ratio 0 does nothing; leave the core out")
    return simplest_ratios(ratios)


def simplest_ratios(ratios: tuple[int, ...]) -> tuple[int, ...]:
    """Ratios without their greatest common divisor; none where all are equal."""
    common = math.gcd(*ratios)
    return tuple(ratio // common for ratio in ratios) if len(set(ratios)) > 1 else ()


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
    waiting = sum(_wants_cores(spec) for spec in specs)
    shared: list[ProcessorSpec] = []
    for spec in specs:
        if _wants_cores(spec):
            take = -(-len(free) // waiting) if waiting else 0
            mine, free, waiting = free[:take], free[take:], waiting - 1
            spec = replace(spec, cores=tuple(mine) or default, shares=not mine)
        shared.append(spec)
    return shared


def _wants_cores(spec: ProcessorSpec) -> bool:
    return not spec.cores and spec.kind != "sim"


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
