"""The script that compares two commits: with the project's own HEAD, and with a repository of packages that pretend."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.kits.processes.pretending_commits import assert_nothing_left, git, make_repository, write_model

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path("scripts", "bench_regression.py")


def start(root: Path, temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(root / SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )


def run(root: Path, temporary: Path, *arguments: str) -> tuple[int, str, str]:
    """Status, standard output and standard error; afterwards nothing may be left."""
    process = start(root, temporary, *arguments)
    out, errors = process.communicate(timeout=250)
    assert_nothing_left(root, temporary)
    return process.returncode, out, errors


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with the script."""
    root = make_repository(tmp_path_factory.mktemp("repository"))
    (root / "scripts").mkdir()
    shutil.copy(ROOT / SCRIPT, root / SCRIPT)
    return root


@pytest.fixture(scope="module")
def script(repository: Path) -> ModuleType:
    """The repository's script, loaded into this process."""
    spec = importlib.util.spec_from_file_location("bench_regression", repository / SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_commit_is_compared_with_itself(tmp_path: Path, model: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the project is no git repository here")
    arguments = ("HEAD", "HEAD", model, "--pairs", "1", "--rounds", "3", "--seconds", "0.02", "--json")
    status, out, errors = run(ROOT, tmp_path / "temporary", *arguments, "-o", str(tmp_path / "found.json"))
    assert status in (0, 1), errors
    found = json.loads(out)
    assert found == json.loads((tmp_path / "found.json").read_text())
    assert found["a"]["hash"] == found["b"]["hash"] == git(ROOT, "rev-parse", "HEAD").strip()
    (row,) = found["results"]
    assert row["verdict"] in ("same", "faster", "slower"), row
    assert row["max_rel_difference"] < 5e-4
    low, high = row["interval"]
    assert 0 < low <= high
    for side in (row["a"], row["b"]):
        assert min(side.values()) > 0


def test_a_failure_is_said_and_the_status_is_one(
    script: ModuleType,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = tmp_path / "no_model.onnx"
    other.write_text("nothing")
    assert script.main(("dying", "base", str(other), model, "--rounds", "2", "--seconds", "0.01")) == 1
    out, errors = capsys.readouterr()
    assert "no_model.onnx on cpu, 1 thread: A failed: " in out
    assert "\nmodel.onnx on cpu, 1 thread: A failed: killed by signal 6" in out
    assert "pair 1 of 3, A compiles and tunes" in errors
    assert_nothing_left(repository, tmp_path)


def test_an_interrupt_leaves_nothing(repository: Path, tmp_path: Path, model: str) -> None:
    process = start(repository, tmp_path, "base", "same", model, "--rounds", "100000")
    assert process.stderr is not None
    for line in process.stderr:
        if "rounds are timed" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert_nothing_left(repository, tmp_path)


def test_caches_are_kept(
    script: ModuleType, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = tmp_path / "kept"
    arguments = ("base", "base", model, "--pairs", "2", "--rounds", "2", "--seconds", "0.01", "--keep-cache", str(kept))
    for _ in range(2):
        script.main(arguments)
        assert_nothing_left(repository, tmp_path)
        number = git(repository, "rev-parse", "base").strip()
        assert sorted(folder.name for folder in kept.iterdir()) == [number, f"{number}-again"]
        assert sorted(folder.name for folder in (kept / number).iterdir()) == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("base", "nowhere"),
            "'nowhere' is no commit of this repository; give a hash, a branch, a tag or such as HEAD~1",
        ),
        (("base", "empty", "resnet18"), "commit empty holds no package nnstretch"),
        (("base", "same", "resnet19"), "no zoo network is called 'resnet19'; did you mean "),
        (("base", "same", "resnet18", "--rounds", "1"), "--rounds 1: give 2 or more"),
        (("base", "same", "resnet18", "--pairs", "0"), "--pairs 0: give 1 or more"),
        (("base", "same", "--seconds", "0"), "--seconds 0.0: give a number above 0"),
        (("base", "same", "--threads", "1,x"), "--threads 1,x: give numbers above 0, such as 1,2"),
        (("base", "same", "--threads", "100000"), "--threads 100000: this process has "),
        (("base", "same", "-p", "gpu"), "unknown processor "),
        (("base", "same", "-o", "no/folder/file.json"), "-o no/folder/file.json: there is no folder "),
        (("base", "same", "--nonsense"), "unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    script: ModuleType,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    status = script.main(arguments)
    out, errors = capsys.readouterr()
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"error: {message}")
    assert_nothing_left(repository, tmp_path)


def test_the_exit_status_is_that_of_the_answer(repository: Path, tmp_path: Path) -> None:
    status, out, errors = run(repository, tmp_path, "base")
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: the following arguments are required: B")
