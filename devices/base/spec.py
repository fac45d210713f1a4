"""Processor specifications as text: `cpu:0-3,opencl:0@1`.

`nnstretch.devices.registry.specifications` has the forms of all kinds, `examples()` what they mean; help, messages and
documentation are made of these.

    CORES     := range ("+" range)*          range := N | N "-" M
    RATIOS    := N (":" N)*

A comma separates processors, and "+" separates core ranges of one processor (`cpu:0-1+4`). Ratios are relative speeds of the
cores in ascending order of cores.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

from nnstretch.devices.base.cgroup import cpu_quota
from nnstretch.devices.registry import ALIASES, KINDS, processor_kind, specifications
from nnstretch.errors import UsageError
from nnstretch.support.settings import core_speeds
from nnstretch.support.words import counted

_ELSEWHERE = {
    **dict.fromkeys(
        ("cuda", "gpu", "igpu", "metal", "rocm", "vulkan"), "GPUs are opencl:N, as `nnstretch devices` lists them"
    ),
    **dict.fromkeys(("onnx", "onnxruntime"), "ONNX Runtime is ort"),
    **dict.fromkeys(("tflite", "xnnpack"), "LiteRT is litert"),
    **dict.fromkeys(("arm", "big", "little", "x86"), "a CPU's cores are cpu:N, as in cpu:0-3"),
}
"""What other programs call a processor -> what it is here."""


_PARTS = 1000
"""What ratios of slow cores are rounded to: parts of a core's full speed."""


@dataclass(frozen=True)
class ProcessorSpec:
    """Specification of one processor.

    Attributes:
        kind: "cpu", "opencl" or one of `nnstretch.devices.registry.KINDS`.
        index: number of the OpenCL device.
        cores: ascending; empty until resolved.
        ratios: relative speeds of a CPU's cores, one per core; empty if equal.
        argument: argument of a kind in `KINDS`, such as LiteRT's delegate; empty for its default and for other kinds.
        shares: whether it shares all cores with other processors because none were left. Its text then omits the cores,
            so that it parses to the same specification.
    """

    kind: str
    index: int = 0
    cores: tuple[int, ...] = ()
    ratios: tuple[int, ...] = ()
    argument: str = ""
    shares: bool = field(default=False, compare=False)

    @property
    def profile(self) -> str:
        """Name or path of a simulated processor's profile."""
        return self.argument.rpartition("/")[0]

    @property
    def part(self) -> str:
        """Name of a simulated processor in its profile."""
        return self.argument.rpartition("/")[2]

    def limited(self, count: int) -> ProcessorSpec:
        """The same processor with its first `count` cores at most."""
        return replace(self, cores=self.cores[:count], ratios=simplest_ratios(self.ratios[:count]))

    def __str__(self) -> str:
        cores = "" if self.shares else format_cores(self.cores)
        if self.kind == "cpu":
            ratios = f"*{':'.join(map(str, self.ratios))}" if self.ratios else ""
            return f"cpu:{cores}{ratios}" if cores else "cpu"
        which = f":{self.index}" if self.kind == "opencl" else ""
        if self.argument:
            which = f":{self.argument}"
        return f"{self.kind}{which}" + (f"@{cores}" if cores else "")


def examples() -> dict[str, str]:
    """Specifications and what they mean, for the documentation."""
    found = {
        "cpu": "all cores that the process may use, within the limits of its control groups: a container with `--cpus 2` "
        "has two",
        "cpu:0-3": "these cores",
        "cpu:0-1+4": "cores 0, 1 and 4",
        "cpu:0-3*1:1:3:3": "these cores; at first, each of the last two gets three times the work of each of the others",
        "opencl:0": "OpenCL device 0 of `nnstretch devices`",
        "opencl:0@1": "the same, on core 1, if the device runs on the CPU (PoCL)",
    }
    for name in KINDS:
        found |= processor_kind(name).examples
    return found


def is_simulated(text: str) -> bool:
    """Whether a specification names a simulated processor."""
    return text.startswith("sim:")


def usable_cores() -> tuple[int, ...]:
    """Cores that this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


@contextmanager
def running_on(cores: Iterable[int]) -> Iterator[None]:
    """Binds the calling thread to the usable ones of `cores`, if any, within the block; threads started in it inherit this."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before.intersection(cores) or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def default_cores() -> tuple[int, ...]:
    """Default cores of processors, ascending: the usable ones, limited to the CPU quota of the control groups.

    More threads would stall each other whenever the quota is used up.
    """
    return usable_cores()[: cpu_quota()]


