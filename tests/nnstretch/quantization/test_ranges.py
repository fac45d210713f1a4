"""Ranges of activations: what each method chooses, against the values themselves and slower searches."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.errors import ModelError, UsageError
from nnstretch.frontends.onnx_file import load
from nnstretch.quantization import METHODS, QuantizationOptions, quantize
from nnstretch.quantization.activations import BINS, Activations, Histogram
from nnstretch.quantization.ranges import Range, _squared_error, entropy_range, mse_range, percentile_range
from tests.kits.graphs.float_networks import classifier, examples, network, normal

SHAPE = (1, 3, 16, 16)
RNG = np.random.default_rng(0)
COUNT = 40_000
NORMAL = RNG.standard_normal(COUNT) * 3
TENSORS = {
    "normal": RNG.standard_normal(COUNT),
    "heavy tails": RNG.standard_t(3, COUNT),
    "rectified": np.maximum(RNG.standard_normal(COUNT), 0),
    "rectified heavy tails": np.maximum(RNG.standard_t(3, COUNT), 0),
    "negative": -np.abs(RNG.laplace(size=COUNT)),
    "swish": NORMAL / (1 + np.exp(-NORMAL)),
    "saturated": np.clip(RNG.standard_normal(COUNT) * 4, 0, 6),
    "saturated on both sides": np.tanh(RNG.standard_normal(COUNT) * 5),
    "one outlier": np.append(RNG.standard_normal(COUNT), 60.0),
    "constant": np.full(COUNT, 3.0),
    "two values": RNG.choice([0.0, 5.0], COUNT),
    "large": RNG.standard_normal(COUNT) * 1e30,
    "small": RNG.standard_normal(COUNT) * 1e-30,
}
CHOOSE: dict[str, Callable[[Histogram], Range]] = {
    "percentile": percentile_range,
    "entropy": entropy_range,
    "mse": mse_range,
}


def histogram(values: np.ndarray) -> Histogram:
    found = Histogram(min(0.0, float(values.min())), max(0.0, float(values.max())))
    for part in np.array_split(values, 3):
        found.add(part)
    return found


def squared_error(values: np.ndarray, low: float, high: float) -> float:
    """Of the values themselves, rounded as QuantizeLinear does."""
    step = (high - low) / 255
    zero = np.round(-low / step)
    rounded = (np.clip(np.round(values / step) + zero, 0, 255) - zero) * step
    return float(np.square((values - rounded) / np.abs(values).max()).mean())


@pytest.mark.parametrize("name", TENSORS)
def test_every_method_gives_a_range_within_the_extremes(name: str) -> None:
    values = TENSORS[name].astype(np.float32)
    found = histogram(values)
    assert found.zeros + found.counts.sum() == len(values)
    for choose in CHOOSE.values():
        low, high = choose(found)
        assert found.low <= low <= 0 <= high <= found.high
        assert low < high


@pytest.mark.parametrize("name", TENSORS)
def test_least_squared_error(name: str) -> None:
    """As small as the best of a grid of ranges, for the values themselves."""
    values = TENSORS[name].astype(np.float32)
    found = histogram(values)
    shares = np.geomspace(1, 0.05, 25)
    grid = itertools.product(shares if found.low else [0.0], shares if found.high else [0.0])
    best = min(squared_error(values, found.low * low, found.high * high) for low, high in grid)
    assert squared_error(values, *mse_range(found)) <= best * 1.02 + 1e-12


@pytest.mark.parametrize("name", ["normal", "negative", "swish", "saturated"])
def test_the_squared_error_of_a_range_is_that_of_its_values(name: str) -> None:
    """Values in the middle of their bins: what rounding and the zero point make of them is known exactly."""
    found = histogram(TENSORS[name].astype(np.float32))
    values = np.repeat(found.centres, found.counts)
    for low, high in itertools.product((0.2, 0.5, 0.9), (0.3, 0.6, 1.0)):
        ends = found.low * low, found.high * high
        expected = squared_error(values, *ends) * np.abs(values).max() ** 2 * len(values)
        assert _squared_error(found, *ends) == pytest.approx(expected, rel=1e-6)


def divergence(values: np.ndarray, low: float, high: float, bins: np.ndarray) -> float:
    """Migacz's measure with loops over integers and bins, clipped values missing; `bins` are the edges of the histogram."""
    first, last = (int(np.argmin(np.abs(bins - end))) for end in (low, high))
    counts = np.histogram(values[values != 0], bins)[0]
    inside = counts[first:last].astype(float)
    p = inside.copy()
    p[0] += counts[:first].sum()
    p[-1] += counts[last:].sum()
    q = np.zeros_like(inside)
    edges = [integer * len(inside) for integer in range(257)]
    for start, end in itertools.pairwise(edges):
        group = [b for b in range(len(inside)) if start <= b * 256 < end and inside[b]]
        for b in group:
            q[b] = sum(inside[i] for i in group) / len(group)
    p, q = p / p.sum(), np.maximum(q / p.sum(), 1e-6)
    return float(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a))


