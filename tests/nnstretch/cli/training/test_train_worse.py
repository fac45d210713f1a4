"""What `nnstretch train` says if the weights were better before, or after an earlier epoch."""

from __future__ import annotations

import json
from pathlib import Path

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
