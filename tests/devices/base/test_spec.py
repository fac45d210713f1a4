"""Processor specifications, and the cores that they get under a CPU quota."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.compiler.processors import build_processors
from nnstretch.devices import registry
from nnstretch.devices.base import spec
from nnstretch.devices.base.cgroup import cpu_quota
from nnstretch.devices.base.processor import Processor, ProcessorKind
from nnstretch.devices.base.spec import ProcessorSpec, default_cores, example_processors, parse_processors, usable_cores
from nnstretch.errors import DeviceError, UsageError

NO_GROUPS = "0::/\n"


def quota(folder: Path, membership: str, files: dict[str, str]) -> int | None:
    """`cpu_quota` with simulated control groups."""
    mount, member = folder / "cgroup", folder / "self"
    member.write_text(membership)
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    return cpu_quota(mount, member)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2),
        ("250000 100000\n", 3),
        ("1000 100000\n", 1),
        ("100000\n", None),
        ("100000 0\n", None),
        ("", None),
    ],
)
def test_version_2_limits_are_rounded_up(tmp_path: Path, text: str, cores: int | None) -> None:
    assert quota(tmp_path, NO_GROUPS, {"cpu.max": text}) == cores


def test_the_lowest_limit_of_all_ancestors_counts(tmp_path: Path) -> None:
    files = {"cpu.max": "800000 100000", "a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}
    assert quota(tmp_path, "0::/a/b\n", {**files, "other/cpu.max": "100000 100000"}) == 3


def test_a_group_path_of_the_host_maps_to_the_mount(tmp_path: Path) -> None:
    assert quota(tmp_path, "0::/system.slice/docker-1234.scope\n", {"cpu.max": "150000 100000"}) == 2


@pytest.mark.parametrize("hierarchy", ["cpu", "cpu,cpuacct"])
def test_version_1(tmp_path: Path, hierarchy: str) -> None:
    membership = "5:memory:/m\n4:cpu,cpuacct:/docker/1234\n0::/\n"
    group = f"{hierarchy}/docker/1234"
    files = {f"{hierarchy}/cpu.cfs_quota_us": "-1\n", f"{hierarchy}/cpu.cfs_period_us": "100000\n"}
    files |= {f"{group}/cpu.cfs_quota_us": "150000\n", f"{group}/cpu.cfs_period_us": "100000\n"}
    assert quota(tmp_path, membership, files) == 2
    assert quota(tmp_path, membership, {**files, f"{group}/cpu.cfs_quota_us": "-1\n"}) is None


def test_missing_files_set_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path / "neither") is None


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that may run on cores 2 to 5, without a CPU quota."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 3, 4, 5})
    monkeypatch.setattr(spec, "cpu_quota", lambda: None)
    return monkeypatch


def names(text: str) -> str:
    return ",".join(map(str, parse_processors(text)))


def test_processors_without_cores_share_those_that_nobody_named(four: pytest.MonkeyPatch) -> None:
    assert names("cpu") == "cpu:2-5"
    assert names("cpu,opencl") == "cpu:2-3,opencl:0@4-5"
    assert names("cpu:3,opencl") == "cpu:3,opencl:0@2+4-5"
    assert names("opencl@2-5,cpu") == "opencl:0@2-5,cpu"
    with pytest.raises(UsageError, match="core 1 cannot be used"):
        names("cpu:1")
    with pytest.raises(UsageError, match="one core to two processors"):
        names("cpu:2-3,opencl@3")


def test_an_example_has_processors_that_this_machine_has(four: pytest.MonkeyPatch) -> None:
    assert [example_processors(count) for count in (1, 2, 3, 5)] == [
        "cpu:2-5",
        "cpu:2-3,cpu:4-5",
        "cpu:2,cpu:3,cpu:4-5",
        "",
    ]
    assert names(example_processors(3)) == example_processors(3)


@pytest.mark.parametrize(
    "text",
    ["cpu", "cpu,opencl", "cpu:2-5,opencl", "cpu:2-5,cpu", "opencl@3,opencl", "cpu:2,opencl,opencl:1@3-5,opencl:2"],
)
def test_specifications_survive_a_round_trip(four: pytest.MonkeyPatch, text: str) -> None:
    specs = parse_processors(text)
    again = parse_processors(names(text))
    assert [spec.cores for spec in again] == [spec.cores for spec in specs]
    assert names(names(text)) == names(text)


def test_processors_for_which_no_core_is_left_share_all(four: pytest.MonkeyPatch) -> None:
    cpu, device = parse_processors("cpu:2-5,opencl")
    assert (cpu.shares, device.shares) == (False, True)
    assert device.cores == (2, 3, 4, 5)
    assert str(device) == "opencl:0"
    four.setattr("os.sched_getaffinity", lambda _: {3})
    assert names("cpu:3,opencl") == "cpu:3,opencl:0"
    assert names("cpu:3,cpu") == "cpu:3,cpu"


def test_a_quota_limits_the_assigned_cores(four: pytest.MonkeyPatch) -> None:
    four.setattr(spec, "cpu_quota", lambda: 2)
    assert default_cores() == (2, 3)
    assert usable_cores() == (2, 3, 4, 5)
    assert names("cpu") == "cpu:2-3"
    assert names("cpu,opencl") == "cpu:2,opencl:0@3"
    assert names("cpu:5,opencl") == "cpu:5,opencl:0@2"
    assert names("cpu:2-5") == "cpu:2-5", "named cores are not limited"
    assert names("cpu:4-5,opencl") == "cpu:4-5,opencl:0"
    assert parse_processors("cpu:4-5,opencl")[1].cores == (2, 3)


def test_a_quota_above_the_cores_changes_nothing(four: pytest.MonkeyPatch) -> None:
    four.setattr(spec, "cpu_quota", lambda: 16)
    assert names("cpu") == "cpu:2-5"


def test_the_quota_does_not_limit_cores_of_other_machines(four: pytest.MonkeyPatch) -> None:
    four.setattr(spec, "cpu_quota", lambda: 1)
    assert str(parse_processors("cpu", (0, 1, 2))[0]) == "cpu:0-2"


class Accelerator(ProcessorKind):
    """A kind of processor of its own, with the number of a device as argument."""

    def canonical_argument(self, argument: str) -> str:
        if argument and not argument.isdigit():
            raise UsageError(f"{argument!r} is not the number of a device; write {registry.KINDS['npu'].form}")
        return argument.lstrip("0")

    def processor(self, spec: ProcessorSpec) -> Processor:
        raise DeviceError(str(spec))


KIND = Accelerator()


def test_a_kind_is_one_class_and_one_entry_of_the_table(four: pytest.MonkeyPatch) -> None:
    four.setitem(registry.KINDS, "npu", registry.KindEntry(__name__, "npu[:DEVICE][@CORES]"))
    assert names("cpu:2,npu:01,npu@3") == "cpu:2,npu:1@4-5,npu@3"
    with pytest.raises(UsageError, match="'one' is not the number of a device"):
        names("npu:one")
    with pytest.raises(UsageError, match=r"sim:PROFILE/NAME, npu\[:DEVICE\]\[@CORES\]$"):
        names("tpu")
    with pytest.raises(DeviceError, match="npu:1@2"):
        build_processors("npu:1@2")
