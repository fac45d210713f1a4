"""What `nnstretch train` says if the weights were better before, or after an earlier epoch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnstretch.training.loop.conclusion import Conclusion
from nnstretch.training.weights import read_tensors
from tests.kits.command_line import Cli, answer_of

NETWORK = """
import torch
from torch import nn

def small(num_classes=10):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, num_classes)]
    return nn.Sequential(*layers), torch.randn(1, 1, 16, 16)
"""
MODEL = ("net.py:small", "--data", "digits", "--threads", "1", "--workers", "0")


def test_a_training_that_makes_the_network_worse_says_so(cli: Cli, folder: Path) -> None:
    Path("net.py").write_text(NETWORK)
    first = answer_of(cli("train", *MODEL, "--epochs", "2", "-o", "w.safetensors", "--json"))
    learns = ("--weights", "w.safetensors", "--teacher", "net.py:small:w.safetensors", "--epochs", "2", "--lr", "0.2")
    Path("worse.safetensors").touch()
    status, _, err = cli("train", *MODEL, *learns, "-o", "worse.safetensors")
    assert status == 0, err
    assert "worse.safetensors is there; it is replaced when this training has ended" in err
    found = json.loads(Path("worse.run/result.json").read_text())
    assert found["start_top1"] == first["validation_top1"] > found["validation_top1"]
    assert (
        f"the training made the network worse: top-1 {first['validation_top1']:.2f} % of the validation images" in err
    )


def test_the_weights_are_those_of_the_best_epoch(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("net.py").write_text(NETWORK)
    scores = [50.0, 70.0, 60.0] * 2
    monkeypatch.setattr(Conclusion, "accuracy", lambda *_: scores.pop(0))
    train = ("train", *MODEL, "--epochs", "3", "--amp-dtype", "float32", "--json")
    done = cli(*train, "-o", "w.safetensors")
    answer = answer_of(done)
    assert (answer["epoch"], answer["validation_top1"], answer["best_top1"]) == (2, 70.0, 70.0)
    assert "epoch 2 of 3 was the best on the validation images, and these are its weights; --checkpoint last" in done[2]
    best = read_tensors(Path("w.run/checkpoints/best.safetensors"))[0]
    written = read_tensors(Path("w.safetensors"))[0]
    assert all((written[name] == value).all() for name, value in best.items())
    done = cli(*train, "-o", "last.safetensors", "--checkpoint", "last")
    assert (answer_of(done)["epoch"], answer_of(done)["validation_top1"]) == (3, 60.0)
    assert "an earlier epoch had top-1 70.00 % of the validation images" in done[2]
