"""Without its extras the package works as far as it can, and names the extra for the rest."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nnstretch.support.extras import EXTRAS
from tests.kits.command_line import said

ROOT = Path(__file__).parents[2]
BASE = {
    "jinja2",
    "ml_dtypes",
    "numpy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "platformdirs",
    "pyopencl",
    "rich",
}
BASE |= {"nnstretch", "packaging", "safetensors", "typer", "yaml", "ziglang", *sys.stdlib_module_names}
BASE |= {"google", "markupsafe"}  # protobuf comes with onnx, markupsafe with jinja2
TELEMETRY = "ORT_DISABLE_TELEMETRY"
HANDLED = {"tflite_runtime"}
"""A library that is in no extra: the older name of LiteRT, tried where that is absent."""

WITHOUT = """
import json, sys
class Absent:
    names = set(json.loads(sys.argv[1]))
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def without_extras(
    folder: Path, code: str, *arguments: str, absent: Iterable[str] = EXTRAS
) -> subprocess.CompletedProcess[str]:
    """A Python program in a process where some optional libraries, by default all, cannot be imported."""
    command = [sys.executable, "-c", WITHOUT + code, json.dumps(sorted(absent)), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)


def commands(
    folder: Path, several: Iterable[Sequence[str]], absent: Iterable[str] = EXTRAS
) -> list[tuple[int, str, str]]:
    """Commands of nnstretch without optional libraries, one after another: status, standard output and standard error."""
    code = """
import contextlib, io
from nnstretch.cli.main import main
def run(arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        status = main(arguments)
    return status, out.getvalue(), error.getvalue()
answers = [run(arguments) for arguments in json.loads(sys.argv[2])]
print(json.dumps(answers))
"""
    done = without_extras(folder, code, json.dumps([list(one) for one in several]), absent=absent)
    assert done.returncode == 0, done.stderr
    return [(status, out, error) for status, out, error in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model.onnx, and with digits.onnx, which classifies images of 1 x 16 x 16."""
    tmp_path = tmp_path_factory.mktemp("extras")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 16, 16]) for name in ("x", "y"))
    weights = numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), "w")
    graph = helper.make_graph([conv], "conv", [x], [y], [weights])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "model.onnx"
    )
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    flat = helper.make_node("Flatten", ["y"], ["z"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1, 16, 16])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 10])
    weights = numpy_helper.from_array(np.random.default_rng(0).random((10, 1, 16, 16), np.float32), "w")
    graph = helper.make_graph([conv, flat], "digits", [x], [z], [weights])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), tmp_path / "digits.onnx"
    )
    return tmp_path


def imported(path: Path) -> set[str]:
    """Top-level names of all modules that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_every_optional_library_has_an_extra_that_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= set(extras)
    files = [path for name in ("nnstretch", "devices", "scheduler", "training") for path in (ROOT / name).rglob("*.py")]
    assert len(files) > 300
    assert {str(path): imported(path) - BASE - set(EXTRAS) - HANDLED for path in files} == {
        str(path): set() for path in files
    }


NEED_EXTRAS = (
    (("zoo", "resnet18"), "train"),
    (("run", "resnet18"), "train"),
    (("compile", "resnet18", "-o", "r.nns"), "train"),
    (("stretch", "resnet18", "-p", "cpu:0,cpu:1"), "train"),
    (("train", "resnet18", "--data", "digits", "-o", "w.safetensors"), "train"),
    (("evaluate", "digits.onnx", "--data", "digits"), "data"),
    (("quantize", "digits.onnx", "--data", "digits", "-o", "q.onnx"), "data"),
    (("quantize", "digits.onnx", "--data", "folder:photos", "-o", "q.onnx"), "data"),
    (("tune", "model.onnx", "--search", "learned"), "tune"),
    (("tune", "model.onnx", "--engines", "litert"), "litert"),
    (("bench", "model.onnx", "--against", "torch"), "train"),
)


def test_commands_name_the_extra_in_one_line(folder: Path) -> None:
    answers = commands(folder, [arguments for arguments, _ in NEED_EXTRAS])
    for (arguments, extra), (status, _, error) in zip(NEED_EXTRAS, answers, strict=True):
        assert status == 2, (arguments, error)
        (line,) = said(error)
        assert line.startswith("error: "), arguments
        assert f"nnstretch[{extra}]" in line, arguments


def shown(answers: list[tuple[int, str, str]]) -> str:
    """What the last of commands that all succeed prints."""
    for status, _, error in answers:
        assert status == 0, error
    return answers[-1][1]


def test_a_file_is_compiled_run_and_compared_without_extras(folder: Path) -> None:
    answers = commands(
        folder,
        (
            ("compile", "model.onnx", "--no-tune", "-o", "model.nns"),
            ("run", "model.nns", "--runs", "2"),
            ("doctor",),
            ("devices",),
            ("zoo",),
            ("bench", "model.onnx", "--no-tune", "-r", "1"),
        ),
    )
    assert "onnxruntime" in shown(answers)


def test_data_sets_need_no_torch(folder: Path) -> None:
    answers = commands(
        folder,
        (
            ("quantize", "digits.onnx", "--data", "digits", "--images", "8", "-o", "int8.onnx"),
            ("evaluate", "digits.onnx", "--data", "digits", "--no-tune"),
            ("evaluate", "int8.onnx", "--data", "digits", "--engine", "onnxruntime"),
        ),
        absent=("torch",),
    )
    assert "on 539 images of digits" in shown(answers)


def test_arrays_calibrate_without_extras(folder: Path) -> None:
    np.savez(folder / "examples.npz", x=np.zeros((4, 8, 16, 16), np.float32))
    shown(commands(folder, [("quantize", "model.onnx", "--data", "examples.npz", "-o", "arrays.onnx")]))


def test_public_functions_name_the_extra(folder: Path) -> None:
    code = """
import nnstretch as nns
assert "resnet18" in nns.list_models()
for call in ("create_model('resnet18')", "stretch(None, None, 'cpu:0,cpu:1')", "compile('resnet18')"):
    try:
        eval("nns." + call)
    except nns.MissingExtraError as error:
        print(error)
"""
    ended = without_extras(folder, code)
    assert ended.stdout.count("nnstretch[train]") == 3, ended.stderr


@pytest.mark.parametrize(("given", "seen"), [(None, "1"), ("0", "0")])
def test_onnx_runtime_reports_nothing_unless_the_user_says_so(given: str | None, seen: str, tmp_path: Path) -> None:
    """It reads the variable when it is loaded; if it reports, it leaves a file in the folder of temporary files."""
    environment = {name: text for name, text in os.environ.items() if name != TELEMETRY}
    environment |= {"TMPDIR": str(tmp_path), "HOME": str(tmp_path), **({TELEMETRY: given} if given else {})}
    code = f"import nnstretch, os; print(os.environ[{TELEMETRY!r}]); import onnxruntime"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, timeout=60, capture_output=True, text=True
    )
    assert ended.stdout.split() == [seen]
    assert seen == "0" or not any(tmp_path.iterdir())
