"""How much CPU time the control groups of this process allow it: containers limit time without taking cores away."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_quota(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> int | None:
    """Cores whose whole time this process may use, rounded up; None if nothing limits it.

    Reads `cpu.max` of version 2 and `cpu.cfs_quota_us` of version 1, of the process's groups and all around them: the
    narrowest limit counts. What cannot be read limits nothing.

    Args:
        mount: where the hierarchies of control groups are mounted.
        membership: the file that names the process's groups.
    """
    limits = [limit for folder in _folders(mount, membership) if (limit := _limit(folder)) is not None]
    return max(1, math.ceil(min(limits))) if limits else None


def _folders(mount: Path, membership: Path) -> Iterator[Path]:
    """The folders of the process's groups for CPU time, with those around them.

    A container may see its group's name from outside, where no such folder is mounted; the mount itself is its group then.
    """
    for line in _read(membership).splitlines():
        number, controllers, group = line.split(":", 2)
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        below = PurePosixPath(group.lstrip("/"))
        hierarchy = mount if number == "0" else mount / controllers
        if number != "0" and not hierarchy.is_dir():
            hierarchy = mount / "cpu"
        yield from (hierarchy / part for part in (below, *below.parents))


def _limit(folder: Path) -> float | None:
    """Cores that one group allows."""
    text = _read(folder / "cpu.max") or f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
    words = text.split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None  # "max", or -1 in version 1
    return int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
