"""What a target is: clusters of cores, the processor that computes by default, and probes that say little."""

from __future__ import annotations

from typing import Any

import pytest

from nnstretch.devices.targets.base import TargetError
from nnstretch.devices.targets.probe import Probe, cluster_text, parse_probe


def cpu(number: int, **more: Any) -> dict[str, Any]:
    return {"number": number, "online": True, "allowed": True, "siblings": None, **more}


A55 = {"implementer": 0x41, "part": 0xD05, "capacity": 160, "min_khz": 300_000, "max_khz": 1_800_000}
A78 = {"implementer": 0x41, "part": 0xD41, "capacity": 768, "max_khz": 2_400_000}
X1 = {"implementer": "0x41", "part": "0xd44", "capacity": 1024, "max_khz": 2_800_000}
PHONE = {
    "machine": "aarch64",
    "cpus": [*(cpu(n, **A55) for n in range(4)), *(cpu(n, **A78) for n in (4, 5, 6)), cpu(7, **X1)],
    "a new entry": 1,
}


def test_clusters_of_a_phone() -> None:
    probe = Probe.from_json(PHONE)
    assert [cluster.specification for cluster in probe.clusters] == ["cpu:0-3", "cpu:4-6", "cpu:7"]
    assert [cluster_text(cluster) for cluster in probe.clusters] == [
        "cpu:0-3, 4 × Cortex-A55, 0.3–1.8 GHz, capacity 160",
        "cpu:4-6, 3 × Cortex-A78, 2.4 GHz, capacity 768",
        "cpu:7, 1 × Cortex-X1, 2.8 GHz, capacity 1024",
    ]
    assert probe.raw is PHONE


def test_fast_cores_compute_by_default_with_ratios_of_their_speed() -> None:
    probe = Probe.from_json(PHONE)
    assert probe.processor() == "cpu:4-7*3:3:3:4"
    assert probe.processor(1) == "cpu:7"
    assert probe.processor(2) == "cpu:4+7*3:4"
    assert probe.processor(9) == probe.processor()


def test_siblings_offline_and_forbidden_cpus_do_not_compute() -> None:
    cpus = [cpu(n, max_khz=3_000_000, siblings=[n % 4, n % 4 + 4], node=n % 4 // 2, package=0) for n in range(8)]
    cpus[3] |= {"online": False}
    cpus[2] |= {"allowed": False}
    probe = Probe.from_json({"machine": "x86_64", "cpus": cpus})
    (cluster,) = probe.clusters
    assert [c.number for c in cluster.cpus] == [0, 1, 4, 5, 6, 7]
    assert cluster.threads == (0, 1, 6, 7)
    assert probe.processor() == "cpu:0-1+6-7"
    assert probe.nodes == {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}
    assert "sibling threads 0-1+4-7" in cluster_text(cluster)


def test_machines_that_say_nothing() -> None:
    probe = Probe.from_json({"machine": "aarch64", "cpus": [{"number": 0}, {"number": 1}], "thermal": None})
    assert probe.processor() == "cpu:0-1"
    assert cluster_text(probe.clusters[0]) == "cpu:0-1, 2 CPUs"
    assert Probe.from_json({"machine": "aarch64"}).processor() == "cpu"
    assert Probe.from_json({"machine": "aarch64"}).nodes == {}


@pytest.mark.parametrize("output", [b"", b"not JSON", b"[]", b"3", b'{"cpus": []}', b'{"machine": "m", "cpus": [{}]}'])
def test_output_that_is_no_probe(output: bytes) -> None:
    with pytest.raises(TargetError, match="probe is not"):
        parse_probe(output, "ssh:board")


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, False),
        ({"energy": [{"zone": "intel-rapl:0", "uj": None}], "power": [{"name": "AC", "uw": None}]}, False),
        ({"energy": [{"zone": "intel-rapl:0", "uj": 7}]}, True),
        ({"power": [{"name": "battery", "uw": 900_000}]}, True),
    ],
)
def test_whether_energy_can_be_read(more: dict[str, Any], shown: bool) -> None:
    assert Probe.from_json({**PHONE, **more}).shows_energy is shown
