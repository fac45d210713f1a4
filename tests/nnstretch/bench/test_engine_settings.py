"""Other engines get their fastest setting on quantised models, and their usual one on others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from nnstretch.bench.comparison.client import Workspace
from nnstretch.bench.comparison.subject import reference_outputs
from nnstretch.bench.engines import Engine, Job, engine_entry
from nnstretch.bench.engines.onnxruntime_engine import load, prepare
from nnstretch.bench.engines.settings import is_quantized, setting_of, write_fastest
from nnstretch.devices.external.onnxruntime import OnnxRuntimeModel
from nnstretch.graph.layer import TensorType
from nnstretch.graph.reference import run_proto
from nnstretch.support.onnxruntime_levels import has_activation_scales_per_channel
from tests.kits.graphs.qdq_convolutions import (
    qdq_convolution,
    scales_per_channel,
    with_scales_behind_casts,
)
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


@pytest.mark.parametrize("written", [lambda model: model, with_scales_behind_casts], ids=["plain", "behind casts"])
def test_activation_scales_per_channel_run(
    written: Callable[[onnx.ModelProto], onnx.ModelProto], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime's fusions would fail in the first run: neither it nor the reference has them."""
    proto = written(scales_per_channel())
    path = tmp_path / "channels.onnx"
    path.write_bytes(proto.SerializeToString())
    x = np.random.default_rng(1).standard_normal((1, 4, 5, 9, 7)).astype(np.float32)
    (wanted,) = run_proto(proto, {"x": x})
    engine = load(job_of(path), {"x": x}, lambda *_: None)
    engine.run()
    np.testing.assert_array_equal(engine.outputs()["e_read"], wanted)
    np.testing.assert_array_equal(reference_outputs(path, {"x": x})["e_read"], wanted)
    found, kinds = np.empty_like(wanted), (TensorType(x.shape), TensorType(wanted.shape))
    OnnxRuntimeModel(path.read_bytes(), 1, kinds[:1], kinds[1:]).run([x], [found])
    np.testing.assert_array_equal(found, wanted)
    assert capfd.readouterr().err == ""


def test_fusions_are_kept_where_only_weights_have_scales_per_channel() -> None:
    assert has_activation_scales_per_channel(scales_per_channel())
    for model in (qdq_convolution(), with_scales_behind_casts(qdq_convolution())):
        assert not has_activation_scales_per_channel(model)
    assert not has_activation_scales_per_channel(ir.to_proto(QuantizedNetwork(3).graph()))
