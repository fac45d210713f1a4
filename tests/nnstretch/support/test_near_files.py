"""Advice where a file is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.support.near_files import advice_for_missing


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("modle.onnx", "did you mean {0}/model.onnx?"),
        ("other-3.onnx", "did you mean {0}/other-1.onnx or {0}/other-2.onnx?"),
        ("folder.onxx", "look elsewhere"),
        ("unlike.onnx", "look elsewhere"),
        ("nowhere/model.onnx", "look elsewhere"),
        ("nul\0l/model.onnx", "look elsewhere"),
    ],
)
def test_files_with_names_like_that_of_a_missing_one_are_named(tmp_path: Path, missing: str, advice: str) -> None:
    for name in ("model.onnx", "other-1.onnx", "other-2.onnx"):
        (tmp_path / name).touch()
    (tmp_path / "folder.onnx").mkdir()
    found = advice_for_missing(tmp_path / missing, "look elsewhere")
    assert set(found.replace("?", "").split()) == set(advice.format(tmp_path).replace("?", "").split())
