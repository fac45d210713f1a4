"""`train --resume` without a value, with `auto`, and with a run folder or a checkpoint."""

import json
from pathlib import Path

import pytest

from nnstretch.cli.commands.train import completed_resume
from nnstretch.training.weights import read_tensors
from tests.kits.command_line import Cli, answer_of, refuses

NETWORK = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 10)), torch.randn(1, 1, 8, 8)
"""
TRAIN = (
    *(
        "train",
        "net.py:small",
        "--data",
        "digits",
        "--image-size",
        "8",
        "--batch-size",
        "256",
        "--threads",
        "1",
        "--json",
    ),
    *("--target-accuracy", "0", "--epochs", "2"),
)


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        (["--resume"], ["--resume", "auto"]),
        (["--resume", "--json"], ["--resume", "auto", "--json"]),
        (["--resume", "auto", "-o", "w"], ["--resume", "auto", "-o", "w"]),
        (["--resume", "w.run"], ["--resume", "w.run"]),
        (["--resume", "w.run/checkpoints/last.safetensors"], ["--resume", "w.run/checkpoints/last.safetensors"]),
        (["--resume", "w.run/checkpoints/epoch-2.safetensors"], ["--resume", "w.run/checkpoints/epoch-2.safetensors"]),
        (["--resume", "resnet18"], ["--resume", "auto", "resnet18"]),
        (["--resume=w"], ["--resume=w"]),
        (["net.py:f", "--data", "digits"], ["net.py:f", "--data", "digits"]),
    ],
)
def test_a_resume_without_a_value_is_auto(given: list[str], completed: list[str]) -> None:
    assert completed_resume(given) == completed


def test_a_run_folder_or_its_checkpoint_is_resumed(cli: Cli, folder: Path) -> None:
    (folder / "net.py").write_text(NETWORK)
    begun = cli(*TRAIN, "-o", "w.safetensors", "--resume")
    assert "w.run has no training to resume: one begins" in begun[2]
    whole = answer_of(begun)
    for number, value in enumerate(([], ["auto"], ["w.run"], ["w.run/checkpoints/last.safetensors"])):
        output = "w.safetensors" if number < 2 else f"{number}.safetensors"
        resumed = cli(*TRAIN, "-o", output, "--resume", *value)
        assert "no training to resume" not in resumed[2]
        again = answer_of(resumed)
        assert Path(again["run"]) == Path("w.run")
        assert [one["loss"] for one in again["history"]] == [one["loss"] for one in whole["history"]]
        assert json.dumps(again["top1"]) == json.dumps(whole["top1"])
        assert read_tensors(folder / output)[0].keys() == read_tensors(folder / "w.safetensors")[0].keys()
    shorter = cli(*TRAIN, "-o", "w.safetensors", "--resume", "--epochs", "1")
    refuses(shorter, "epochs was 2 and is 1", "take the best weights so far, checkpoints/best.safetensors", "--weights")
    kept = "w.run/checkpoints/epoch-1.safetensors"
    refuses(cli(*TRAIN, "-o", "x.safetensors", "--resume", kept), f"copy {kept} there", "--resume w.run")
    refuses(cli(*TRAIN, "-o", "x.safetensors", "-w", kept), "is a checkpoint of a training", "best.safetensors")
    (folder / "empty.run").mkdir()
    refuses(cli(*TRAIN, "-o", "x.safetensors", "--resume", "empty.run"), "neither auto nor a run folder")
    refuses(cli(*TRAIN, "-o", "x.safetensors", "--resume", "w.run", "--run-dir", "y.run"), "give one of them")


def test_a_network_for_other_classes_is_refused_before_anything_is_written(cli: Cli, folder: Path) -> None:
    (folder / "net.py").write_text(NETWORK.replace("64, 10", "64, 3"))
    refuses(cli(*TRAIN, "-o", "w.safetensors"), "writes [1, 3] for 1 image of 10 classes; [1, 10] is wanted")
    assert [path.name for path in folder.iterdir() if path.name not in ("net.py", "__pycache__")] == []
