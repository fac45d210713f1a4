"""Other engines get their fastest setting on quantised models, and their usual one on others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from nnstretch.bench.comparison.client import Workspace
from nnstretch.bench.engines import Engine, Job, engine_entry
from nnstretch.bench.engines.onnxruntime_engine import load, prepare
from nnstretch.bench.engines.settings import is_quantized, setting_of, write_fastest
from tests.kits.graphs.quantized_networks import QuantizedNetwork


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    path = tmp_path / "quantized.onnx"
    onnx.save(QuantizedNetwork(4, layers=3).model, path)
    return path


def job_of(path: Path, file: str = "") -> Job:
    return Job(str(path), str(path), (0,), file=file)


class Sleeping(Engine):
    def __init__(self, seconds: float, feeds: Mapping[str, np.ndarray]) -> None:
        self._seconds, (self.feed,) = seconds, feeds.values()
        assert self.feed.dtype == np.float32

    def run(self) -> None:
        time.sleep(self._seconds)

    def outputs(self) -> dict[str, np.ndarray]:
        return {}


def test_the_fastest_setting_is_kept(quantized: Path, tmp_path: Path) -> None:
    settings = {"slow": lambda feeds: Sleeping(0.004, feeds), "fast": lambda feeds: Sleeping(0.0, feeds)}
    path = write_fastest(job_of(quantized), settings, tmp_path)
    assert setting_of(job_of(quantized, str(path)), "usual") == "fast"
    assert setting_of(job_of(quantized), "usual") == "usual"


def test_onnxruntime_says_which_setting_it_has(quantized: Path, tmp_path: Path) -> None:
    chosen = prepare(job_of(quantized), tmp_path, lambda *_: None)
    feeds = {"x": QuantizedNetwork(4, layers=3).input}
    engine = load(job_of(quantized, str(chosen)), feeds, lambda *_: None)
    engine.run()
    assert engine.facts()["variant"] in ("session.qdqisint8allowed=0", "session.qdqisint8allowed=1")
    assert "variant" not in load(job_of(quantized), feeds, lambda *_: None).facts()


def test_networks_in_float32_take_no_time_to_prepare(tmp_path: Path) -> None:
    path = tmp_path / "floating.onnx"
    onnx.save(QuantizedNetwork(4, layers=3).floating, path)
    assert not is_quantized(path)
    with Workspace() as workspace:
        for name in ("onnxruntime", "openvino"):
            assert workspace.file_for(engine_entry(name), job_of(path), lambda *_: None) == ""
