"""Errors of outputs, the layers that they come from, and the layers that stay in float32 for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.errors import ModelError, UsageError
from nnstretch.frontends.onnx_file import save
from nnstretch.quantization import KeepFloat, QuantizationOptions, quantize, signal_to_noise
from nnstretch.quantization.sensitivity import EXAMPLES, OutputError, fewest_kept
from tests.kits.graphs.float_networks import classifier, detector, examples, network, normal

SHAPE = (1, 3, 16, 16)
MEASURE = QuantizationOptions(sensitivity=True)


def activation(values: np.ndarray, calibrated: np.ndarray) -> np.ndarray:
    """Values rounded to the 256 integers of the range of others."""
    low, high = min(0.0, float(calibrated.min())), max(0.0, float(calibrated.max()))
    step = (high - low) / 255
    zero = np.round(-low / step)
    return np.asarray((np.clip(np.round(values / step) + zero, 0, 255) - zero) * step)


def weight(matrix: np.ndarray) -> np.ndarray:
    """A matrix rounded with a step per row."""
    step = np.abs(matrix).max(axis=1, keepdims=True) / 127
    return np.asarray(np.round(matrix / step) * step)


def test_the_error_of_one_layer_is_that_of_the_network_with_it_alone(tmp_path: Path) -> None:
    """Against the arithmetic in numpy, of two dense layers."""
    text = "dense (float[64,32] x) => (float[64,8] y) { h = Gemm<transB=1>(x, a) y = Gemm<transB=1>(h, b) }"
    a, b, x = normal(16, 32), normal(8, 16, seed=2), normal(64, 32, seed=3)
    made = quantize(network(text, {"a": a, "b": b}), [{"x": x}], tmp_path / "q.onnx", MEASURE)
    hidden = x @ a.T
    wanted = hidden @ b.T
    outputs = {
        "h": activation(activation(x, x) @ weight(a).T, hidden) @ b.T,
        "y": activation(activation(hidden, hidden) @ weight(b).T, wanted),
        "both": activation(activation(activation(x, x) @ weight(a).T, hidden) @ weight(b).T, wanted),
    }
    errors = {name: np.linalg.norm(y - wanted) / np.linalg.norm(wanted) for name, y in outputs.items()}
    found = {layer.name: layer.error for layer in made.sensitivity}
    assert found == pytest.approx({name: errors[name] for name in ("h", "y")}, rel=0.02)
    assert made.error == pytest.approx(errors["both"], rel=0.02)
    worst, least = made.sensitivity
    assert worst.error >= least.error
    assert worst.snr_db == pytest.approx(-20 * np.log10(worst.error))
    assert worst.operator == "Gemm"


def test_layers_that_move_integers_have_no_error_of_their_own(tmp_path: Path) -> None:
    made = quantize(classifier(), examples(3, *SHAPE), tmp_path / "q.onnx", MEASURE)
    assert {layer.name for layer in made.sensitivity} == {"c1", "c2", "c3", "s3", "p", "y"}


def test_the_worst_layers_stay(tmp_path: Path) -> None:
    """A layer whose channels differ in range by a factor of 1000 is the worst, and in float32 it takes its error with it."""
    scales = np.array([1000, 1, 1, 1, 1, 1, 1, 1], np.float32)[:, None, None, None]
    model = classifier(w2=normal(8, 1, 3, 3) * scales, w3=normal(8, 8, 1, 1) / scales.reshape(1, 8, 1, 1))
    feeds = examples(3, *SHAPE)
    made = quantize(model, feeds, tmp_path / "q.onnx", MEASURE)
    assert {layer.name for layer in made.sensitivity[:2]} == {"c2", "c3"}
    one = quantize(model, feeds, tmp_path / "q.onnx", QuantizationOptions(keep_float=KeepFloat.parse(["auto:1"])))
    assert made.sensitivity[0].name in one.kept
    two = quantize(model, feeds, tmp_path / "q.onnx", QuantizationOptions(keep_float=KeepFloat.parse(["auto:2"])))
    assert {"c2", "r2", "c3"} <= set(two.kept)
    assert made.error is not None and two.error is not None
    assert two.error < made.error / 2
    assert two.int8 < made.int8


def test_the_largest_error_holds_with_the_fewest_layers(tmp_path: Path) -> None:
    model, feeds = classifier(), examples(3, *SHAPE)
    all_int8 = quantize(model, feeds, tmp_path / "q.onnx", MEASURE)
    assert all_int8.error is not None
    limit = all_int8.error * 0.7
    made = quantize(model, feeds, tmp_path / "q.onnx", QuantizationOptions(max_error=limit))
    assert made.error is not None and 0 < made.error <= limit
    kept = [layer.name for layer in made.sensitivity if layer.name in made.kept]
    assert kept == [layer.name for layer in made.sensitivity[: len(kept)]]
    fewer = QuantizationOptions(keep_float=KeepFloat(worst=len(kept) - 1))
    error = quantize(model, feeds, tmp_path / "q.onnx", fewer).error
    assert error is not None and error > limit
    loose = quantize(model, feeds, tmp_path / "q.onnx", QuantizationOptions(max_error=all_int8.error * 1.01))
    assert loose.kept == ()
    exact = quantize(model, feeds, tmp_path / "q.onnx", QuantizationOptions(max_error=1e-9))
    assert exact.int8 == 0
    assert exact.error == pytest.approx(0, abs=1e-9)


def test_heads_are_not_measured(tmp_path: Path) -> None:
    made = quantize(detector(), examples(2, *SHAPE), tmp_path / "q.onnx", MEASURE)
    assert {layer.name for layer in made.sensitivity} == {"b1", "b3", "d", "n"}


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=12), st.floats(0.001, 3))
def test_fewest_kept_by_brute_force(parts: list[float], limit: float) -> None:
    names = [str(index) for index in range(len(parts))]

    def error(kept: Sequence[str]) -> float:
        return sum(part for name, part in zip(names, parts, strict=True) if name not in kept)

    counts = (count for count in range(len(parts) + 1) if error(names[:count]) <= limit)
    assert len(fewest_kept(names, error, limit)) == next(counts)


def test_errors_of_outputs(tmp_path: Path) -> None:
    """Of several outputs the worst counts; one that is 0 everywhere counts by its difference, integers not at all."""
    text = """outputs (float[1,4] x) => (float[1,4] a, float[1,4] b, int64[1,1] c) {
        a = Mul(x, scale)  b = Mul(x, none)  c = ArgMax<axis=1>(x)
    }"""

    def file(scale: float, none: float) -> Path:
        weights = {"scale": np.array([scale], np.float32), "none": np.array([none], np.float32)}
        save(network(text, weights), path := tmp_path / f"{scale}-{none}.onnx")
        return path

    feeds = [{"x": np.full((1, 4), value, np.float32)} for value in range(1, EXAMPLES + 5)]
    error = OutputError(file(1, 0), feeds)
    assert error.is_defined
    assert error.of(file(1, 0)) == 0
    assert error.of(file(1.25, 0)) == pytest.approx(0.25)
    length = np.sqrt(4 * sum(value**2 for value in range(1, EXAMPLES + 1)))
    assert error.of(file(1.25, 0.5)) == pytest.approx(0.5 * length)
    assert signal_to_noise(0.1) == pytest.approx(20)
    assert signal_to_noise(0) == np.inf


def test_outputs_of_integers_have_no_error(tmp_path: Path) -> None:
    model = integers()
    assert quantize(model, examples(2, 4, 8), tmp_path / "q.onnx").error is None
    for options in (MEASURE, QuantizationOptions(max_error=0.1), QuantizationOptions(keep_float=KeepFloat(worst=1))):
        with pytest.raises(ModelError, match="integers"):
            quantize(model, examples(2, 4, 8), tmp_path / "q.onnx", options)


def integers() -> ir.Model:
    text = "classes (float[4,8] x) => (int64[4,1] y) { h = Gemm<transB=1>(x, w) y = ArgMax<axis=1>(h) }"
    return network(text, {"w": normal(5, 8)})


@pytest.mark.parametrize("error", [0.0, -1.0, float("nan"), float("inf")])
def test_errors_that_are_none_are_refused(error: float) -> None:
    with pytest.raises(UsageError, match="largest error"):
        QuantizationOptions(max_error=error)
