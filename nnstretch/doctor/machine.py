"""Cores, memory, and how steady measurements on this machine are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nnstretch.devices.base.cgroup import cpu_quota
from nnstretch.devices.base.spec import format_cores, usable_cores
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.engine.binding.library import engine
from nnstretch.doctor.finding import Finding, State
from nnstretch.errors import NNStretchError
from nnstretch.support.other_programs import CoreWatch, OtherPrograms
from nnstretch.support.words import counted

_CPUS = Path("/sys/devices/system/cpu")
_PROC = Path("/proc")
_READINGS, _PAUSE = 40, 0.01  # of the clock of each core; seconds between two
_STEADY = 0.05  # share by which the 90th percentile of readings may lie above the median
_CORES_READ = 4
_LEAST_MEMORY = 2 << 30  # bytes; tuning VGG-16 with all its candidates takes about 1.5 GB


def cores(cpus: Path = _CPUS, proc: Path = _PROC) -> Iterator[Finding]:
    """Cores of this process: limits, hyper-threads, governor, virtualisation."""
    usable, all_cores = usable_cores(), os.cpu_count() or 1
    limited = f" of {all_cores}" if len(usable) < all_cores else ""
    yield Finding("cores", State.OK, f"{format_cores(usable)}{limited}, {cpu_model()}")
    if len(usable) == 1:
        yield Finding(
            "branches",
            State.NOTE,
            "one core: branches gain nothing",
            "allow more cores, or name a GPU as a processor, too",
        )
    quota = cpu_quota()
    if quota is not None and quota < len(usable):
        found = f"the container may use the time of {quota} of its {counted(len(usable), 'core')}"
        yield Finding(
            "CPU limit", State.NOTE, found, f"raise the limit, or give {counted(quota, 'core')} with --threads or -p"
        )
    yield from _siblings(usable, cpus)
    yield from _governor(usable, cpus)
    if _is_virtual(proc):
        found = "a virtual machine: neighbours change the clock and the caches"
        yield Finding("virtual machine", State.NOTE, found, "trust ratios of one run more than times of two")


def _siblings(usable: Sequence[int], cpus: Path) -> Iterator[Finding]:
    groups = {_read(cpus / f"cpu{core}/topology/thread_siblings_list") for core in usable}
    shared = [group for group in sorted(groups) if len(set(_cores_of(group)) & set(usable)) > 1]
    if shared:
        found = f"threads of one core each: {'; '.join(shared)}"
        remedy = "take one of each as processors and threads: two of one core share its units"
        yield Finding("hyper-threads", State.NOTE, found, remedy)


def _cores_of(text: str) -> Iterator[int]:
    """The numbers of a list such as 0,4 or 0-1,8-9."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _governor(usable: Sequence[int], cpus: Path) -> Iterator[Finding]:
    governors = {_read(cpus / f"cpu{core}/cpufreq/scaling_governor") for core in usable} - {""}
    slow = sorted(governors - {"performance"})
    if slow:
        remedy = "sudo cpupower frequency-set -g performance"
        yield Finding("clock governor", State.NOTE, f"{', '.join(slow)}: clocks rise late in a run", remedy)


def _is_virtual(proc: Path) -> bool:
    return any(
        line.startswith("flags") and "hypervisor" in line.split() for line in _read(proc / "cpuinfo").splitlines()
    )


def memory(proc: Path = _PROC) -> Iterator[Finding]:
    """Memory that is free now."""
    rows = dict(line.split(":", 1) for line in _read(proc / "meminfo").splitlines() if ":" in line)
    if "MemAvailable" not in rows:
        return
    free = int(rows["MemAvailable"].split()[0]) * 1024
    if free < _LEAST_MEMORY:
        remedy = "end other programs before large networks are tuned or trained"
        yield Finding("memory", State.NOTE, f"{free / 1e9:.1f} GB free", remedy)
    else:
        yield Finding("memory", State.OK, f"{free / 1e9:.1f} GB free")


def steadiness(proc: Path = _PROC) -> Iterator[Finding]:
    """How busy other programs keep the machine, and how much the multiply-add rate of a core changes within a second."""
    watch = CoreWatch(proc)
    try:
        rates = {core: _clock(core) for core in usable_cores()[:_CORES_READ]}
    except NNStretchError:
        return  # the engine's own finding says why
    yield from _other_programs(watch.others())
    spread = max(float(np.percentile(found, 90) / np.median(found)) - 1 for found in rates.values())
    text = f"the multiply-add rate changes by {spread:.0%} within a second"
    if spread > _STEADY:
        yield Finding("clock", State.NOTE, text, "fix the clock if you can; results then come with wide intervals")
    else:
        yield Finding("clock", State.OK, text)


def _other_programs(others: OtherPrograms | None) -> Iterator[Finding]:
    """What they use; nothing if that is not known."""
    if others is None:
        return
    found = f"keep {others.used:.1f} of {counted(others.cores, 'core')} busy"
    if others.is_noticed:
        remedy = "end them before you measure: times and choices of routines suffer"
        yield Finding("other programs", State.NOTE, found, remedy)
    else:
        yield Finding("other programs", State.OK, found)


def _clock(core: int) -> list[float]:
    """Readings of the multiply-add rate of a core in GFLOP/s."""
    found = []
    for _ in range(_READINGS):
        found.append(engine().clock_gflops(core))
        time.sleep(_PAUSE)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
