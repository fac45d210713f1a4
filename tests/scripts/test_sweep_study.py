"""The script that examines sweeps, at toy size."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnstretch.bench.kept_answers import CommandError
from nnstretch.cli.job import front_study
from nnstretch.cli.main import main as nnstretch
from nnstretch.sweeps.samplers import _auto_sampler
from scripts.studies.sweep_study import compared_fronts, hypervolumes, main
from tests.kits.networks.small_network import SMALL_NETWORK


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(SMALL_NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optunahub", None)  # which would be downloaded
    _auto_sampler.cache_clear()
    return "net.py:small"


def test_every_part_answers_and_goes_on_where_it_was(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--trials", "10", "--seeds", "2", "--designs", "2", "--measured", "2", "--alpha", "1e4", "--beta", "1e4"]
    command = ["--network", network, *sizes, "--no-tune", "--json"]
    assert main(["front", "samplers", *command, "-p", "sim:phone/cpu,sim:phone/gpu"]) == 0
    answer = json.loads(capsys.readouterr().out)
    front = answer["front"]
    assert front["trials"] == 10
    assert front["contained"] + front["dominated"] == len(front["analytic"]), (
        "the warm start is on the front or dominated"
    )
    assert front["missed"] == 0
    assert front["sweep_s"] > 0
    shares = answer["samplers"]["samplers"]
    assert {"random", "tpe cold", "tpe warm"} <= set(shares)
    for counts in shares.values():
        assert 0 <= counts["10"]["mean"] <= 1
        assert len(counts["10"]["seeds"]) == 2
    assert main(["samplers", *command]) == 0
    assert json.loads(capsys.readouterr().out)["samplers"] == answer["samplers"]
    assert main(["ranking", *command[:-1]]) == 0
    first = capsys.readouterr().out
    assert "of 2 measured designs among 2" in first
    assert main(["ranking", *command[:-1]]) == 0
    assert capsys.readouterr().out == first, "nothing is measured again"


TINY_STUDY = """
from dataclasses import replace

import torch

from tests.kits.networks.small_training import few_digits
from tests.kits.networks.tiny_branching import original


def images():
    return few_digits(64, 40)


def validation():
    return replace(images(), test=images().validation)


def network():
    return original(), torch.zeros(1, 1, 16, 16)
"""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands of a study of digits, which run in this process."""
    called: list[str] = []

    def run_here(command: Sequence[str], *, folder: Path) -> dict[str, Any]:
        called.append(command[0])
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out:
            assert nnstretch(list(command)) == 0
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer

    monkeypatch.setattr(front_study, "command_answer", run_here)
    monkeypatch.setattr(front_study, "_FILE", TINY_STUDY)
    return called


def test_a_front_by_trainings_is_confirmed_by_other_commands(
    tmp_path: Path, commands: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ["--trials", "4", "--epochs", "1", "--retrain-epochs", "1"]
    command = ["textures", "-o", str(tmp_path), *sizes, "--no-tune", "--json"]
    assert main(command) == 0
    answer = json.loads(capsys.readouterr().out)["textures"]
    original, *front = answer["rows"]
    assert original["package"] == "sweep/original.nns"
    assert front
    assert answer["trials"]["complete"] >= len(front)
    for row in answer["rows"]:
        assert row["reported"].keys() == row["confirmed"].keys() == {"latency", "accuracy", "memory"}
        assert row["confirmed"]["accuracy"] == pytest.approx(row["reported"]["accuracy"], abs=100 / 40), "of 40 images"
        assert row["confirmed"]["memory"] == pytest.approx(row["reported"]["memory"], rel=0.5)
    evaluations = ["evaluate"] * 2 * len(answer["rows"])
    assert commands == ["train", "sweep", "compile", "bench", *evaluations]

    commands.clear()
    assert main([*command[:-1], "--redo", "confirm"]) == 0
    assert commands == ["bench", *evaluations]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + len(answer["rows"])
    assert lines[3].startswith("| original | ")

    def refuse(command: Sequence[str], *, folder: Path) -> dict[str, Any]:
        raise CommandError(f"{command[0]} is not for this test in {folder}")

    results = tmp_path / "textures" / "results"
    kept = {path.name for path in results.glob("*.json") if "accuracy" in json.loads(path.read_text())}
    assert kept < {path.name for path in results.glob("*.json")}
    monkeypatch.setattr(front_study, "command_answer", refuse)
    assert main([*command, "--redo", "sweep"]) == 2
    assert "sweep is not for this test" in capsys.readouterr().err
    assert {path.name for path in results.glob("*.json")} == kept, "designs are measured again, and not trained again"


def test_fronts_are_compared_within_a_thousandth() -> None:
    analytic = [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]
    front = [(1.0005, 10.0), (1.9, 20.0), (3.0, 29.0)]
    assert compared_fronts(analytic, front) == {"contained": 1, "dominated": 1, "missed": 1}


def test_hypervolumes_are_shares_with_intervals_over_the_seeds() -> None:
    good, bad = np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[math.inf, math.inf], [0.5, 0.5]])
    found = hypervolumes({"good": [good, good], "bad": [bad, bad[::-1]]})
    assert found["good"]["2"]["mean"] == pytest.approx(1)
    assert found["good"]["2"]["low"] == pytest.approx(found["good"]["2"]["high"])
    assert hypervolumes({"good": [good]})["good"]["2"]["low"] is None
    assert found["bad"]["2"]["mean"] == pytest.approx(0.501**2 / 1.001**2)


def test_what_cannot_be_examined_is_one_line(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranking", "--network", network, "-p", "sim:phone/cpu,sim:phone/gpu"]) == 2
    assert "designs cannot run on sim:phone/cpu" in capsys.readouterr().err
    assert main(["textures", "-p", "sim:phone/cpu,sim:phone/gpu"]) == 2
    assert "designs cannot run on sim:phone/cpu" in capsys.readouterr().err
    assert main(["front", "--network", network, "--trials", "0"]) == 2
    assert "0 trials" in capsys.readouterr().err
    Path("file").touch()
    assert main(["front", "--network", network, "-o", "file"]) == 2
    assert "cannot make directory file" in capsys.readouterr().err
