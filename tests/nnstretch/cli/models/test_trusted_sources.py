"""Packages carry OpenCL sources and name libraries, which are programs: `--trusted-sources` runs none but installed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import nnstretch as nns
from nnstretch.cli.main import main
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.opencl.sources import kernel_source
from nnstretch.errors import PackageError
from nnstretch.package import PackagedPlan, read_package, write_package
from nnstretch.scheduler.plan.packaging import check_trusted
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork

INSTALLED = {name: kernel_source(name) for name in ("conv.cl", "semaphore.cl")}
FOREIGN = [
    {**INSTALLED, "conv.cl": INSTALLED["conv.cl"] + "\n"},
    {**INSTALLED, "conv.cl": ""},
    {**INSTALLED, "other.cl": INSTALLED["conv.cl"]},
    {"../sources.py": ""},
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "net.nns"
    processors = build_processors(f"cpu:{usable_cores()[0]}")
    with PlanSession(plan_model(RandomNetwork(0, processors=1, nodes=4).graph(), processors, tune=False)) as session:
        session.save(path)
    return path


def with_sources(package: Path, sources: Mapping[str, str], folder: Path) -> Path:
    write_package(replace(read_package(package), sources=sources), folder / "net.nns")
    return folder / "net.nns"


LOADERS: Mapping[str, Callable[[Path, bool], nns.Session]] = {
    "compile": lambda path, trusted: nns.compile(path, trusted_sources=trusted),
    "streams": lambda path, trusted: nns.compile(path, streams=2, trusted_sources=trusted),
    "policy": lambda path, trusted: nns.compile(path, policy="fixed", trusted_sources=trusted),
    "PlanSession": lambda path, trusted: PlanSession.load(path, trusted_sources=trusted),
    "AdaptiveSession": lambda path, trusted: AdaptiveSession.load(path, "fixed", trusted_sources=trusted),
}


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_only_installed_sources_are_trusted(
    load: Callable[[Path, bool], nns.Session], package: Path, tmp_path: Path
) -> None:
    for sources in ({}, INSTALLED):
        load(with_sources(package, sources, tmp_path), True).close()
    for sources in FOREIGN:
        path = with_sources(package, sources, tmp_path)
        with pytest.raises(
            PackageError, match=r"net\.nns has an OpenCL source '.*' that is not the installed one; compile"
        ):
            load(path, True)
    load(tmp_path / "net.nns", False).close()


def test_the_commands_end_with_one_line(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(with_sources(package, FOREIGN[0], tmp_path))
    for command in (["run", path, "-n", "1"], ["bench", path, "--rounds", "1", "--budget", "1"]):
        capsys.readouterr()
        assert main([*command, "--trusted-sources"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert "has an OpenCL source 'conv.cl' that is not the installed one" in captured.err
    assert main(["run", path, "-n", "1"]) == 0
    assert main(["run", str(package), "-n", "1", "--trusted-sources"]) == 0


def with_routine(package: Path, routine: str, folder: Path) -> Path:
    """The package with one more plan, in which one step calls an external engine by this routine."""
    found = read_package(package)
    plan = Plan.from_json(found.first.plan)
    step = replace(plan.steps[0], kind="call", routine=routine)
    other = PackagedPlan(replace(plan, steps=(step, *plan.steps[1:])).to_json())
    write_package(replace(found, plans={"plan": found.first, "other": other}), folder / "net.nns")
    return folder / "net.nns"


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_libraries_of_delegates_are_not_trusted(
    load: Callable[[Path, bool], nns.Session], package: Path, tmp_path: Path
) -> None:
    for named in ("litert:float32//tmp/npu.so?speed=2", "tflite:int8//tmp/npu.so"):
        with pytest.raises(PackageError, match=r"net\.nns loads the library /tmp/npu\.so; leave trusted sources out"):
            load(with_routine(package, named, tmp_path), True)


@pytest.mark.parametrize("routine", ["litert:float32/xnnpack", "litert:float32/builtin", "cpu:float32/onnxruntime"])
def test_delegates_with_names_are_trusted(routine: str, package: Path, tmp_path: Path) -> None:
    check_trusted(read_package(with_routine(package, routine, tmp_path)), "net.nns")
