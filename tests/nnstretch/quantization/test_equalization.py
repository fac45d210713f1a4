"""Cross-layer equalisation: the network computes the same, and the ranges of pairs of layers are equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.quantization import QuantizationOptions, quantize
from nnstretch.quantization.equalization import equalize
from tests.kits.graphs.float_networks import classifier, examples, network, normal


def weights_of(model: ir.Model) -> dict[str, np.ndarray]:
    """Weights by the name of their node."""
    found = {}
    for node in model.graph:
        value = node.inputs[1] if len(node.inputs) > 1 else None
        if value is not None and value.const_value is not None:
            found[str(node.name)] = value.const_value.numpy()
    return found


def check_same(model: ir.Model, x: np.ndarray) -> int:
    """Equalises a network and compares its outputs before and after; returns the number of pairs."""
    wanted = run_proto(ir.to_proto(model), {"x": x})
    pairs = equalize(model)
    for y, reference in zip(run_proto(ir.to_proto(model), {"x": x}), wanted, strict=True):
        assert relative_error(y, reference) < 1e-4
    return pairs


_BETWEEN = (
    "Relu",
    "LeakyRelu<alpha=0.1>",
    "Identity",
    "MaxPool<kernel_shape=[2,2]>",
    "AveragePool<kernel_shape=[2,2]>",
)
_LAYERS = ("Conv", "Conv<group=2>", "Conv<group=4>", "ConvTranspose", "ConvTranspose<group=2>", "Conv<pads=[1,1,1,1]>")
_END = ("f = GlobalAveragePool({0})  g = Flatten(f)", "g = Flatten({0})", "g = ReduceMean<keepdims=0>({0}, axes)")


@given(st.data())
def test_random_chains_compute_the_same(data: st.DataObject) -> None:
    """Layers of all kinds whose channels differ by factors of up to 10^4, with and without biases, then two dense layers."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    nodes, source = [], "x"
    weights: dict[str, np.ndarray] = {"axes": np.array([2, 3], np.int64)}
    count = data.draw(st.integers(1, 4))
    for index in range(count):
        layer, between = data.draw(st.sampled_from(_LAYERS)), data.draw(st.sampled_from(_BETWEEN))
        groups = int(layer.partition("group=")[2][:1] or 1)
        name, _, attributes = layer.partition("<")
        spread = 10.0 ** rng.uniform(-2, 2, (4, 1, 1, 1))
        weights[f"w{index}"] = (rng.standard_normal((4, 4 // groups, 3, 3)) * spread / 6).astype(np.float32)
        bias = f", b{index}" if data.draw(st.booleans()) else ""
        if bias:
            weights[f"b{index}"] = rng.standard_normal(4).astype(np.float32)
        tail = f"<{attributes}" if attributes else ""
        between_name, _, between_attributes = between.partition("<")
        between_tail = f"<{between_attributes}" if between_attributes else ""
        nodes.append(f"c{index} = {name}{tail}({source}, w{index}{bias})")
        nodes.append(f"a{index} = {between_name}{between_tail}(c{index})")
        source = f"a{index}"
    end = data.draw(st.sampled_from(_END)).format(source)
    text = f"chain (float[2,4,24,24] x) => (float[N,M] g) {{ {' '.join(nodes)} {end} }}"
    width = int(run_proto(ir.to_proto(network(text, weights)), {"x": normal(2, 4, 24, 24)})[0].shape[1])
    weights |= {"d1": normal(6, width) / width**0.5, "d2": normal(6, 5, seed=2), "e1": normal(6, seed=3)}
    dense = "h = Gemm<transB=1>(g, d1, e1) r = Relu(h) y = Gemm(r, d2)"
    text = f"chain (float[2,4,24,24] x) => (float[2,5] y) {{ {' '.join(nodes)} {end} {dense} }}"
    assert check_same(network(text, weights), normal(2, 4, 24, 24)) == count + 1


def test_ranges_are_equal() -> None:
    """Of output channels of a layer and input channels of the next, and they are the geometric mean of what they were."""
    text = "pair (float[1,3,8,8] x) => (float[1,5,8,8] y) { a = Conv(x, v) b = Relu(a) y = Conv(b, w) }"
    v, w = normal(4, 3, 1, 1) * np.array([1, 10, 100, 0.1], np.float32)[:, None, None, None], normal(5, 4, 1, 1)
    model = network(text, {"v": v, "w": w})
    assert check_same(model, normal(1, 3, 8, 8)) == 1
    found = weights_of(model)
    ranges = np.abs(found["a"]).max(axis=(1, 2, 3)), np.abs(found["y"]).max(axis=(0, 2, 3))
    wanted = np.sqrt(np.abs(v).max(axis=(1, 2, 3)) * np.abs(w).max(axis=(0, 2, 3)))
    np.testing.assert_allclose(ranges[0], wanted, rtol=2e-3)
    np.testing.assert_allclose(ranges[1], wanted, rtol=2e-3)


def test_a_bias_counts_as_much_as_the_weights_of_its_channel() -> None:
    """Without it, a channel of nearly constant value would widen the range of the whole tensor."""
    text = "pair (float[1,3,8,8] x) => (float[1,5,8,8] y) { a = Conv(x, v, b) c = Relu(a) y = Conv(c, w) }"
    v, w, b = normal(4, 3, 1, 1), normal(5, 4, 1, 1), np.array([0, 50, -200, 0.01], np.float32)
    model = network(text, {"v": v, "w": w, "b": b})
    assert check_same(model, normal(1, 3, 8, 8)) == 1
    wanted = np.sqrt(np.maximum(np.abs(v).max(axis=(1, 2, 3)), np.abs(b)) * np.abs(w).max(axis=(0, 2, 3)))
    np.testing.assert_allclose(np.abs(weights_of(model)["y"]).max(axis=(0, 2, 3)), wanted, rtol=2e-3)


@pytest.mark.parametrize(
    "middle",
    [
        "b = Sigmoid(a)",
        "b = Clip(a, zero, six)",
        "b = Add(a, x)",
        "b = Softmax<axis=1>(a)",
        "r = Relu(a) z = Relu(a) b = Add(r, z)",
        "r = Flatten(a) q = Reshape(r, shape) b = Relu(q)",
    ],
)
def test_what_does_not_keep_scales_is_left_alone(middle: str) -> None:
    text = f"other (float[1,4,8,8] x) => (float[1,4,8,8] y) {{ a = Conv(x, w) {middle} y = Conv(b, w) }}"
    constants = {"zero": np.float32(0), "six": np.float32(6), "shape": np.array([1, 4, 8, 8])}
    model = network(text, {"w": normal(4, 4, 1, 1)} | {name: np.asarray(v) for name, v in constants.items()})
    assert check_same(model, normal(1, 4, 8, 8)) == 0


def test_an_output_between_two_layers_stays() -> None:
    text = "out (float[1,4,8,8] x) => (float[1,4,8,8] a, float[1,4,8,8] y) { a = Conv(x, w) y = Conv(a, w) }"
    assert check_same(network(text, {"w": normal(4, 4, 1, 1)}), normal(1, 4, 8, 8)) == 0


def test_shared_weights_become_different_ones() -> None:
    text = "shared (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv(x, w) b = Relu(a) y = Conv(b, w) }"
    w = normal(4, 4, 1, 1) * np.array([1, 10, 100, 0.1], np.float32)[:, None, None, None]
    assert check_same(network(text, {"w": w}), normal(1, 4, 8, 8)) == 1


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e30])
def test_channels_of_extreme_weights(value: float) -> None:
    """No division by 0, and nothing becomes infinite."""
    text = "extreme (float[1,3,8,8] x) => (float[1,5,8,8] y) { a = Conv(x, v, b) c = Relu(a) y = Conv(c, w) }"
    v, w = normal(4, 3, 1, 1), normal(5, 4, 1, 1)
    v[1], w[:, 2], v[3], w[:, 3] = value, value, 0, 0
    model = network(text, {"v": v, "w": w, "b": np.array([1, 0, 0, 0], np.float32)})
    if value < 1e20:
        check_same(model, normal(1, 3, 8, 8))
    else:
        equalize(model)
    assert all(np.isfinite(array).all() for array in weights_of(model).values())


def test_channels_that_differ_lose_less(tmp_path: Path) -> None:
    """A depthwise layer whose channels differ by 1000, which the next layer takes back: int8 alone loses most of it."""
    scales = 10 ** np.linspace(-1.5, 1.5, 8, dtype=np.float32)
    model = classifier(
        w2=normal(8, 1, 3, 3) * scales[:, None, None, None],
        b2=normal(8) * scales,
        w3=normal(8, 8, 1, 1) / scales[:, None, None],
    )
    feeds = examples(8, 1, 3, 16, 16)
    plain = quantize(model, feeds, tmp_path / "q.onnx")
    made = quantize(model, feeds, tmp_path / "q.onnx", QuantizationOptions(equalize=True))
    assert (plain.equalized, made.equalized) == (0, 1)
    assert plain.error is not None and made.error is not None
    assert made.error < plain.error / 3
