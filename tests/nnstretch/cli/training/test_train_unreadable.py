"""Images that cannot be decoded, the first one of a folder among them: `train` and `quantize` go on and count them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.kits.command_line import Cli, answer_of

NETWORK = """
import torch
from torch import nn

def small(num_classes=2):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, num_classes)]
    return nn.Sequential(*layers), torch.randn(1, 3, 8, 8)
"""


@pytest.fixture
def images(folder: Path) -> Path:
    """A folder of two classes; the first training image is cut off."""
    (folder / "net.py").write_text(NETWORK)
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4), ("test", 4)):
        for name in "ab":
            place = folder / "images" / split / name
            place.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(draw.integers(0, 255, (9, 9, 3), np.uint8)).save(place / f"{index:02}.png")
    first = folder / "images" / "train" / "a" / "00.png"
    first.write_bytes(first.read_bytes()[:60])
    return folder / "images"


def test_train_and_quantize_count_what_cannot_be_decoded(cli: Cli, folder: Path, images: Path) -> None:
    data = ("--data", f"folder:{images}", "--json")
    options = ("--epochs", "1", "--batch-size", "8", "--workers", "0", "--threads", "1", "-o", "w.safetensors")
    status, out, err = cli("train", "net.py:small", *data, *options)
    assert status == 0, err
    assert json.loads(out)["unreadable"] == 1
    assert "1 of 24 training images cannot be decoded" in err
    cropping = (
        f"folder:{images}: images are resized to cover 9×9 pixels, and their centre of 8×8 is used (crop_pct 0.875)"
    )
    assert f"{cropping}; --crop-pct 1 keeps the most of them" in " ".join(err.split())
    assert json.loads((folder / "w.run" / "result.json").read_text())["unreadable"] == 1
    _, _, err = cli("evaluate", "net.py:small", "-w", "w.safetensors", *data, "--engine", "torch")
    assert f"{cropping}, as the network states" in " ".join(err.split())
    status, out, err = cli("quantize", "net.py:small", "-w", "w.safetensors", *data, "--images", "24", "-o", "q.onnx")
    assert answer_of((status, out, err))["unreadable"] == 1
    assert "1 of 24 training images cannot be decoded" in err
