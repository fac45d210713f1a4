"""Anchor-free detectors are trained, branched, retrained and scored by commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nnstretch.branching.design.design import save_design
from nnstretch.cli.main import main
from tests.kits.kernels.shapes import write_coco
from tests.kits.networks.anchor_free import SIDE, branched_design

NETWORKS = "from tests.kits.networks.anchor_free import anchor_free, decoding\n"
DATA = ("--data", "coco:data", "--head", "yolo", "--json")
RECIPE = ("--recipe", "dense", "--batch-size", "8", "--lr", "0.004", "--workers", "0", "--threads", "1",
          "--evaluate-every", "0")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("pycocotools")
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETWORKS)
    write_coco(tmp_path / "data", (("train", 64), ("val", 4), ("test", 16)))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    assert status == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_detector_is_branched_and_retrained_by_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--image-size", str(SIDE), "--crop-pct", "1")
    original = answer(
        capsys, "train", "nets.py:anchor_free", *DATA, *RECIPE, *size, "--epochs", "6", "-o", "o.safetensors"
    )
    assert original["map50"] > 60
    save_design(branched_design(), Path("design.json"))
    branched = ("nets.py:anchor_free", "--design", "design.json")
    inherited = answer(capsys, "evaluate", *branched, "-w", "o.safetensors", *DATA, "--engine", "torch")
    retrained = answer(
        capsys, "train", *branched, "-w", "o.safetensors", "--teacher", "nets.py:anchor_free:o.safetensors", *DATA, *RECIPE,
        "--epochs", "2", "-o", "b.safetensors",
    )  # fmt: skip
    assert sum(retrained["blockwise"]["after"]) < sum(retrained["blockwise"]["before"])
    assert retrained["map"] > max(inherited["map"] + 10, original["map"] - 20)
    scored = answer(capsys, "evaluate", *branched, "-w", "b.safetensors", *DATA, "--engine", "onnxruntime")
    assert scored["map"] == pytest.approx(retrained["map"], abs=0.05)


def test_a_detector_that_decodes_by_itself_learns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From probabilities and boxes alone, as a file has them."""
    size = ("--image-size", str(SIDE), "--crop-pct", "1")
    found = answer(capsys, "train", "nets.py:decoding", *DATA, *RECIPE, *size, "--epochs", "5", "-o", "w.safetensors")
    assert found["map50"] > 30
