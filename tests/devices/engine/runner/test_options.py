"""Command lines of the runner that are wrong, and what they mean if they are right."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import nnstretch
from tests.kits.boards.runner import QUICK, bench, refusal


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no model is named"),
        (("--probe", "a.nnm"), "--probe takes no models"),
        (("--unknown", "a.nnm"), "unknown option --unknown"),
        (("-x", "a.nnm"), "unknown option -x"),
        (("a.nnm", "--seconds"), "--seconds needs an argument"),
        (("--runs=3", "--minutes=1", "a.nnm"), "--runs and --minutes"),
        (("--input", "x", "a.nnm"), "NAME=FILE"),
        (("--input", "=f", "a.nnm"), "NAME=FILE"),
        (("--input", "x=", "a.nnm"), "NAME=FILE"),
        (("--input", "x=f", "--input", "x=g", "a.nnm"), "given twice"),
        (("--when-hot", "melt", "a.nnm"), "pause or stop"),
        (("--progress=yes", "a.nnm"), "--progress=yes"),
        (("--list", "/none"), "cannot open /none"),
        (("--list", "/dev/null"), "no model is named"),
        (("--outputs", "/proc/none", "a.nnm"), "cannot make the folder /proc/none"),
        (("--outputs", "/dev/null", "a.nnm"), "cannot make the folder /dev/null"),
    ],
)
def test_wrong_command_lines(runner: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(runner, *arguments)


@pytest.mark.parametrize("option", ["--seconds", "--warmup", "--minutes", "--cool-down", "--cool-to", "--hottest"])
@pytest.mark.parametrize("value", ["", "x", "-1", "nan", "inf", "1e99", "3s", "1,5"])
def test_wrong_numbers(runner: Path, option: str, value: str) -> None:
    assert f"{option} {value}: a number from" in refusal(runner, f"{option}={value}", "a.nnm")


@pytest.mark.parametrize("option", ["--runs", "--threads", "--seed"])
@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "99999999999999999999"])
def test_wrong_whole_numbers(runner: Path, option: str, value: str) -> None:
    assert f"{option} {value}: a whole number from" in refusal(runner, f"{option}={value}", "a.nnm")


@pytest.mark.parametrize("value", ["", "x", "3-1", "0-", "0,", "0-99999", "0 1", "-1", "1024", "0-1023,0"])
def test_wrong_lists_of_cores(runner: Path, value: str) -> None:
    assert f"--cores {value}: a list of cores" in refusal(runner, f"--cores={value}", "a.nnm")


def test_help_and_version(runner: Path) -> None:
    answers = {}
    for option in ("--help", "--version"):
        done = subprocess.run([str(runner), option], capture_output=True, text=True, check=True, env={})
        assert done.stderr == ""
        answers[option] = done.stdout
    assert answers["--version"] == f"nns-bench {nnstretch.__version__}\n"
    assert "--when-hot" in answers["--help"]


def test_cores_and_threads(runner: Path, model: Path) -> None:
    core = min(os.sched_getaffinity(0))
    (entry,) = bench(runner, *QUICK, "--cores", str(core), model)["models"]
    assert entry["queues"] == [{"kind": "cpu", "cores": [core], "device": None}] * 2
    (entry,) = bench(runner, *QUICK, "--threads", "1", model)["models"]
    assert {len(queue["cores"]) for queue in entry["queues"]} == {1}
    (entry,) = bench(runner, *QUICK, "--cores", "1023", model, status=1)["models"]
    assert "core 1023" in entry["error"]


def test_inputs_that_do_not_fit_are_data(runner: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(12))
    for given, words in (
        (f"x={tmp_path / 'x'}", "does not hold exactly"),
        (f"x={tmp_path / 'none'}", "cannot open"),
        (f"z={tmp_path / 'x'}", "has no input z"),
    ):
        for entry in bench(runner, *QUICK, "--input", given, model, model, status=1)["models"]:
            assert words in entry["error"]


def test_outputs_that_cannot_be_written_are_data(runner: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "0-0.bin").mkdir()
    first, second = bench(runner, *QUICK, "--outputs", tmp_path, model, model, status=1)["models"]
    assert "cannot write" in first["error"]
    assert second["runs"] == 3


def test_models_can_be_listed_in_a_file(runner: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "list").write_text(f"{tmp_path / 'a b'}\n\n{model}\r\n{model}")
    answer = bench(runner, *QUICK, "--list", tmp_path / "list", model, status=1)
    assert [entry["file"] for entry in answer["models"]] == [str(model), str(tmp_path / "a b"), str(model), str(model)]
