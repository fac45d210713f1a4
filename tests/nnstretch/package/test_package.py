"""The package file: round trip, mapped weights, and every way in which a file can be wrong."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnstretch.errors import FileError, PackageError
from nnstretch.package import Package, PackagedPlan, read_package, write_package
from nnstretch.package.format import FORMAT_VERSION


@pytest.fixture
def package() -> Package:
    rng = np.random.default_rng(0)
    constants = rng.integers(0, 256, 10_000, dtype=np.uint8)
    plan = PackagedPlan('{"version": 1}', {"a/b": b"\x01\x02"})
    return Package({"plan": plan}, constants, {"direct": "kernel void f() {}"}, {"model": "m"})


@pytest.fixture
def several(package: Package) -> Package:
    shared = b"\x01\x02" * 50
    return Package(
        {
            "cpu:0": PackagedPlan('{"plan": 0}', {"a": shared}),
            "cpu:0,opencl:0": PackagedPlan('{"plan": 1}', {"b": b"\x03", "a": shared, "c": b"\x00\x00\x00\x00TFL3"}),
            "opencl:0": PackagedPlan('{"plan": 2}'),
        },
        package.constants,
        package.sources,
        package.metadata,
    )


def test_round_trip(package: Package, tmp_path: Path) -> None:
    path = tmp_path / "a.nns"
    write_package(package, path)
    again = read_package(path)
    assert again.first == package.first
    assert np.array_equal(again.constants, package.constants)
    assert again.sources == package.sources
    assert again.metadata == package.metadata
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("nnstretch.json"))["format"] == 1


def test_round_trip_of_several_plans(several: Package, tmp_path: Path) -> None:
    path = tmp_path / "a.nns"
    write_package(several, path)
    again = read_package(path)
    assert list(again.plans) == list(several.plans)
    for name, packed in several.plans.items():
        assert again.plans[name] == packed
    assert again.first.plan == '{"plan": 0}'
    assert np.array_equal(again.constants, several.constants)
    assert again.sources == several.sources
    with zipfile.ZipFile(path) as archive:
        assert len([name for name in archive.namelist() if "onnx/" in name]) == 2, "equal models are stored once"
        assert json.loads(archive.read("nnstretch.json"))["format"] == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["plans"].clear(),
        lambda manifest: manifest.pop("plans"),
        lambda manifest: manifest["plans"]["opencl:0"].pop("plan"),
        lambda manifest: manifest["plans"]["opencl:0"].update(plan="plans/7.json"),
        lambda manifest: manifest["plans"]["cpu:0"]["models"].update(a="onnx/9.onnx"),
        lambda manifest: manifest.update(plans=[1, 2]),
        lambda manifest: manifest.update(format=1),
        lambda manifest: manifest.update(format=FORMAT_VERSION + 1),
    ],
)
def test_several_plans_that_the_manifest_does_not_describe(
    several: Package, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    write_package(several, tmp_path / "a.nns")
    with (
        zipfile.ZipFile(tmp_path / "a.nns") as archive,
        zipfile.ZipFile(tmp_path / "b.nns", "w", zipfile.ZIP_STORED) as broken,
    ):
        for name in archive.namelist():
            content = archive.read(name)
            if name == "nnstretch.json":
                manifest = json.loads(content)
                change(manifest)
                content = json.dumps(manifest).encode()
            broken.writestr(name, content)
    with pytest.raises(PackageError):
        read_package(tmp_path / "b.nns")


def test_weights_start_at_a_page_and_are_read_only(package: Package, tmp_path: Path) -> None:
    path = tmp_path / "a.nns"
    write_package(package, path)
    constants = read_package(path).constants
    assert constants.ctypes.data % 4096 == 0
    assert not constants.flags.writeable


def test_equal_packages_are_equal_files(package: Package, tmp_path: Path) -> None:
    write_package(package, tmp_path / "a.nns")
    write_package(package, tmp_path / "b.nns")
    assert (tmp_path / "a.nns").read_bytes() == (tmp_path / "b.nns").read_bytes()


def test_any_flipped_byte_of_content_is_found(package: Package, tmp_path: Path) -> None:
    path = tmp_path / "a.nns"
    write_package(package, path)
    data = path.read_bytes()
    start = data.index(package.constants.tobytes())
    for position in (start, start + 5_000, start + 9_999, data.index(b"kernel void")):
        broken = bytearray(data)
        broken[position] ^= 0x40
        path.write_bytes(bytes(broken))
        with pytest.raises(PackageError, match="damaged"):
            read_package(path)


@pytest.mark.parametrize("entries", [None, [], 0, {"plan.json": None}])
def test_a_list_of_entries_that_is_none(package: Package, tmp_path: Path, entries: object) -> None:
    path = tmp_path / "a.nns"
    write_package(package, path)
    with zipfile.ZipFile(path) as archive:
        manifest = {**json.loads(archive.read("nnstretch.json")), "entries": entries}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("nnstretch.json", json.dumps(manifest))
        archive.writestr("plan.json", "{}")
    with pytest.raises(PackageError, match="not a whole nnstretch package"):
        read_package(path)


@pytest.mark.parametrize("keep", [0, 3, 100, 5_000])
def test_truncated(package: Package, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "a.nns"
    write_package(package, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(PackageError):
        read_package(path)


def test_newer_format(tmp_path: Path) -> None:
    path = tmp_path / "a.nns"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("nnstretch.json", json.dumps({"format": FORMAT_VERSION + 1}))
    with pytest.raises(PackageError, match="upgrade"):
        read_package(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        read_package(tmp_path / "none.nns")


def test_unwritable_directory(package: Package, tmp_path: Path) -> None:
    with pytest.raises(FileError):
        write_package(package, tmp_path / "missing" / "a.nns")
    assert list(tmp_path.iterdir()) == []
