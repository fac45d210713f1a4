"""`nnstretch doctor` on this machine, on made-up ones, and with parts missing."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tomllib
from pathlib import Path

import pytest

from nnstretch.cli.main import main
from nnstretch.doctor import accelerators, machine, native, software, tools
from nnstretch.doctor.diagnosis import diagnose
from nnstretch.doctor.finding import Finding, State
from nnstretch.errors import BuildError
from nnstretch.support.other_programs import CoreWatch, OtherPrograms
from tests.kits.opencl.phones import ADRENO, MALI

ROOT = Path(__file__).resolve().parents[3]


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = by_subject([Finding(**finding) for finding in answer["findings"]])
    assert answer["problems"] == 0
    assert {found[name].state for name in ("Python", "packages", "cache", "engine", "a small network")} == {State.OK}
    assert all(finding.remedy for finding in found.values() if finding.state != State.OK)


def test_every_extra_for_users_is_looked_at() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(software.PURPOSES) == set(extras) - {"all", "dev", "docs"}


def test_missing_and_old_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"numpy": "1.26.0", "torch": "2.13.0+cpu"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    wanted = ["numpy>=2.0", "torch>=2.13; extra == 'train'", "xgboost-cpu>=3.2; extra == 'tune'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: wanted)
    monkeypatch.setattr(importlib.metadata, "version", version)
    found = by_subject(list(software.packages()))
    assert found["packages"] == Finding(
        "packages", State.PROBLEM, "numpy is 1.26.0, wanted >=2.0", "pip install --upgrade nnstretch"
    )
    assert found["extra train"].state is State.OK
    assert found["extra tune"].state is State.NOTE
    assert "xgboost-cpu is missing" in found["extra tune"].found
    assert found["extra tune"].remedy == "pip install 'nnstretch[tune]'"


def test_a_check_that_cannot_be_loaded_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nnstretch.doctor.native")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    checks = {"Python": "software.python", "engine": "native.native_engine"}
    monkeypatch.setattr("nnstretch.doctor.diagnosis.CHECKS", checks)
    found = by_subject(diagnose())
    assert found["Python"].state is State.OK
    assert found["engine"].state is State.PROBLEM
    assert "onnxruntime" in found["engine"].found


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (finding,) = software.cache()
    assert finding.state is State.PROBLEM
    assert "NNSTRETCH_CACHE_DIR" in finding.remedy


def test_a_cache_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "_LEAST_ROOM", 1 << 62)
    (finding,) = software.cache()
    assert finding.state is State.NOTE


def test_an_engine_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BuildError("no compiler")

    monkeypatch.setattr(native, "engine", fail)
    (finding,) = native.native_engine()
    assert (finding.state, finding.found) == (State.PROBLEM, "no compiler")


def test_an_engine_that_computes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_TOLERANCE", -1.0)
    assert list(native.native_engine())[-1].state is State.PROBLEM


def test_no_opencl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    (finding,) = accelerators.opencl()
    assert finding.state is State.NOTE
    assert "pocl-opencl-icd" in finding.remedy


def test_gpus_are_described_by_what_tiles_follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.icd").write_text("")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    monkeypatch.setattr(accelerators, "failing_drivers", dict)
    monkeypatch.setattr(accelerators, "probe", lambda: [ADRENO, MALI])
    adreno, mali = accelerators.opencl()
    assert adreno.found.endswith("4 compute units, waves of 64, 96 registers per work item, 32 KiB of local memory")
    assert mali.found.endswith("waves of 16, 64 registers per work item, no local memory")


@pytest.mark.parametrize(
    ("torch", "remedy"),
    [
        ("2.13.0", "torch==2.13.0 torchvision"),
        ("2.13.0+cpu", "torch==2.13.0+cpu torchvision --index-url https://download.pytorch.org/whl/cpu"),
        ("2.13.0a0+vendor1", "torch==2.13.0a0+vendor1 torchvision"),
    ],
)
def test_a_torchvision_for_another_torch(monkeypatch: pytest.MonkeyPatch, torch: str, remedy: str) -> None:
    def imported(name: str) -> None:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist\nmore")

    monkeypatch.setattr(importlib.metadata, "version", {"torch": torch, "torchvision": "0.25.0"}.__getitem__)
    monkeypatch.setattr(accelerators, "import_module", imported)
    (finding,) = accelerators.torchvision()
    said = (
        f"torchvision 0.25.0 does not fit torch {torch}: operator torchvision::nms does not exist; modules of your own"
    )
    assert finding.found.startswith(said)
    assert (finding.state, finding.remedy) == (
        State.NOTE,
        f"pip uninstall -y torchvision && pip install {remedy}",
    )


def test_no_torchvision_or_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "import_module", lambda _: None)
    monkeypatch.setattr(importlib.metadata, "version", {"torch": "2.13.0", "torchvision": "0.28.0"}.__getitem__)
    (finding,) = accelerators.torchvision()
    assert (finding.state, finding.found) == (State.OK, "0.28.0, fits torch 2.13.0")

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert not list(accelerators.torchvision())


def test_cores_of_a_made_up_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: (0, 1, 2))
    monkeypatch.setattr(machine, "cpu_quota", lambda: 2)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for core, siblings, governor in ((0, "0-1", "powersave"), (1, "0-1", "powersave"), (2, "2,6", "performance")):
        for name, text in (("topology/thread_siblings_list", siblings), ("cpufreq/scaling_governor", governor)):
            (tmp_path / f"cpu{core}" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"cpu{core}" / name).write_text(f"{text}\n")
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu hypervisor\n")
    found = by_subject(list(machine.cores(tmp_path, tmp_path)))
    assert found["cores"].found.startswith("0-2 of 8, ")
    assert "2 of its 3 cores" in found["CPU limit"].found
    assert found["hyper-threads"].found.endswith("each: 0-1")
    assert found["clock governor"].found.startswith("powersave:")
    assert "virtual machine" in found


def test_little_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 500000 kB\n")
    (finding,) = machine.memory(tmp_path)
    assert (finding.state, finding.found) == (State.NOTE, "0.5 GB free")
    assert not list(machine.memory(tmp_path / "elsewhere"))


def test_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoreWatch, "others", lambda _: OtherPrograms(1.5, 2))
    monkeypatch.setattr(machine, "_clock", lambda _: [100.0, 50.0, 50.0, 50.0])
    found = list(machine.steadiness())
    assert [finding.state for finding in found] == [State.NOTE, State.NOTE]
    assert found[0].found == "keep 1.5 of 2 cores busy"


def test_a_machine_that_does_not_say_how_busy_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_clock", lambda _: [100.0] * 4)
    assert [finding.subject for finding in machine.steadiness(tmp_path)] == ["clock"]


def test_missing_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "adbutils", None)
    found = list(tools.targets())
    assert [finding.subject for finding in found] == [
        "ssh",
        "qemu-aarch64",
    ]  # the extra's own finding says that adb is missing
    assert all(finding.remedy for finding in found)
