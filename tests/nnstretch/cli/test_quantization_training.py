"""`train --recipe qat` and what its weights are for: int8 files, evaluations, a second training; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnstretch.cli.main import main
from nnstretch.frontends.onnx_file import load
from nnstretch.training.weights import read_tensors
from tests.kits.command_line import Cli, answer_of, refuses

NETWORK = """
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)), torch.zeros(1, 1, 12, 12)
"""
DATA = (
    "--data",
    "digits",
    "--image-size",
    "12",
    "--batch-size",
    "128",
    "--threads",
    "1",
    "--epochs",
    "1",
    "--target-accuracy",
    "0",
)
QAT = (
    "train",
    "net.py:make",
    *DATA,
    "--recipe",
    "qat",
    "--weights",
    "w.safetensors",
    "--teacher",
    "net.py:make:w.safetensors",
)


@pytest.fixture
def weights(folder: Path) -> Path:
    """Of the network in float32."""
    (folder / "net.py").write_text(NETWORK)
    assert main(["train", "net.py:make", *DATA, "--evaluate-every", "0", "-o", "w.safetensors"]) == 0
    return folder / "w.safetensors"


@pytest.mark.usefixtures("weights")
def test_trained_scales_come_to_the_file_without_data(cli: Cli, folder: Path) -> None:
    answer = answer_of(cli(*QAT, "-o", "q.safetensors", "--json"))
    again = answer_of(cli(*QAT, "-o", "q.safetensors", "--resume", "--json"))
    assert again["top1"] == answer["top1"]
    status, out, err = cli("quantize", "net.py:make", "-w", "q.safetensors", "-o", "q.onnx")
    assert (status, err) == (0, "")
    assert "layers in int8, " in out and "output error" not in out
    tensors = read_tensors(folder / "q.safetensors")[0]
    trained = {
        float(first * tensors[name.replace("first_scale", "growth")].exp())
        for name, first in tensors.items()
        if name.endswith(".first_scale")
    }
    nodes = [node for node in load(folder / "q.onnx").graph if node.op_type == "QuantizeLinear"]
    assert {float(node.inputs[1].const_value.numpy()) for node in nodes} == trained
    for model, engine in ((("q.onnx",), "onnxruntime"), (("net.py:make", "-w", "q.safetensors"), "torch")):
        found = answer_of(cli("evaluate", *model, "--data", "digits", "--engine", engine, "--json"))
        assert found["top1"] == pytest.approx(answer["top1"], abs=0.2)
    assert cli("export", "net.py:make", "-w", "q.safetensors", "-o", "exported.onnx")[0] == 0
    assert len(load(folder / "exported.onnx").graph) == len(load(folder / "q.onnx").graph)


def test_what_is_refused(cli: Cli, weights: Path) -> None:
    assert weights.exists()
    refuses(
        cli("train", "net.py:make", *DATA, "--recipe", "qat", "-o", "q.safetensors"), "trained weights", "--weights"
    )
    refuses(cli(*QAT, "--amp-dtype", "bfloat16", "-o", "q.safetensors"), "amp_dtype float32")
    refuses(cli(*QAT, "--qat-keep-float", "nothing", "-o", "q.safetensors"), "no layer is called 'nothing'")
    refuses(cli("quantize", "net.py:make", "-w", "w.safetensors", "-o", "q.onnx"), "give --data SET")
    assert cli(*QAT, "-o", "q.safetensors")[0] == 0
    given = "quantize", "net.py:make", "-w", "q.safetensors", "-o", "q.onnx"
    refuses(cli(*given, "--data", "digits"), "leave out --data")
    refuses(cli(*given, "--method", "mse"), "leave out --data")
    refuses(cli("export", *given[1:], "--batch", "4"), "one image per run")
    refuses(
        cli("stretch", "net.py:make", "-w", "q.safetensors", "-p", "sim:phone/cpu,sim:phone/gpu", "-o", "d"),
        "rounds to int8",
    )
    _, metadata = read_tensors(weights.parent / "q.safetensors")
    assert json.loads(metadata["nnstretch.network"])["quantization"] == {"ranges": "learned", "kept": []}
