"""Comparisons of commits whose packages pretend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnstretch.bench.regression.cases import Case, RegressionOptions
from nnstretch.bench.regression.commits import Repository
from nnstretch.bench.regression.compare import compare_commits
from nnstretch.bench.regression.model_files import exported
from nnstretch.bench.timing import TimingOptions

pytestmark = pytest.mark.usefixtures("temporary")


def compare(
    repository: Repository, commits: tuple[str, str], models: list[str], options: RegressionOptions
) -> tuple[dict[str, Any], list[str]]:
    """The answer as JSON, and the lines on the progress."""
    lines: list[str] = []
    cases = [Case(model, "cpu", 1) for model in models]
    found = [repository.commit(name) for name in commits]
    return compare_commits(repository, found, cases, options, lines.append).to_json(), lines


@pytest.mark.parametrize(
    ("commit", "verdict", "status"), [("same", "same", 0), ("slow", "slower", 1), ("wrong", "wrong", 1)]
)
def test_what_follows_from_the_figures(
    repository: Repository, model: str, commit: str, verdict: str, status: int
) -> None:
    options = RegressionOptions(2, TimingOptions(6, 0.02))
    found, lines = compare(repository, ("base", commit), [model], options)
    (row,) = found["results"]
    low, high = row["interval"]
    assert low <= row["ratio"] <= high
    assert row["ratio"] == pytest.approx(np.prod(row["pair_ratios"]) ** 0.5, rel=1e-4)
    assert any(line.endswith("model.onnx on cpu, 1 thread: pair 2 of 2, B compiles and tunes") for line in lines)
    if verdict == "same":  # a busy machine may make any of two equals slower
        assert row["max_rel_difference"] == 0
        return
    assert (row["verdict"], found["status"]) == (verdict, status)
    if verdict == "slower":
        assert row["ratio"] > 3
        assert found["geometric_mean"] == row["ratio"]
    else:
        assert row["max_rel_difference"] > 5e-4


def test_the_other_cases_go_on_after_a_failure(repository: Repository, tmp_path: Path, model: str) -> None:
    other = tmp_path / "no_model.onnx"
    other.write_text("nothing")
    options = RegressionOptions(timing=TimingOptions(2, 0.01))
    found, _ = compare(repository, ("base", "broken"), [str(other), model], options)
    unreadable, broken = found["results"]
    assert unreadable["verdict"] == broken["verdict"] == "failed"
    assert unreadable["a"]["error"] == unreadable["b"]["error"]
    assert broken["a"] is None
    assert broken["b"] == {"error": "ValueError: nothing works"}
    assert found["status"] == 1


def test_a_failure_while_runs_are_timed_ends_the_case_with_its_round(repository: Repository, model: str) -> None:
    options = RegressionOptions(1, TimingOptions(100_000, 0.01))
    found, lines = compare(repository, ("fading", "fading"), [model], options)
    (row,) = found["results"]
    assert row["a"] == row["b"] == {"error": "RuntimeError: worn out"}
    assert lines[-2].endswith(": 100000 rounds are timed")


def test_outputs_of_other_shapes_differ_infinitely(model: str) -> None:
    with exported(model) as files:
        np.savez(files.outputs("a"), np.zeros((1, 4)))
        np.savez(files.outputs("b"), np.zeros(4))
        assert files.largest_difference() == np.inf
        np.savez(files.outputs("b"), np.zeros((1, 4)))
        assert files.largest_difference() == 0.0
