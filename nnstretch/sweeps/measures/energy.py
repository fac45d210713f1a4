"""Energy of this machine's packages, from Linux's powercap (Intel RAPL and its like)."""

from __future__ import annotations

from pathlib import Path

from nnstretch.errors import UsageError

_ROOT = Path("/sys/class/powercap")


class EnergyMeter:
    """Counters of the top-level power zones."""

    def __init__(self, root: Path = _ROOT) -> None:
        """Finds the counters.

        Raises:
            UsageError: none can be read.
        """
        zones = sorted(zone for zone in root.glob("*:*") if zone.name.count(":") == 1)
        self._zones = [zone for zone in zones if _counter(zone, "energy_uj") is not None]
        if not self._zones:
            raise UsageError(
                f"no energy counter can be read in {root}; leave energy out of --objectives, or permit reading (as root: "
                "chmod a+r /sys/class/powercap/*/energy_uj)"
            )

    def read(self) -> list[float]:
        """Microjoules of every zone."""
        return [_counter(zone, "energy_uj") or 0.0 for zone in self._zones]

    def joules_since(self, before: list[float]) -> float:
        """Joules of all zones together since `read` returned `before`; counters that began again at zero are understood."""
        total = 0.0
        for zone, first, last in zip(self._zones, before, self.read(), strict=True):
            wrapped = last < first
            total += last - first + ((_counter(zone, "max_energy_range_uj") or 0.0) if wrapped else 0.0)
        return total * 1e-6


def _counter(zone: Path, name: str) -> float | None:
    """A number of a zone; None if it cannot be read."""
    try:
        return float((zone / name).read_text())
    except (OSError, ValueError):
        return None
