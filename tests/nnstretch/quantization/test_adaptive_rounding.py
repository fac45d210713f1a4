"""Adaptive rounding of whole networks: smaller errors, the same scales, and files that all else reads as before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from nnstretch.errors import UsageError
from nnstretch.quantization import KeepFloat, QuantizationOptions, Quantized, pipeline, quantize
from nnstretch.quantization.adaptive_rounding import EXAMPLES, Rounding, round_adaptively
from tests.kits.graphs.float_networks import CLASSIFIER_WEIGHTS, classifier, examples, network, normal

ADAPTIVE = QuantizationOptions(rounding="adaptive")
DEPTHWISE = """depthwise (float[2,8,12,12] x) => (float[2,8,12,12] y) {
    c1 = Conv<pads=[1,1,1,1],group=8>(x, w1, b)  r1 = Relu(c1)  c2 = Conv<pads=[2,2,2,2],group=8>(r1, w2, b)
    r2 = Clip(c2, low, high)  y = Conv<pads=[1,1,1,1],group=8>(r2, w3)
}"""
OTHERS = """others (float[2,6,8] x) => (float[2,6,4] y, float[6,4] z, float[16,3] v) {
    m = MatMul(x, w1)  r = Relu(m)  y = MatMul(r, w2)
    c = ReduceMean<keepdims=0>(r, first)  z = MatMul(c, w2)  v = Gemm<transA=1>(c, w3)
}"""


def depthwise(seed: int) -> dict[str, np.ndarray]:
    """One large weight per channel leaves few steps to the others."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.standard_normal((8, 1, k, k)) for name, k in (("w1", 3), ("w2", 5), ("w3", 3))}
    for array in weights.values():
        array[:, :, 0, 0] = 12
    edges = {"low": np.float32(0), "high": np.float32(60)}
    found = {name: (array / 12).astype(np.float32) for name, array in weights.items()}
    return {**found, "b": rng.standard_normal(8).astype(np.float32), **{k: np.asarray(v) for k, v in edges.items()}}


def positive(count: int, *shape: int) -> list[dict[str, np.ndarray]]:
    """Inputs with a mean, so that what roundings add to it is the same for all examples."""
    return [{"x": np.abs(feed["x"])} for feed in examples(count, *shape)]


def constants(file: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(file).graph.initializer}


