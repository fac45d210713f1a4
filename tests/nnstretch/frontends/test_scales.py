"""Scales of QuantizeLinear and DequantizeLinear: which are refused, and which are computed as ONNX Runtime does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import nnstretch as nns
from nnstretch.errors import ModelError
from nnstretch.frontends.onnx_file import load
from tests.kits.graphs.qdq_convolutions import qdq_convolution


def write(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"es": np.float32(np.nan)},
            "scale 'es' of QuantizeLinear 'e_steps' is nan, and scales are finite numbers of at least 0",
        ),
        ({"es": np.float32(np.inf)}, "'es' of QuantizeLinear 'e_steps' is inf"),
        ({"es": np.float32(-0.05)}, "'es' of QuantizeLinear 'e_steps' is -0.05"),
        (
            {"ws": np.full(8, -1, np.float32)},
            "'ws' of DequantizeLinear 'w_read' is -1, and scales are .* of at least 0",
        ),
        (
            {"xs": np.full(3, 0.02, np.float32), "xz": np.zeros(3, np.uint8)},
            "scale 'xs' of QuantizeLinear 'x_steps' has 3 numbers, and axis 1 of 'x' has 4 places",
        ),
    ],
)
def test_impossible_scales_are_refused_without_a_warning(values: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = write(qdq_convolution(**values), tmp_path / "qdq.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ModelError, match=f"{words}.*; quantise or export it again"):
            load(path)


@pytest.mark.parametrize("values", [{"ws": np.arange(8, dtype=np.float32) / 500}, {"es": np.float32(0)}])
def test_what_is_always_zero_may_have_a_scale_of_zero(values: dict[str, Any], tmp_path: Path) -> None:
    """Of weights and of activations."""
    path = write(qdq_convolution(**values), tmp_path / "qdq.onnx")
    with nns.compile(path, processors="cpu:0", tune=False) as session:
        (given,) = session.get_inputs()
        feed = {given.name: np.random.default_rng(0).standard_normal(given.shape).astype(np.float32)}
        (found,) = session.run(None, feed)
    (wanted,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)
    np.testing.assert_allclose(found, wanted, atol=0.06)  # a step
