"""The wheel and the source distribution: their contents, and every command where only the base dependencies are installed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from packaging.requirements import Requirement

from nnstretch.cli.commands import COMMANDS
from tests.kits.processes.fork_server import Forks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first command may build the engine

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"nnstretch": "nnstretch", **{name: f"nnstretch/{name}" for name in ("devices", "scheduler", "training")}}
"""Folder of the repository -> folder of the installed package."""
OTHER_SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""

CASES: dict[str, list[tuple[str, str | None]]] = {
    "doctor": [("", None)],
    "devices": [("", None)],
    "zoo": [("", None), ("resnet18", "train")],
    "stretch": [("resnet18 -p cpu:0,cpu:1", "train")],
    "train": [("resnet18 --data digits -o weights.safetensors", "train")],
    "evaluate": [("model.onnx --data digits --no-tune", "data"), ("resnet18 --data digits", "train")],
    "quantize": [
        ("model.onnx --data x.npz --images 4 -o int8.onnx", None),
        ("model.onnx --data digits -o q.onnx", "data"),
    ],
    "tune": [("model.onnx --threads 1 -o plan.json", None), ("model.onnx --search learned", "tune")],
    "profiles": [("", None)],
    "compile": [("model.onnx --no-tune -o model.nns", None), ("resnet18 -o model.nns", "train")],
    "export": [
        ("model.onnx -o again.onnx", None),
        ("model.onnx -o model.tflite", "litert"),
        ("model.onnx -o model.pt2", "train"),
        ("resnet18 -o resnet18.onnx", "train"),
    ],
    "run": [("model.nns --runs 2", None), ("model.onnx --no-tune -p litert", "litert")],
    "bench": [("model.onnx --no-tune -r 1", None), ("model.onnx --against ncnn", "bench")],
    "sweep": [
        ("latency model.onnx --no-tune --seconds 0.02 -o latency.csv", None),
        ("tune model.onnx -p cpu:0 -n 1", "sweep"),
        ("designs resnet18 -p cpu:0,cpu:1", "train"),
    ],
    "report": [
        ("model.nns -o model.html", None),
        ("plan.json -o plan.png", "report"),
        ("sqlite:///study.db", "sweep"),
    ],
}
"""Command -> calls, each with the extra that it names, or None where it works."""
MADE_BY = {
    "model.nns": "compile model.onnx --no-tune -o model.nns",
    "plan.json": "tune model.onnx --threads 1 -o plan.json",
}
"""File that calls read -> the call that makes it."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with nnstretch and its base dependencies.

    Attributes:
        folder: its folder.
        programs: folder of the programs that run; None: its own.
    """

    folder: Path
    programs: Path | None = None

    @property
    def python(self) -> str:
        """Its Python."""
        return str(self.folder / "bin" / "python")

    def run(self, program: str, *arguments: str, where: Path) -> subprocess.CompletedProcess[str]:
        """A program of the environment."""
        command = [str((self.programs or self.folder / "bin") / program), *arguments]
        return subprocess.run(
            command, cwd=where, env=variables(), capture_output=True, text=True, timeout=800, check=False
        )


def variables() -> dict[str, str]:
    """Variables of a process of another environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def installed_files() -> set[str]:
    """Every file of the four folders, as the wheel is to name it."""
    return {
        f"{target}/{path.relative_to(ROOT / folder)}"
        for folder, target in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def build(source: Path, kind: str, out: Path) -> Path:
    """A distribution of a source folder, by the build backend of this environment."""
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what distributions are made from, since a build leaves files there, and of a part of the tests."""
    folder = tmp_path_factory.mktemp("source")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in OTHER_SOURCES:
        shutil.copy(ROOT / name, folder)
    (folder / "tests").mkdir()
    shutil.copy(__file__, folder / "tests")
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    return build(source, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(source: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, made where a wheel has been made before."""
    return build(source, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel_of_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip makes of the source distribution."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return build(unpacked, "wheel", tmp_path_factory.mktemp("again"))


def base_dependencies() -> Iterator[importlib.metadata.Distribution]:
    """All that a plain installation brings, found in this environment."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    queue, known = [Requirement(text).name for text in declared], set[str]()
    while queue:
        name = queue.pop()
        if name in known:
            continue
        known.add(name)
        distribution = importlib.metadata.distribution(name)
        yield distribution
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)


def make_environment(folder: Path, wheel: Path) -> Environment:
    """A virtual environment into which pip has installed a wheel; its dependencies are links to those of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in base_dependencies():
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(distribution.locate_file(name))  # type: ignore[arg-type]
    made = Environment(folder)
    options = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "--python", made.python]
    subprocess.run([*pip, *options, str(wheel)], check=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel."""
    return make_environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture(scope="module")
def forking(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """The environment, whose commands are forks of one process that has imported what most of them do."""
    folder = tmp_path_factory.mktemp("forks")
    server = Forks(folder, variables(), environment.python, ("nnstretch.api.compile", "nnstretch.cli.application"))
    yield replace(environment, programs=folder)
    server.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier of digits, model.onnx, and examples for it, x.npz."""
    folder = tmp_path_factory.mktemp("files")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])
    weights = numpy_helper.from_array(np.random.default_rng(0).random((10, 1, 3, 3), np.float32), "w")
    graph = helper.make_graph(nodes, "digits", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "x.npz", x=np.random.default_rng(1).random((4, 1, 16, 16), np.float32))
    return folder


