"""A repository whose tagged commits hold packages that pretend to compile models."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from tests.kits.graphs.graphs import RandomNetwork

_PACKAGE = """\
import time
import nnstretch.devices

class Session:
    def __init__(self, tune):
        self.seconds = {seconds} if tune else 0.0
        self.runs = 0

    def run(self, names, feeds):
        time.sleep(self.seconds)
        self.runs += 1
        if self.runs > {runs}:
            raise RuntimeError('worn out')
        return [{scale} * x for x in feeds.values()]

def compile(model, processors, threads, tune):
    {first}
    return Session(tune)
"""
_COMMITS: dict[str, dict[str, Any]] = {
    "base": {},
    "same": {},
    "slow": {"seconds": 0.02},
    "wrong": {"scale": 1.01},
    "broken": {"first": "raise ValueError('nothing works')"},
    "dying": {"first": "import os; os.abort()"},
    "fading": {"runs": 1},
}


def git(folder: Path, *arguments: str) -> str:
    """The standard output of git in a folder."""
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def make_repository(root: Path) -> Path:
    """Makes the repository. Tags name the commits; "empty" holds no package."""
    git(root, "init", "--quiet")
    files = {
        "pyproject.toml": '[tool.setuptools.package-dir]\nnnstretch = "nnstretch"\n"nnstretch.devices" = "devices"\n',
        "devices/__init__.py": "",
    }
    for name, changed in _COMMITS.items():
        settings: Mapping[str, Any] = {"seconds": 0.002, "scale": 1.0, "first": "pass", "runs": "1e9", **changed}
        _write(root, {**files, "nnstretch/__init__.py": f"# {name}\n{_PACKAGE.format(**settings)}"})
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", name)
        git(root, "tag", name)
    git(root, "rm", "-r", "--quiet", "nnstretch")
    git(root, "commit", "--quiet", "--message", "empty")
    git(root, "tag", "empty")
    return root


def write_model(path: Path) -> str:
    """Writes a small ONNX model; returns its path."""
    onnx.save(RandomNetwork(3, processors=1, nodes=4, size=4).model, path)
    return str(path)


def assert_nothing_left(root: Path, temporary: Path) -> None:
    """Neither a temporary folder nor a worktree of the repository is left."""
    assert list(temporary.glob("nnstretch-regression-*")) == []
    assert str(temporary) not in git(root, "worktree", "list", "--porcelain")


def _write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
