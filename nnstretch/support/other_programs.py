"""CPU time that other programs use while this one measures."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_NOTICED = 0.3
"""Cores in use by other programs that are worth a word; a desktop at rest uses less."""
_SHORTEST = 0.5
"""Seconds below which nothing is said: the kernel counts in hundredths of a second per core and process."""
_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class OtherPrograms:
    """What other programs used of the cores that this process may run on.

    Attributes:
        used: cores, on average.
        cores: how many this process may run on.
    """

    used: float
    cores: int

    @property
    def is_noticed(self) -> bool:
        """Whether they used so much that measurements suffer."""
        return self.used > _NOTICED

    def to_json(self) -> dict[str, Any]:
        """The object that `from_json` reads."""
        return {"used_cores": round(self.used, 2), "cores": self.cores}

    @staticmethod
    def from_json(fields: Mapping[str, Any] | None) -> OtherPrograms | None:
        """What `to_json` wrote; None for none."""
        return None if fields is None else OtherPrograms(float(fields["used_cores"]), int(fields["cores"]))


class CoreWatch:
    """Compares the busy time of the usable cores with the CPU time of this process and its descendants, from its making on."""

    def __init__(self, proc: Path = _PROC) -> None:
        """Begins.

        Args:
            proc: the folder of the kernel's counters.
        """
        self._proc = proc
        self._cores = os.sched_getaffinity(0)
        self._begin, self._before = time.perf_counter(), self._foreign_seconds()

    def others(self) -> OtherPrograms | None:
        """What other programs have used so far; None if the kernel does not say, or after less than half a second."""
        elapsed, after = time.perf_counter() - self._begin, self._foreign_seconds()
        if self._before is None or after is None or elapsed < _SHORTEST:
            return None
        return OtherPrograms(max(0.0, (after - self._before) / elapsed), len(self._cores))

    def _foreign_seconds(self) -> float | None:
        """Busy seconds of the usable cores since the start of the machine without ours; None if the kernel does not say."""
        busy = busy_seconds(self._proc, self._cores)
        return None if busy is None else busy - family_seconds(self._proc, os.getpid())


def busy_seconds(proc: Path, cores: set[int]) -> float | None:
    """Seconds that some cores have been busy since the start of the machine; None if the kernel does not say."""
    names = {f"cpu{core}" for core in cores}
    rows = [words for words in map(str.split, _read(proc / "stat").splitlines()) if words and words[0] in names]
    if len(rows) != len(names) or min(map(len, rows)) < 9:
        return None
    # user, nice, system, irq, softirq, steal: idle and iowait are left out
    return sum(int(words[place]) for words in rows for place in (1, 2, 3, 6, 7, 8)) * _TICK


def family_seconds(proc: Path, pid: int) -> float:
    """CPU seconds of a process and its descendants, with those of children that have ended."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in proc.glob("[0-9]*"):
        # The name in brackets may hold anything; what follows begins with the state and the parent.
        words = _read(folder / "stat").rpartition(")")[2].split()
        if len(words) > 14:
            children.setdefault(int(words[1]), []).append(int(folder.name))
            ticks[int(folder.name)] = sum(map(int, words[11:15]))  # user and system time, and both of ended children
    spent, found = 0, [pid]
    while found:
        one = found.pop()
        spent += ticks.get(one, 0)
        found += children.pop(one, ())
    return spent * _TICK


def _read(path: Path) -> str:
    """The text of a file of the kernel; "" if it has gone."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
