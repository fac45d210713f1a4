"""`--image-size`: of networks that torch builds, and of files that leave the size of their images open."""

from __future__ import annotations

import csv
from pathlib import Path

import onnx
import pytest

import nnstretch as nns
from tests.kits.command_line import Cli, answer_of, refuses

pytestmark = pytest.mark.usefixtures("folder")

NETWORK = """
import torch
from torch import nn


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8, 4)), torch.zeros(1, 3, 16, 24)
"""
QUICK = ("--no-tune", "-t", "1")


@pytest.fixture
def open_file(cli: Cli, folder: Path) -> str:
    """An ONNX file for images of any size; net.py has its network."""
    (folder / "net.py").write_text(NETWORK)
    assert cli("export", "net.py:network", "-o", "fixed.onnx")[0] == 0
    model = onnx.load("fixed.onnx")
    del model.graph.value_info[:]
    for axis, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save(model, "open.onnx")
    return "open.onnx"


def test_networks_and_open_files_take_sizes_that_are_no_squares(cli: Cli, open_file: str) -> None:
    for model in ("net.py:network", open_file):
        assert cli("compile", model, "--image-size", "32x16", *QUICK, "-o", "made.nns")[0] == 0
        assert answer_of(cli("run", "made.nns", "--check", "--json"))["max_rel_error"] < 1e-5
        with nns.compile("made.nns") as session:
            assert session.get_inputs()[0].shape == (1, 3, 32, 16)
        timed = ("bench", model, "--image-size", "32x16", "--rounds", "1", "--budget", "0.05", "--json", *QUICK)
        (result,) = answer_of(cli(*timed))["results"]
        assert (result["image_size"], *result["inputs"].values()) == ([32, 16], [1, 3, 32, 16])


def test_latencies_over_sizes(cli: Cli, open_file: str) -> None:
    files = ("latency.json", "latency.csv", "latency.html")
    outputs = [part for file in files for part in ("-o", file)]
    sweep = (
        "sweep",
        "latency",
        "net.py:network",
        open_file,
        "--image-sizes",
        "16,32x16",
        "--no-tune",
        "--seconds",
        "0.02",
    )
    rows = answer_of(cli(*sweep, *outputs, "--json"))["results"]
    sizes = [16, [32, 16]]
    assert [(row["model"], row["image_size"]) for row in rows] == [
        (model, size) for model in ("net.py:network", open_file) for size in sizes
    ]
    assert all(row["p50_ms"] > 0 for row in rows)
    with Path("latency.csv").open() as table:
        assert [row["image_size"] for row in csv.DictReader(table)] == ["16", "32x16"] * 2
    assert cli("report", "latency.json", "-o", "again.html")[0] == 0
    for page in ("latency.html", "again.html"):
        assert "32×16 pixels" in Path(page).read_text()


def test_sizes_that_a_model_does_not_take(cli: Cli, open_file: str) -> None:
    del open_file
    outputs = {"compile": "made.nns", "quantize": "int8.onnx", "export": "x.onnx"}
    for command in ("bench", "run", "tune", *outputs):
        output = ("-o", outputs[command]) if command in outputs else ()
        refuses(cli(command, "fixed.onnx", "--image-size", "32", *output), "fixed.onnx is for images of its own size")
    refuses(cli("sweep", "latency", "fixed.onnx", "--image-sizes", "16,32"), "fixed.onnx is for images of its own size")
    refuses(cli("bench", "net.py:network", "--image-size", "32*16"), "--image-size 32*16 is no size", "HEIGHTxWIDTH")
    refuses(cli("sweep", "latency", "net.py:network", "--image-sizes", "16,"), "--image-sizes", "is no size")
    refuses(cli("run", "open.onnx", "--image-size", "32x4"), "--image-size 32x4 is too small")
    refuses(cli("run", "open.onnx", "--image-size", "32", "--shape", "1,3,32,32"), "--shape", "--image-size")
