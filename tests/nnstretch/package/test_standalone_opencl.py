"""Standalone models with OpenCL queues: the C host of OpenCL, without Python."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from nnstretch.branching.transform.network import export_branched
from nnstretch.cli.main import main
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.engine.build.instruction_sets import local_isa, parse_target
from nnstretch.devices.engine.build.standalone import build_binaries
from nnstretch.devices.opencl.drivers import device_info
from nnstretch.frontends.onnx_file import save
from nnstretch.frontends.resolve import load_model
from nnstretch.package.standalone import write_model_file
from nnstretch.package.standalone_session import StandaloneSession
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.settings import cache_dir
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.graphs.quantized_networks import QuantizedNetwork
from tests.kits.networks.tiny_branching import SIDE, branched

pytestmark = pytest.mark.opencl

PROCESSORS = "cpu:0,opencl:0@1"
NETWORKS = ("pure", "placed", "branched", "two devices", "int8")
"""Everything on a device; layers placed at random; two branches; two devices; int8 layers on a device."""


@dataclass(frozen=True)
class Case:
    """A model file with an input, and the outputs of the Python session of the same plan."""

    model: Path
    compiled: Compiled
    x: np.ndarray
    outputs: list[np.ndarray]


def make_case(folder: Path, model: ir.Model, processors: str) -> Case:
    compiled = plan_model(model, build_processors(processors), tune=False)
    path = folder / "model.nnm"
    write_model_file(compiled, "model", local_isa(), path)
    with PlanSession(compiled) as session:
        (x,) = session.get_inputs()
        values = np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)
        return Case(path, compiled, values, session.run(None, {x.name: values}))


def network(kind: str) -> tuple[ir.Model, str]:
    """A network with the processors that it is for."""
    if kind == "branched":
        return export_branched(branched(0.5), torch.zeros(1, 1, SIDE, SIDE)), PROCESSORS
    if kind == "int8":
        return QuantizedNetwork(12).graph(), "opencl:0@1"
    if kind == "pure":
        return RandomNetwork(2, 0, nodes=8, size=5).graph(), "opencl:0@1"
    if kind == "placed":
        return RandomNetwork(1, 2, size=5).graph(), PROCESSORS
    return RandomNetwork(4, 2, size=5).graph(), "opencl:0@1,opencl:0@0"


@pytest.fixture(scope="module", params=NETWORKS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("case")
    return make_case(folder, *network(request.param))


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("placed")
    return make_case(folder, *network("placed"))


def environment(**more: str) -> dict[str, str]:
    """That of a program without Python whose OpenCL loader finds the drivers of these tests."""
    kept = ("OCL_", "OPENCL_", "POCL_", "RUSTICL_", "OCLGRIND_", "HOME", "PATH", "XDG_CACHE_HOME")
    return {name: value for name, value in os.environ.items() if name.startswith(kept)} | more


def run(*command: str | Path, status: int = 0, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program; keyword arguments are environment variables, which are texts."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=250, env=environment(**more)
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


def refusal(*command: str | Path, **more: str) -> str:
    """The one line with which a program refuses."""
    (line,) = run(*command, status=2, **more).stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.fixture(scope="module")
def executable() -> Path:
    return build_binaries(parse_target("local")).executable


@pytest.fixture(scope="module")
def kernels() -> Path:
    """Where built kernels are kept: PoCL then has most of them already."""
    return cache_dir("opencl")


def answers(case: Case, folder: Path, *command: str | Path) -> list[np.ndarray]:
    """The outputs that an executable computes from a case's input."""
    case.x.tofile(folder / "x")
    paths = [folder / f"y{i}" for i in range(len(case.outputs))]
    named = [word for path in paths for word in ("-o", path)]
    run(*command, "-m", case.model, folder / "x", *named, "-n", "2")
    return [np.fromfile(path, np.float32).reshape(y.shape) for path, y in zip(paths, case.outputs, strict=True)]


def are_equal(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


# -- what is computed -----------------------------------------------------------------------------------------------


def test_the_executable_computes_what_the_session_does(
    case: Case, executable: Path, kernels: Path, tmp_path: Path
) -> None:
    assert len({queue.kind for queue in case.compiled.plan.queues}) == 2
    assert are_equal(answers(case, tmp_path, executable, "--cache", kernels), case.outputs)


def test_sessions_of_model_files_compute_the_same(case: Case) -> None:
    with StandaloneSession(case.model, trusted_sources=True) as session:
        (x,) = session.get_inputs()
        for _ in range(3):
            assert are_equal(session.run(None, {x.name: case.x}), case.outputs)


@pytest.mark.slow  # its kernels take PoCL some ten seconds
def test_a_zoo_network_in_both_parts_computes_the_same(executable: Path, kernels: Path, tmp_path: Path) -> None:
    model = load_model("googlenet", {"input": (1, 3, 64, 64)})
    case = make_case(tmp_path, model, PROCESSORS)
    assert len(case.compiled.plan.subgraphs) > 10
    assert are_equal(answers(case, tmp_path, executable, "--cache", kernels), case.outputs)


def test_the_command_writes_models_with_opencl_queues(kernels: Path, tmp_path: Path) -> None:
    save(network("branched")[0], tmp_path / "net.onnx")
    command = ["compile", str(tmp_path / "net.onnx"), "--standalone", "--no-tune", "-p", PROCESSORS]
    assert main([*command, "-o", str(tmp_path / "made")]) == 0
    lines = run(tmp_path / "made" / "net", "--info", "--cache", kernels).stdout.splitlines()
    assert lines[-2:] == ["queue 0: cpu, core 0", f"queue 1: opencl {device_info(0).name}, core 1"]


def test_files_without_opencl_queues_stay_readable_by_older_libraries(placed: Case, tmp_path: Path) -> None:
    model = RandomNetwork(1, 0, size=5).graph()
    path = tmp_path / "a.nnm"
    write_model_file(plan_model(model, build_processors("cpu:0"), tune=False), "a", local_isa(), path)
    assert [struct.unpack_from("<q", file.read_bytes(), 8)[0] for file in (path, placed.model)] == [2, 3]
