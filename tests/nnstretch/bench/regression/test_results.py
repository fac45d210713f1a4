"""Verdicts, intervals and JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from nnstretch.bench.regression.cases import Case, RegressionOptions
from nnstretch.bench.regression.commits import Commit
from nnstretch.bench.regression.results import CaseResult, CommitFigures, PairResult, RegressionResult

CASE = Case("model.onnx", "cpu", 1)
COMMITS = (Commit("A", "a" * 40, "first"), Commit("B", "b" * 40, "second"))


def pair(ratio: float, difference: float = 0.0, tuning: float = 1.0) -> PairResult:
    sides = CommitFigures(2.0, 8.0, 1.0), CommitFigures(2.0 * ratio, 8.0 * tuning, 1.0)
    return PairResult(sides, np.full(1000, ratio), difference)


def of_pairs(*pairs: PairResult) -> CaseResult:
    return CaseResult.of_pairs(CASE, pairs)


def test_the_interval_covers_what_differs_between_processes() -> None:
    """Two pairs of processes whose rounds agree, but which differ from one another."""
    samples = of_pairs(pair(0.9), pair(1.1)).ratios
    assert sorted(set(samples.round(6))) == [0.9, round(0.99**0.5, 6), 1.1]


@pytest.mark.parametrize(
    ("ratio", "difference", "verdict"),
    [
        (1.01, 4e-4, "same"),
        (1.03, 0.0, "slower"),
        (0.97, 0.0, "faster"),
        (1.03, 6e-4, "wrong"),
        (1.0, math.inf, "wrong"),
        (1.0, math.nan, "wrong"),
    ],
)
def test_a_verdict_follows_from_interval_and_difference(ratio: float, difference: float, verdict: str) -> None:
    result = of_pairs(pair(ratio, difference), pair(ratio))
    assert result.verdict == verdict
    assert result.is_bad == (verdict in ("slower", "wrong"))


def test_figures_are_geometric_means_over_pairs() -> None:
    result = of_pairs(pair(1.0), pair(1.21))
    assert result.sides is not None
    assert result.sides[1].p50_ms == pytest.approx(2.2)
    assert result.ratio() == pytest.approx(1.1)
    assert result.pairs == pytest.approx((1.0, 1.21))


def test_a_warning_says_that_tuning_takes_longer() -> None:
    assert of_pairs(pair(1.0, tuning=1.2)).warning == ""
    assert of_pairs(pair(1.0, tuning=1.5)).warning == "model.onnx on cpu, 1 thread: B tunes 1.50 times as long as A"


def test_json_is_finite_and_means_leave_failures_out() -> None:
    results = [of_pairs(pair(1.0, math.inf)), CaseResult(CASE, errors={"b": "nothing works"}), of_pairs(pair(1.21))]
    answer = RegressionResult(COMMITS, RegressionOptions(), results).to_json()
    json.dumps(answer, allow_nan=False)
    first, failed, _ = answer["results"]
    assert first["max_rel_difference"] is None
    assert (failed["verdict"], failed["a"], failed["b"]) == ("failed", None, {"error": "nothing works"})
    assert (failed["ratio"], failed["interval"], failed["pair_ratios"]) == (None, None, [])
    assert (answer["geometric_mean"], answer["status"]) == (1.1, 1)
    assert (answer["pairs"], answer["rounds"], answer["seconds"]) == (3, 10, 0.2)


def test_without_a_figure_means_are_null() -> None:
    answer = RegressionResult(COMMITS, RegressionOptions(), [CaseResult(CASE, errors={"a": "no"})]).to_json()
    assert [answer[name] for name in answer if "geometric_mean" in name] == [None] * 3
    assert RegressionResult(COMMITS, RegressionOptions(), [of_pairs(pair(1.0))]).status == 0
