"""Made-up machines: trees of /sys and /proc for the runner's --root."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CPU = "sys/devices/system/cpu"
THERMAL = "sys/class/thermal"
POWERCAP = "sys/class/powercap"
SUPPLY = "sys/class/power_supply"


def replace(path: Path, content: str) -> None:
    """Writes a file in one step, as a file of the kernel changes."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(f"{content}\n")
    part.replace(path)


def write_tree(root: Path, files: Mapping[str, object]) -> Path:
    """Writes a line into every file; a path that ends with a slash is a folder."""
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
    return root


def phone(root: Path) -> Path:
    """Four small cores, three middle ones and a large one; the large one is offline."""
    files: dict[str, object] = {
        f"{CPU}/present": "0-7",
        f"{CPU}/online": "0-6",
        "proc/meminfo": "MemTotal:        7812345 kB\nMemFree:          123456 kB\nMemAvailable:    3456789 kB",
        f"{THERMAL}/thermal_zone0/type": "cpu-0-0-usr",
        f"{THERMAL}/thermal_zone0/temp": 41500,
        f"{THERMAL}/thermal_zone2/type": "battery",
        f"{THERMAL}/thermal_zone2/temp": 99000,
        f"{THERMAL}/thermal_zone10/type": "BIG",
        f"{THERMAL}/thermal_zone10/temp": 43000,
        f"{THERMAL}/thermal_zone11/type": "cpu-broken",
        f"{SUPPLY}/battery/type": "Battery",
        f"{SUPPLY}/battery/status": "Discharging",
        f"{SUPPLY}/battery/capacity": 87,
        f"{SUPPLY}/battery/current_now": -500000,
        f"{SUPPLY}/battery/voltage_now": 4000000,
        f"{SUPPLY}/usb/type": "USB",
    }
    kinds = [(0xD05, 1803000, 325)] * 4 + [(0xD41, 2348000, 682)] * 3 + [(0xD44, 2850000, 1024)]
    for number, (part, khz, capacity) in enumerate(kinds):
        cpu = f"{CPU}/cpu{number}"
        files |= {
            f"{cpu}/cpu_capacity": capacity,
            f"{cpu}/regs/identification/midr_el1": f"0x{0x41 << 24 | 0xF << 16 | part << 4:016x}",
            f"{cpu}/topology/physical_package_id": 0,
            f"{cpu}/topology/core_id": number,
            f"{cpu}/topology/core_cpus_list": number,
            f"{cpu}/cpufreq/cpuinfo_min_freq": 300000,
            f"{cpu}/cpufreq/cpuinfo_max_freq": khz,
            f"{cpu}/cpufreq/scaling_max_freq": khz,
            f"{cpu}/cpufreq/scaling_cur_freq": khz,
            f"{cpu}/cpufreq/scaling_governor": "schedutil",
        }
    return write_tree(root, files)


def server(root: Path) -> Path:
    """Two packages of four cores with two threads each, a NUMA node per package; energy counters of Intel."""
    files: dict[str, object] = {
        f"{CPU}/present": "0-15",
        f"{CPU}/online": "0-15",
        "proc/meminfo": "MemTotal:       263812345 kB\nMemAvailable:   253456789 kB",
        f"{THERMAL}/thermal_zone0/type": "x86_pkg_temp",
        f"{THERMAL}/thermal_zone0/temp": 55000,
        f"{POWERCAP}/intel-rapl/enabled": 1,
    }
    for number in range(16):
        cpu, package = f"{CPU}/cpu{number}", number % 8 // 4
        files |= {
            f"{cpu}/topology/physical_package_id": package,
            f"{cpu}/topology/core_id": number % 4,
            f"{cpu}/topology/thread_siblings_list": f"{number % 8},{number % 8 + 8}",
            f"{cpu}/node{package}/": None,
            f"{cpu}/cpufreq/cpuinfo_max_freq": 3900000,
            f"{cpu}/cpufreq/scaling_max_freq": 3900000,
            f"{cpu}/cpufreq/base_frequency": 2300000,
            f"{cpu}/cpufreq/scaling_cur_freq": 2900000,
            f"{cpu}/cpufreq/scaling_governor": "performance",
            f"{cpu}/thermal_throttle/core_throttle_count": 3,
            f"{cpu}/thermal_throttle/package_throttle_count": 5,
        }
    for zone, name in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "package-1"),
        ("intel-rapl:2", "psys"),
    ):
        files |= {
            f"{POWERCAP}/{zone}/name": name,
            f"{POWERCAP}/{zone}/energy_uj": 1000,
            f"{POWERCAP}/{zone}/max_energy_range_uj": 262143328850,
        }
    return write_tree(root, files)
