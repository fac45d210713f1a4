"""The script that compares two commits: with the project's own HEAD, and with small repositories of packages that pretend."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.kits.graphs import RandomNetwork

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("bench_regression.py", "_regression_child.py")
PRETENDER = """\
import time
import nnstretch.devices

class Session:
    def __init__(self, tune):
        self.seconds = {seconds} if tune else 0.0

    def run(self, names, feeds):
        time.sleep(self.seconds)
        return [{scale} * x for x in feeds.values()]

def compile(model, processors, threads, tune):
    {first}
    return Session(tune)
"""
COMMITS: dict[str, dict[str, Any]] = {
    "base": {},
    "same": {},
    "slow": {"seconds": 0.02},
    "wrong": {"scale": 1.01},
    "broken": {"first": "raise ValueError('nothing works')"},
    "dying": {"first": "import os; os.abort()"},
}


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def start(root: Path, temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(root / "scripts" / SCRIPTS[0]), *arguments],
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


def assert_nothing_left(root: Path, temporary: Path) -> None:
    assert list(temporary.glob("nnstretch-regression-*")) == []
    assert str(temporary) not in git(root, "worktree", "list", "--porcelain")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(RandomNetwork(3, processors=1, nodes=4, size=4).model, path)
    return str(path)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the script and tagged commits of packages that pretend to compile."""
    root = tmp_path_factory.mktemp("repository")
    git(root, "init", "--quiet")
    files = {
        "pyproject.toml": '[tool.setuptools.package-dir]\nnnstretch = "nnstretch"\n"nnstretch.devices" = "devices"\n',
        "devices/__init__.py": "",
    }
    for name, changed in COMMITS.items():
        settings: Mapping[str, Any] = {"seconds": 0.002, "scale": 1.0, "first": "pass", **changed}
        write(root, {**files, "nnstretch/__init__.py": f"# {name}\n{PRETENDER.format(**settings)}"})
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", name)
        git(root, "tag", name)
    git(root, "rm", "-r", "--quiet", "nnstretch")
    git(root, "commit", "--quiet", "--message", "empty")
    git(root, "tag", "empty")
    (root / "scripts").mkdir()
    for name in SCRIPTS:
        shutil.copy(ROOT / "scripts" / name, root / "scripts" / name)
    return root


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_commit_is_compared_with_itself(tmp_path: Path, model: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the project is no git repository here")
    arguments = ("HEAD", "HEAD", model, "--rounds", "3", "--seconds", "0.02", "--json")
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


@pytest.mark.parametrize(
    ("commit", "verdict", "status"), [("same", "same", 0), ("slow", "slower", 1), ("wrong", "wrong", 1)]
)
def test_what_follows_from_the_figures(
    repository: Path, tmp_path: Path, model: str, commit: str, verdict: str, status: int
) -> None:
    found_status, out, errors = run(
        repository, tmp_path, "base", commit, model, "--rounds", "6", "--seconds", "0.02", "--json"
    )
    found = json.loads(out)
    (row,) = found["results"]
    low, high = row["interval"]
    assert low <= row["ratio"] <= high
    assert "B compiles and tunes" in errors
    if verdict == "same":  # a busy machine may make any of two equals slower
        assert row["max_rel_difference"] == 0
        return
    assert (row["verdict"], found_status, found["status"]) == (verdict, status, status)
    if verdict == "slower":
        assert row["ratio"] > 3
        assert found["geometric_mean"] == row["ratio"]
    else:
        assert row["max_rel_difference"] > 5e-4


def test_the_other_cases_go_on_after_a_failure(repository: Path, tmp_path: Path, model: str) -> None:
    other = tmp_path / "no_model.onnx"
    other.write_text("nothing")
    arguments = (str(other), model, "--rounds", "2", "--seconds", "0.01")
    status, out, errors = run(repository, tmp_path, "base", "broken", *arguments, "--json")
    assert status == 1, errors
    unreadable, broken = json.loads(out)["results"]
    assert unreadable["verdict"] == broken["verdict"] == "failed"
    assert unreadable["a"]["error"] == unreadable["b"]["error"]
    assert broken["a"] is None
    assert broken["b"] == {"error": "ValueError: nothing works"}
    status, out, _ = run(repository, tmp_path, "dying", "base", *arguments)
    assert status == 1
    assert "model.onnx on cpu, 1 thread: A failed: killed by signal 6" in out


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


def test_caches_are_kept(repository: Path, tmp_path: Path, model: str) -> None:
    kept = tmp_path / "kept"
    arguments = ("base", "base", model, "--rounds", "2", "--seconds", "0.01", "--keep-cache", str(kept))
    for _ in range(2):
        run(repository, tmp_path / "temporary", *arguments)
        number = git(repository, "rev-parse", "base").strip()
        assert sorted(folder.name for folder in kept.iterdir()) == [number, f"{number}-again"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("base",), "the following arguments are required: B"),
        (
            ("base", "nowhere"),
            "'nowhere' is no commit of this repository; give a hash, a branch, a tag or such as HEAD~1",
        ),
        (("base", "empty", "resnet18"), "commit empty holds no package nnstretch"),
        (("base", "same", "resnet19"), "no zoo network is called 'resnet19'; did you mean "),
        (("base", "same", "resnet18", "--rounds", "1"), "--rounds 1: give 2 or more"),
        (("base", "same", "--seconds", "0"), "--seconds 0.0: give a number above 0"),
        (("base", "same", "--threads", "1,x"), "--threads 1,x: give numbers above 0, such as 1,2"),
        (("base", "same", "--threads", "100000"), "--threads 100000: this process has "),
        (("base", "same", "-p", "gpu"), "unknown processor "),
        (("base", "same", "-o", "no/folder/file.json"), "-o no/folder/file.json: there is no folder "),
        (("base", "same", "--nonsense"), "unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(
    repository: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    status, out, errors = run(repository, tmp_path, *arguments)
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"error: {message}")
