"""The study of int8's accuracy: its table, and that a second run does nothing again."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.studies.quantization_study import CALIBRATED, FLOAT, FURTHER, TRAINED, main, table

SMALL = ("--models", "resnet", "--seeds", "1", "--epochs", "1", "--epoch-images", "64", "--held-out", "22")


def test_a_small_study_has_its_table_and_is_not_run_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-o", str(tmp_path), *SMALL]) == 0
    made = (tmp_path / "tables.md").read_text()
    assert [line.split(" | ")[1] for line in made.splitlines()[2:]] == [FLOAT, CALIBRATED, TRAINED, FURTHER]
    folder = tmp_path / "resnet" / "seed-0"
    files = [folder / "calibrated" / "int8.onnx", folder / "qat" / "int8.onnx"]
    before = [file.stat().st_mtime_ns for file in files]
    assert main(["-o", str(tmp_path), *SMALL]) == 0
    assert [file.stat().st_mtime_ns for file in files] == before
    assert main(["-o", str(tmp_path), *SMALL, "--qat-epochs", "2"]) == 2
    assert main(["-o", str(tmp_path), "--models", "vgg"]) == 2
    assert "there are resnet, mobilenetv2" in capsys.readouterr().err


def test_differences_are_paired_by_seed() -> None:
    rows = [{FLOAT: 80.0 + seed, CALIBRATED: 79.5 + seed, TRAINED: 80.0 + seed, FURTHER: 80.0} for seed in range(3)]
    lines = table({"resnet": rows}).splitlines()
    assert lines[2] == "| resnet | float32 | 3 | 81.00 ± 2.48 |  |"
    assert lines[3] == "| resnet | int8, calibrated | 3 | 80.50 ± 2.48 | -0.50 ± 0.00 |"
