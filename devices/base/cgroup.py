"""CPU time limits of this process's control groups: containers limit CPU time without hiding cores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def cpu_quota(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> int | None:
    """CPU time limit of this process in cores, rounded up; None without a limit.

    Reads `cpu.max` (version 2) and `cpu.cfs_quota_us` (version 1) of the process's groups and their ancestors and takes
    the minimum. Unreadable files are ignored.

    Args:
        mount: mount point of the control group hierarchies.
        membership: file that lists the process's groups.
    """
    limits = [limit for folder in _folders(mount, membership) if (limit := _limit(folder)) is not None]
    return max(1, math.ceil(min(limits))) if limits else None


def _folders(mount: Path, membership: Path) -> Iterator[Path]:
    """Folders of the process's CPU groups and their ancestors.

    A container may see the group path of its host, which is not mounted there; its own group is then the mount point.
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
    """Limit of one group in cores."""
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
