"""Routine parameters of one layer as a study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kits.command_line import Cli

MODEL = """
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()).eval(), torch.randn(1, 16, 8, 8)
"""


def test_the_best_setting_of_a_layer_is_found_and_kept(folder: Path, cli: Cli) -> None:
    pytest.importorskip("xgboost")
    Path("net.py").write_text(MODEL)
    command = ("sweep", "tune", "net.py:network", "-p", "cpu:0", "--json")
    status, out, error = cli(*command, "-n", "5")
    assert status == 0, error
    answer = json.loads(out)
    assert answer["routine"].startswith("cpu:float32/")
    assert answer["ms"] > 0
    assert answer["short_list_ms"] > 0
    assert answer["trials"]["complete"] + answer["trials"]["pruned"] == 5
    optuna, descent, learned = answer["searches"]
    assert (optuna["search"], descent["search"]) == ("optuna tpe", "coordinate descent")
    assert optuna["ms"] == answer["ms"]
    assert learned["search"] == "learned search"
    for other in (descent, learned):
        assert 0 < other["measurements"] <= optuna["measurements"] <= 5
        assert other["ms"] > 0
        assert other["routine"].startswith("cpu:float32/")
    status, out, error = cli(*command, "-n", "6", "--resume")
    assert status == 0, error
    assert json.loads(out)["ms"] <= answer["ms"]
    assert cli(*command[:-1], "-n", "6", "--resume", "--no-compare")[1].count("optuna tpe") == 1
    status, _, error = cli(*command, "--layer", "nosuch")
    assert (status, "the model has no such layer" in error) == (2, True)