def contents(wheel: Path) -> dict[str, str]:
    """File of a wheel -> hash of its bytes, without those that describe the wheel itself."""
    with zipfile.ZipFile(wheel) as packed:
        return {
            name: hashlib.sha256(packed.read(name)).hexdigest()
            for name in packed.namelist()
            if ".dist-info/" not in name
        }


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    assert set(contents(wheel)) == installed_files()


def test_the_source_distribution_makes_the_same_wheel_and_has_no_tests(
    sdist: Path, wheel: Path, wheel_of_sdist: Path
) -> None:
    assert contents(wheel_of_sdist) == contents(wheel)
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    unwanted = {name for name in names if name.split("/")[0] in {"tests", "build", "dist"} or "__pycache__" in name}
    assert not unwanted
    assert set(OTHER_SOURCES) <= names


def test_the_source_distribution_installs(wheel_of_sdist: Path, tmp_path: Path, files: Path) -> None:
    environment = make_environment(tmp_path / "environment", wheel_of_sdist)
    assert environment.run("nnstretch", "--version", where=files).stdout.startswith("nnstretch ")


@pytest.mark.parametrize(
    ("setting", "arguments", "line"),
    [
        ("sys.modules['tomllib'] = None", ["--version"], "error: nnstretch needs Python 3.11 or later; this is "),
        (
            "",
            ["develop"],
            "error: pip older than 21.3 cannot install this in place; run `python -m pip install --upgrade",
        ),
    ],
)
def test_old_pythons_and_pips_get_one_line(setting: str, arguments: list[str], line: str) -> None:
    code = f"import sys, setuptools, runpy; {setting}\nrunpy.run_path('setup.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert done.returncode
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def test_the_environment_has_no_extras(environment: Environment, files: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('torch', 'optuna', 'PIL', 'sklearn') if u.find_spec(n)])"
    assert environment.run("python", "-c", code, where=files).stdout.strip() == "[]"


def test_every_command_has_a_case() -> None:
    assert set(CASES) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works_or_names_the_extra(forking: Environment, files: Path, command: str) -> None:
    for arguments, extra in CASES[command]:
        read = arguments.partition(" ")[0]
        if read in MADE_BY and not (files / read).exists():  # another process may have run the test that makes it
            forking.run("nnstretch", *MADE_BY[read].split(), where=files)
        ended = forking.run("nnstretch", command, *arguments.split(), where=files)
        if extra is None:
            assert ended.returncode == 0, ended.stderr
            continue
        assert ended.returncode == 2, ended.stderr
        (line,) = ended.stderr.splitlines()
        assert line.startswith("error: ")
        assert f"nnstretch[{extra}]" in line


def test_a_model_is_compared_and_checked(environment: Environment, files: Path) -> None:
    ended = environment.run("nnstretch", "bench", "model.onnx", "--no-tune", "-r", "1", where=files)
    assert ended.returncode == 0, ended.stderr
    assert "onnxruntime" in ended.stdout
    assert "error" in ended.stdout