def both(
    model_text: str, weights: dict[str, np.ndarray], feeds: list[dict[str, np.ndarray]], folder: Path
) -> list[Quantized]:
    """A network with the nearest integers and with others, in nearest.onnx and adaptive.onnx."""
    return [
        quantize(network(model_text, weights), feeds, folder / f"{options.rounding}.onnx", options)
        for options in (QuantizationOptions(), ADAPTIVE)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_error_of_depthwise_networks_falls(seed: int, tmp_path: Path) -> None:
    """Also on other images than those of the calibration; only integers of weights differ, each by one step."""
    feeds = [{"x": np.abs(normal(2, 8, 12, 12, seed=100 * seed + i))} for i in range(12)]
    nearest, adaptive = both(DEPTHWISE, depthwise(seed), feeds[:8], tmp_path)
    assert nearest.error is not None and adaptive.error is not None
    assert adaptive.error < nearest.error
    assert [layer.name for layer in adaptive.rounded] == ["c1", "c2", "y"]
    assert all(layer.error < layer.nearest and layer.changed for layer in adaptive.rounded)
    before, after = constants(tmp_path / "nearest.onnx"), constants(tmp_path / "adaptive.onnx")
    assert before.keys() == after.keys()
    changed = 0
    for name, array in before.items():
        steps = after[name].astype(np.float64) - array
        assert not steps.any() or array.dtype == np.int8
        assert np.abs(steps).max(initial=0) <= 1
        changed += int(np.count_nonzero(steps))
    assert changed == sum(layer.changed for layer in adaptive.rounded)


def test_dense_layers_and_weights_that_have_to_stay(tmp_path: Path) -> None:
    """Weights that two layers read, and those of a Gemm with a transposed input, keep the nearest integers."""
    weights = {"w1": normal(8, 16), "w2": normal(16, 4, seed=2), "w3": normal(6, 3, seed=3)}
    feeds = positive(6, 2, 6, 8)
    _, adaptive = both(OTHERS, {**weights, "first": np.array([0], np.int64)}, feeds, tmp_path)
    assert [(layer.name, layer.operator) for layer in adaptive.rounded] == [("m", "MatMul")]
    assert adaptive.rounded[0].error < adaptive.rounded[0].nearest


@pytest.mark.parametrize("kind", ["weights of 0", "one image", "zeros", "constant"])
def test_awkward_data(kind: str, tmp_path: Path) -> None:
    """No layer's error grows, and no integer leaves the range of the quantiser."""
    weights = depthwise(5)
    x = np.abs(normal(2, 8, 12, 12))
    feeds = [{"x": {"zeros": np.zeros_like(x), "constant": np.full_like(x, 3)}.get(kind, x)}]
    if kind == "weights of 0":
        weights |= {name: np.zeros_like(weights[name]) for name in ("w1", "w3")}
    _, adaptive = both(DEPTHWISE, weights, feeds, tmp_path)
    assert adaptive.error is not None and adaptive.error < 0.1
    assert all(0 <= layer.error <= layer.nearest for layer in adaptive.rounded)
    for array in constants(tmp_path / "adaptive.onnx").values():
        assert np.isfinite(array.astype(np.float64)).all()
        assert array.dtype != np.int8 or array.min(initial=0) >= -127


def test_integers_that_help_the_examples_alone_are_not_kept(tmp_path: Path) -> None:
    """Four images of noise and 192 weights per output: what they gain, other images lose."""
    text = "dense (float[1,192] x) => (float[1,64] y) { y = Gemm(x, w) }"
    feeds = [{"x": normal(1, 192, seed=seed)} for seed in range(4)]
    _, adaptive = both(text, {"w": normal(192, 64)}, feeds, tmp_path)
    assert [(layer.changed, layer.error) for layer in adaptive.rounded] == [(0, adaptive.rounded[0].nearest)]


def test_with_layers_in_float32_and_corrected_biases(tmp_path: Path) -> None:
    options = QuantizationOptions(rounding="adaptive", bias_correction=True, keep_float=KeepFloat.parse(["c2"]))
    made = quantize(classifier(), positive(8, 1, 3, 16, 16), tmp_path / "q.onnx", options)
    assert [layer.name for layer in made.rounded] == ["c1", "c3", "y"]
    assert made.corrected == 3
    changed = sum(layer.changed > 0 for layer in made.rounded)
    assert f"{changed} of 3 layers rounded adaptively" in str(made)
    quantize(classifier(), positive(8, 1, 3, 16, 16), tmp_path / "p.onnx", ADAPTIVE)
    after, before = constants(tmp_path / "q.onnx"), constants(tmp_path / "p.onnx")
    np.testing.assert_array_equal(after["w1_quantized"], before["w1_quantized"])
    assert (after["w1_quantized"] != np.rint(CLASSIFIER_WEIGHTS["w1"] / after["w1_scale"].reshape(-1, 1, 1, 1))).any()


@pytest.mark.parametrize("more", [{"sensitivity": True}, {"max_error": 0.02}])
def test_each_set_of_layers_is_rounded_once(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the list of layers whose sensitivity is measured nor the file that a search has tried needs it again."""
    calls: list[tuple[str, ...]] = []

    def counted(network: ir.Model, int8: Path, *arguments: Any) -> Rounding:
        rounded = round_adaptively(network, int8, *arguments)
        calls.append(tuple(layer.name for layer in rounded.layers))
        return rounded

    monkeypatch.setattr(pipeline, "round_adaptively", counted)
    feeds, options = positive(4, 1, 3, 16, 16), QuantizationOptions(rounding="adaptive", bias_correction=True)
    made = quantize(classifier(), feeds, tmp_path / "q.onnx", replace(options, **more))
    rounded = [layers for layers in calls if layers]  # several sets leave none to round
    assert len(set(rounded)) == len(rounded) and (len(calls) > 1) == ("max_error" in more)
    assert tuple(layer.name for layer in made.rounded) in calls
    again = quantize(classifier(), feeds, tmp_path / "p.onnx", replace(options, keep_float=KeepFloat.parse(made.kept)))
    assert again.rounded == made.rounded
    assert (tmp_path / "p.onnx").read_bytes() == (tmp_path / "q.onnx").read_bytes()


def test_examples_and_progress(tmp_path: Path) -> None:
    """Examples beyond the first do not count, and every layer is reported."""
    feeds, reported = positive(EXAMPLES + 3, 1, 3, 16, 16), list[tuple[int, int, str]]()

    def integers(count: int) -> np.ndarray:
        more = [*feeds[:count], {"x": 3 * feeds[0]["x"]}, {"x": -3 * feeds[0]["x"]}]
        quantize(classifier(), more, tmp_path / "q.onnx", ADAPTIVE, lambda *step: reported.append(step))
        return constants(tmp_path / "q.onnx")["w1_quantized"]

    np.testing.assert_array_equal(integers(EXAMPLES), integers(EXAMPLES + 1))
    assert (integers(EXAMPLES) != integers(EXAMPLES // 2)).any()
    assert [step for step in reported if step[2] == "rounding weights"][:4] == [
        (i, 4, "rounding weights") for i in range(4)
    ]


def test_another_rounding_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no rounding 'up'; choose one of nearest, adaptive"):
        QuantizationOptions(rounding="up")  # type: ignore[arg-type]
