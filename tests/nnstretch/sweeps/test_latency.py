"""Latencies over a grid of settings, and the script that people copy."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from scripts.latency_sweep import main
from tests.kits.command_line import Cli

MODEL = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)).eval()

def network():
    return small(), torch.randn(1, 3, 16, 16)
"""
QUICK = ("--no-tune", "--seconds", "0.02")


def test_every_combination_is_a_row_and_one_that_cannot_run_has_its_reason(folder: Path, cli: Cli) -> None:
    Path("net.py").write_text(MODEL)
    command = ("sweep", "latency", "net.py:network", *QUICK, "-p", "cpu:0", "-p", "cpu:999")
    outputs = [f"-oa{ending}" for ending in (".csv", ".json", ".html", ".svg")]
    status, out, error = cli(*command, "--batches", "1,2", *outputs, "--json")
    assert status == 0, error
    rows = json.loads(out)["results"]
    assert [(row["processors"], row["batch"]) for row in rows] == [(p, b) for p in ("cpu:0", "cpu:999") for b in (1, 2)]
    assert all(0 < row["p50_ms"] <= row["p90_ms"] and row["images_per_s"] > 0 for row in rows[:2])
    assert all(row["p50_ms"] is None and "999" in row["error"] for row in rows[2:])
    answer = json.loads(Path("a.json").read_text())
    assert answer["results"] == rows
    assert {"nnstretch", "cpu", "engine"} <= set(answer["environment"])
    with Path("a.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [row["batch"] for row in lines] == ["1", "2", "1", "2"]
    assert {row["environment.engine"] for row in lines} == {answer["environment"]["engine"]}
    assert {row["environment.libraries.numpy"] for row in lines} == {np.__version__}
    assert "Latency by batch: net.py:network" in Path("a.html").read_text()
    assert Path("a.svg").read_text().count("<polyline") == 2
    status, _, error = cli("sweep", "latency", "net.py:network", *QUICK, "-p", "cpu:999")
    assert status == 1, error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.py:network", "--batches", "0,2"), "--batches 0,2 is not understood"),
        (("net.py:network", "--thread-counts", "many"), "--thread-counts many is not understood"),
        (("net.py:network", "--thread-counts", "1,9999"), "--thread-counts 9999: this process may use"),
        (("net.py:network", "file.onnx", "--image-sizes", "32"), "file.onnx is empty"),
        (("nosuch",), "'nosuch'"),
        (("net.py:network", "-o", "a.pdf"), "a.pdf"),
    ],
)
def test_what_cannot_be_understood_is_one_line(
    folder: Path, cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    Path("net.py").write_text(MODEL)
    Path("file.onnx").touch()
    status, _, error = cli("sweep", "latency", *arguments)
    assert status == 2
    (line,) = error.splitlines()
    assert message in line


def test_the_script_prints_a_line_per_combination(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(MODEL)
    assert main(["net.py:network", "--batches", "1,2", "--no-tune"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[2].partition(",")[0] for line in lines] == ["network: 1 threads"] * 2
    assert main(["net.py:network", "--batches", "none"]) == 2