def example_processors(count: int) -> str:
    """Processors for a command line: `count` groups of the default cores, such as `cpu:0-3,cpu:4-7`; "" if these are fewer."""
    cores = default_cores()
    if count > len(cores):
        return ""
    ends = [len(cores) * number // count for number in range(count + 1)]
    return ",".join(f"cpu:{format_cores(cores[begin:end])}" for begin, end in pairwise(ends))


def parse_processors(text: str, usable: tuple[int, ...] | None = None) -> tuple[ProcessorSpec, ...]:
    """Parses a comma-separated list of processors and assigns cores to each.

    Processors without cores divide the cores that no other names, as evenly as possible, in order. If none are left, a
    processor shares all cores with the others. A CPU quota limits the number of assigned cores (`default_cores`).

    Args:
        text: the list.
        usable: available cores, ascending; None for those that this process may run on.

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
            f"processors {text!r} give one core to two processors, which would compete for it; "
            "name other cores, or none for the processor that shares"
        )
    free = [core for core in usable if core not in named][: max(0, len(default) - len(named))]
    return tuple(_share_cores(specs, free, default))


def parse_counts(text: str) -> tuple[int, ...]:
    """Numbers of cores or threads as in `1,2`, each once; empty if one is below 1 or the text is something else."""
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        return ()
    return counts if min(counts) >= 1 else ()


def all_cores(specs: Iterable[ProcessorSpec]) -> tuple[int, ...]:
    """The cores of several processors, ascending."""
    return tuple(sorted({core for spec in specs for core in spec.cores}))


def pool_name(cores: tuple[int, ...]) -> str:
    """Cores as one processor, such as "cpu:0-1"; with ratios if some are made slow (NNSTRETCH_CORE_SPEEDS): "cpu:0-1*2:1"."""
    slowed = core_speeds()
    ratios = simplest_ratios(tuple(round(_PARTS * slowed.get(core, 1.0)) for core in cores))
    return str(ProcessorSpec("cpu", cores=cores, ratios=ratios))


def _parse_one(text: str, usable: tuple[int, ...]) -> ProcessorSpec:
    name, _, rest = text.partition(":")
    if not text:
        raise UsageError(
            f"a processor has no name; write one of {', '.join(specifications())}, with single commas between"
        )
    if name in KINDS and not processor_kind(name).has_cores:
        return ProcessorSpec(name, argument=processor_kind(name).canonical_argument(rest))
    match = re.fullmatch(r"(\w+)(?::([^@*]*))?(?:@([^*]*))?(?:\*(.*))?", text)
    kind = ALIASES.get(match[1], match[1]) if match else ""
    if not match or kind not in ("cpu", "opencl", *KINDS):
        meant = _ELSEWHERE.get(match[1].lower(), "") if match else ""
        advice = f"{meant}; " if meant else ""
        raise UsageError(f"unknown processor {text!r}; {advice}write one of {', '.join(specifications())}")
    _, argument, cores, ratios = match.groups()
    if kind == "cpu":
        if cores is not None:
            raise UsageError(f"processor {text!r}: a CPU's cores follow a colon, as in cpu:0-3")
        found = _parse_cores(argument, text, usable) if argument else ()
        return ProcessorSpec("cpu", cores=found, ratios=_parse_ratios(ratios, text, found))
    if ratios is not None:
        raise UsageError(f"processor {text!r}: only a CPU's cores have ratios, as in cpu:0-3*1:1:3:3")
    found = _parse_cores(cores, text, usable) if cores else ()
    if kind in KINDS:
        return ProcessorSpec(kind, cores=found, argument=processor_kind(kind).canonical_argument(argument or ""))
    if argument and not argument.isdigit():
        raise UsageError(f"processor {text!r}: {argument!r} is not a device number; see `nnstretch devices`")
    return ProcessorSpec(kind, int(argument or 0), found)


def _parse_ratios(text: str | None, whole: str, cores: tuple[int, ...]) -> tuple[int, ...]:
    """One ratio per core, in lowest terms."""
    if text is None:
        return ()
    if not re.fullmatch(r"\d{1,5}(:\d{1,5})*", text):
        raise UsageError(
            f"processor {whole!r}: {text!r} are not ratios; write one number per core, as in cpu:0-3*1:1:3:3"
        )
    ratios = tuple(map(int, text.split(":")))
    if len(ratios) != len(cores):
        raise UsageError(
            f"processor {whole!r} has {counted(len(ratios), 'ratio')} for {counted(len(cores), 'core')}; write one "
            "number per core"
        )
    if 0 in ratios:
        raise UsageError(f"processor {whole!r}: a core with ratio 0 does nothing; leave the core out")
    return simplest_ratios(ratios)


def simplest_ratios(ratios: tuple[int, ...]) -> tuple[int, ...]:
    """Ratios divided by their greatest common divisor; empty if all are equal."""
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
    """Divides `free` among processors without cores; those that get none share `default`."""
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
    return not spec.cores and (spec.kind not in KINDS or processor_kind(spec.kind).has_cores)


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
