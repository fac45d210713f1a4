"""The description of the machine, of this one and of made-up ones."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pytest

from nnstretch.devices.engine.build.instruction_sets import ISAS, local_features
from tests.kits.boards.machines import CPU, THERMAL, phone, server, write_tree
from tests.kits.boards.runner import bench


def test_this_machine(runner: Path) -> None:
    device = bench(runner, "--probe")
    assert device["machine"] == platform.machine()
    assert (device["system"], device["kernel"]) == (platform.system(), platform.release())
    assert device["libc"] == "glibc"
    assert device["page_bytes"] == os.sysconf("SC_PAGE_SIZE")
    assert 0 < device["available_bytes"] <= device["memory_bytes"]
    assert {cpu["number"] for cpu in device["cpus"] if cpu["allowed"]} == os.sched_getaffinity(0)
    features = frozenset(local_features())
    assert device["features"] == list(local_features())
    assert device["isa_levels"] == [
        isa.name for isa in ISAS if isa.architecture == platform.machine() and isa.features <= features
    ]


def test_hidden_features_are_missing(runner: Path) -> None:
    hidden = local_features()[0]
    assert hidden not in bench(runner, "--probe", environment={"NNSTRETCH_CPU_FEATURES": f"-{hidden}"})["features"]


def test_a_phone(runner: Path, tmp_path: Path) -> None:
    device = bench(runner, "--probe", "--root", phone(tmp_path))
    assert (device["memory_bytes"], device["available_bytes"]) == (7812345 * 1024, 3456789 * 1024)
    cpus = device["cpus"]
    assert [cpu["number"] for cpu in cpus] == list(range(8))
    assert [cpu["online"] for cpu in cpus] == [True] * 7 + [False]
    assert [cpu["capacity"] for cpu in cpus] == [325] * 4 + [682] * 3 + [1024]
    assert [cpu["part"] for cpu in cpus] == [0xD05] * 4 + [0xD41] * 3 + [0xD44]
    assert {cpu["implementer"] for cpu in cpus} == {0x41}
    assert cpus[4] | {"allowed": None} == {
        "number": 4,
        "online": True,
        "allowed": None,
        "min_khz": 300000,
        "max_khz": 2348000,
        "khz": 2348000,
        "governor": "schedutil",
        "capacity": 682,
        "package": 0,
        "core": 4,
        "node": None,
        "siblings": [4],
        "implementer": 0x41,
        "part": 0xD41,
    }
    assert device["thermal"] == [
        {"zone": "thermal_zone0", "type": "cpu-0-0-usr", "c": 41.5},
        {"zone": "thermal_zone2", "type": "battery", "c": 99},
        {"zone": "thermal_zone10", "type": "BIG", "c": 43},
        {"zone": "thermal_zone11", "type": "cpu-broken", "c": None},
    ]
    assert device["power"] == [
        {"name": "usb", "type": "USB", "status": None, "capacity": None, "uw": None},
        {"name": "battery", "type": "Battery", "status": "Discharging", "capacity": 87, "uw": 2000000},
    ]
    assert device["energy"] == []


def test_a_server(runner: Path, tmp_path: Path) -> None:
    device = bench(runner, "--probe", "--root", server(tmp_path))
    cpus = device["cpus"]
    assert [cpu["node"] for cpu in cpus] == [cpu["package"] for cpu in cpus] == ([0] * 4 + [1] * 4) * 2
    assert [cpu["siblings"] for cpu in cpus] == [[n % 8, n % 8 + 8] for n in range(16)]
    assert {cpu["capacity"] for cpu in cpus} == {None}
    assert [zone["name"] for zone in device["energy"]] == ["package-0", "package-1", "psys", "core", "dram"]
    assert {zone["uj"] for zone in device["energy"]} == {1000}


def test_nothing_at_all(runner: Path, tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "none"):
        device = bench(runner, "--probe", "--root", root)
        assert [device[name] for name in ("cpus", "thermal", "power", "energy")] == [[], [], [], []]
        assert device["memory_bytes"] is None
        assert device["available_bytes"] is None


def _cpus(runner: Path, root: Path, files: dict[str, Any]) -> list[dict[str, Any]]:
    cpus = bench(runner, "--probe", "--root", write_tree(root, files))["cpus"]
    assert isinstance(cpus, list)
    return cpus


def test_cpus_of_32_bit_arm(runner: Path, tmp_path: Path) -> None:
    """Their kernel has no identification in sysfs."""
    text = "processor\t: 0\nBogoMIPS\t: 38.40\nCPU implementer\t: 0x41\nCPU part\t: 0xd03\n\nprocessor\t: 2\nCPU part\t: 0xc07"
    cpus = _cpus(runner, tmp_path, {f"{CPU}/present": "0,2", f"{CPU}/online": "2", "proc/cpuinfo": text})
    assert [(c["number"], c["online"], c["implementer"], c["part"]) for c in cpus] == [
        (0, False, 0x41, 0xD03),
        (2, True, None, 0xC07),
    ]


@pytest.mark.parametrize("text", ["", "x", "3-1", "0-", "-1", "0,,1", "0 1", "0-99999999", "1" * 30, "\0"])
def test_damaged_lists_are_unknown(runner: Path, tmp_path: Path, text: str) -> None:
    assert _cpus(runner, tmp_path, {f"{CPU}/present": text}) == []


@pytest.mark.parametrize("text", ["", "fast", "1.5", "9" * 40, "1 2"])
def test_damaged_numbers_are_unknown(runner: Path, tmp_path: Path, text: str) -> None:
    files = {f"{CPU}/present": "0", f"{CPU}/cpu0/cpu_capacity": text, f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": text}
    (cpu,) = _cpus(runner, tmp_path, files)
    assert (cpu["capacity"], cpu["max_khz"]) == (None, None)


def test_texts_of_the_kernel_become_valid_json(runner: Path, tmp_path: Path) -> None:
    write_tree(tmp_path, {f"{CPU}/present": "0", f"{THERMAL}/thermal_zone0/temp": 1})
    odd = b'a"b\\c\x01\xc3\xa9\xff\xed\xa0\x80\xf0\x9f\x98\x80'
    (tmp_path / THERMAL / "thermal_zone0" / "type").write_bytes(odd)
    (zone,) = bench(runner, "--probe", "--root", tmp_path)["thermal"]
    assert zone["type"] == 'a"b\\c\x01é\ufffd\ufffd\ufffd\ufffd😀'