@pytest.mark.parametrize("name", ["normal", "rectified heavy tails", "one outlier", "swish"])
def test_least_divergence(name: str) -> None:
    """No other range of a coarse grid has a smaller one; and one outlier among 40,000 values is cut off."""
    values = TENSORS[name].astype(np.float32)
    found = histogram(values)
    bins = np.linspace(found.low, found.high, BINS + 1)
    low, high = entropy_range(found)
    least = divergence(values, low, high, bins)
    for share in (1.0, 0.8, 0.6, 0.4, 0.3):
        assert least <= divergence(values, found.low * share, found.high * share, bins) + 1e-3
    assert high < found.high * (0.2 if name == "one outlier" else 1.01)


def test_the_entropy_of_onnxruntime_with_enough_bins() -> None:
    """Where it is fair: a symmetric tensor without zeros. Both ends then are about the same."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    values = np.random.default_rng(0).standard_t(3, 200_000).astype(np.float32)
    collector = HistogramCollector("entropy", False, 1025, 255, 99.99, "same")
    with contextlib.redirect_stdout(io.StringIO()):
        collector.collect({"x": [values]})
        low, high, *_ = collector.compute_collection_result()["x"]
    ours = entropy_range(histogram(values))
    assert ours == pytest.approx((low, high), rel=0.3)


def test_entropy_does_not_clip_most_values() -> None:
    """Of gates that are almost all open, a range of the few closed ones would have a distribution of one bin only."""
    values = np.append(np.linspace(0.9, 1, 4000), np.linspace(0, 0.02, 10)).astype(np.float32)
    assert entropy_range(histogram(values))[1] > 0.95


def test_percentiles() -> None:
    values = np.append(np.linspace(-1, 1, 200_000), [50.0, -40.0]).astype(np.float32)
    assert percentile_range(histogram(values)) == pytest.approx((-1, 1), abs=0.05)
    assert percentile_range(histogram(values[:-2])) == pytest.approx((-1, 1), abs=0.002)


@given(st.integers(0, 10**6), st.floats(-3, 3), st.floats(0.1, 10))
def test_least_squared_error_is_never_above_that_of_all_values(seed: int, shift: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_t(4, 3000) * scale + shift).astype(np.float32)
    found = histogram(values)
    assert squared_error(values, *mse_range(found)) <= squared_error(values, found.low, found.high) * 1.05


def test_extremes_are_those_of_all_runs(tmp_path: Path) -> None:
    """Also of the input, and 0 is always among them."""
    model, feeds = classifier(), examples(4, *SHAPE)
    found = Activations(model, feeds, tmp_path).extremes()
    values = np.stack([feed["x"] for feed in feeds])
    assert found["x"] == (values.min(), values.max())
    assert found["r1"][0] == 0 < found["r1"][1] == found["c1"][1]
    assert {"x", "c1", "r1", "c2", "r2", "c3", "s3", "p", "f", "y"} == found.keys()
    histograms = Activations(model, feeds, tmp_path).histograms()
    assert {name: (h.low, h.high) for name, h in histograms.items()} == found
    assert all(h.counts.sum() + h.zeros == sum(f.size for f in v) for h, v in [(histograms["x"], [values])])


@pytest.mark.parametrize("method", METHODS)
def test_ranges_reach_the_file(method: str, tmp_path: Path) -> None:
    """The scale in the file is that of the range."""
    feeds = [{"x": np.random.default_rng(seed).standard_t(2, SHAPE).astype(np.float32)} for seed in range(8)]
    quantize(classifier(), feeds, tmp_path / "q.onnx", QuantizationOptions(method=method))  # type: ignore[arg-type]
    constants = {name: value.const_value for name, value in load(tmp_path / "q.onnx").graph.initializers.items()}
    scale = constants["x_scale"]
    assert scale is not None
    values = np.stack([feed["x"] for feed in feeds])
    chosen = CHOOSE[method](histogram(values)) if method != "minmax" else (values.min(), values.max())
    assert float(scale.numpy()) == pytest.approx((chosen[1] - chosen[0]) / 255, rel=1e-6)


# -- awkward data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["zeros", "constant", "tiny", "saturated", "weights of 0", "one constant channel"])
def test_awkward_data_is_quantised_without_nan(kind: str, method: str, tmp_path: Path) -> None:
    x = normal(*SHAPE)
    x = {
        "zeros": np.zeros_like(x),
        "constant": np.full_like(x, 2.5),
        "tiny": x * np.float32(1e-38),
        "saturated": x * np.float32(1e4),
        "one constant channel": x * np.array([1, 0, 1], np.float32)[:, None, None],
    }.get(kind, x)
    zeros = {"w1": np.zeros((8, 3, 3, 3), np.float32), "w4": np.zeros((5, 8), np.float32)}
    model = classifier(**(zeros if kind == "weights of 0" else {}))
    options = QuantizationOptions(method=method, sensitivity=method == "mse")  # type: ignore[arg-type]
    made = quantize(model, [{"x": x}], tmp_path / "q.onnx", options)
    assert made.error is not None and 0 <= made.error < 0.3
    assert all(0 <= layer.error < 0.3 for layer in made.sensitivity)
    for value in load(tmp_path / "q.onnx").graph.initializers.values():
        assert value.const_value is not None
        array = value.const_value.numpy()
        assert np.isfinite(array).all()
        assert not str(value.name).endswith("_scale") or (array > 0).all()


def test_saturating_activations(tmp_path: Path) -> None:
    """Most values at both ends of a clip: no method cuts off more than rounding loses."""
    text = """clipped (float[1,3,16,16] x) => (float[1,4,16,16] y) {
        a = Conv(x, w) b = Clip(a, low, high) y = Conv(b, v)
    }"""
    weights = {"w": normal(4, 3, 1, 1) * 50, "v": normal(4, 4, 1, 1), "low": np.float32(0), "high": np.float32(6)}
    model = network(text, {name: np.asarray(value) for name, value in weights.items()})
    for method in METHODS:
        options = QuantizationOptions(method=method)  # type: ignore[arg-type]
        made = quantize(model, examples(4, *SHAPE), tmp_path / "q.onnx", options)
        assert made.error is not None and made.error < 0.03, method


def test_infinite_activations_are_refused(tmp_path: Path) -> None:
    text = "large (float[1,3,16,16] x) => (float[1,3,16,16] y) { a = Exp(x) y = Conv(a, w) }"
    model = network(text, {"w": normal(3, 3, 1, 1)})
    with pytest.raises(ModelError, match=r"infinite numbers.*'a'"):
        quantize(model, [{"x": normal(*SHAPE) * 100}], tmp_path / "q.onnx")
    assert not (tmp_path / "q.onnx").exists()


def test_examples_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    wrong: dict[str, list[dict[str, np.ndarray]]] = {
        r"nothing for input 'x'.*float32\[1,3,16,16\]": [{}],
        r"float32\[1,3,8,8\] for input 'x'": [{"x": normal(1, 3, 8, 8)}],
        r"float64\[1,3,16,16\] for input 'x'": [{"x": normal(*SHAPE).astype(np.float64)}],
        r"'z'.*no input": [{"x": normal(*SHAPE), "z": normal(1)}],
        "NaN or infinite": [{"x": normal(*SHAPE) * np.float32(np.inf)}],
        "nothing to calibrate with": [],
    }
    for message, feeds in wrong.items():
        with pytest.raises(UsageError, match=message):
            quantize(classifier(), feeds, tmp_path / "q.onnx")
    with pytest.raises(UsageError, match=r"'guess'.*minmax"):
        QuantizationOptions(method="guess")  # type: ignore[arg-type]
    quantize(classifier(), examples(1, *SHAPE), tmp_path / "q.onnx")
    with pytest.raises(ModelError, match="quantised already"):
        quantize(load(tmp_path / "q.onnx"), examples(1, *SHAPE), tmp_path / "r.onnx")
