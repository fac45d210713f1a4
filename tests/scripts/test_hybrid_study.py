"""The study of hybrids: one row per network, mask and number of threads, and what counts as slower."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.quantization import quantize
from scripts.studies.hybrid_study import SLOWER, Row, main, split_masks
from tests.kits.graphs.float_networks import classifier, examples


def test_a_small_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hidden features reach the measurement: a name that does not exist ends it."""
    file = tmp_path / "int8.onnx"
    quantize(classifier(), examples(2, 1, 3, 16, 16), file)
    options = ["--threads", "1", "--rounds", "3", "--turn", "0.01", "--quick", "-o", str(tmp_path / "table.md")]
    assert main([str(file), "--masks", "-fma", *options]) in (0, SLOWER)
    made = (tmp_path / "table.md").read_text()
    assert capsys.readouterr().out == made
    rows = [line.strip("| ").split(" | ") for line in made.splitlines()[4:]]
    assert [row[:3] for row in rows] == [["int8.onnx", "-fma", "1"]]
    for row in rows:
        assert all(float(cell) > 0 for cell in row[3:7])
        low, high = map(float, row[7].split("–"))
        assert 0 < low <= float(row[6]) <= high
    assert main([str(file), "--masks", "-nothing", *options]) == 2
    assert "-nothing" in capsys.readouterr().err
    assert main([str(file), "--threads", "two"]) == 2


def test_masks_look_like_options() -> None:
    arguments = ["a.onnx", "--masks", "", "-avx512f", "--threads", "1", "b.onnx"]
    assert split_masks(arguments) == (["", "-avx512f"], ["a.onnx", "--threads", "1", "b.onnx"])


@pytest.mark.parametrize(
    ("ratio", "interval", "verdict"),
    [
        (0.9, (0.8, 1.0), "yes"),
        (1.02, (0.99, 1.05), "within the interval"),
        (1.02, (1.01, 1.05), "no"),
        (1.02, None, "within the interval"),
    ],
)
def test_verdicts(ratio: float, interval: tuple[float, float] | None, verdict: str) -> None:
    medians = {"float32": 2.0, "int8": 1.0, "hybrid": ratio}
    assert Row("net", "", "1", medians, ratio, interval).verdict == verdict
