"""Bias correction: rounded weights keep the mean of every layer's outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from nnstretch.frontends.onnx_file import load, save
from nnstretch.graph.reference import run_proto
from nnstretch.quantization import KeepFloat, QuantizationOptions, quantize
from nnstretch.quantization.bias_correction import correct_biases
from nnstretch.quantization.runs import open_run
from tests.kits.graphs.float_networks import examples, network, normal

CORRECT = QuantizationOptions(bias_correction=True)


def rounded(weights: np.ndarray, axis: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers and their scales, one per index of an axis."""
    others = tuple(i for i in range(weights.ndim) if i != axis)
    scale = np.abs(weights).max(axis=others, keepdims=True) / levels
    return np.round(weights / scale).astype(np.int8), scale.astype(np.float32).reshape(-1)


LAYERS = {
    "Conv": ("Conv<pads=[1,1,1,1],strides=[2,2]>(x, w{b})", (2, 4, 8, 8), (6, 4, 3, 3), 0, 6),
    "depthwise": ("Conv<group=4>(x, w{b})", (2, 4, 8, 8), (4, 1, 3, 3), 0, 4),
    "ConvTranspose": ("ConvTranspose<strides=[2,2]>(x, w{b})", (2, 4, 8, 8), (4, 6, 2, 2), 1, 6),
    "Gemm": ("Gemm<transB=1,alpha=0.5,beta=2.0>(x, w{b})", (16, 8), (6, 8), 0, 6),
    "transposed Gemm": ("Gemm(x, w{b})", (16, 8), (8, 6), 1, 6),
    "MatMul": ("MatMul(x, w)", (2, 16, 8), (8, 6), 1, 6),
}


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_mean_of_one_layer_is_exact(kind: str, with_bias: bool, tmp_path: Path) -> None:
    """Weights of 3 bits, whose rounding moves the mean of the outputs far, and inputs with a mean."""
    layer, images, shape, axis, channels = LAYERS[kind]
    weights = normal(*shape)
    integers, scale = rounded(weights, axis, 3)
    feeds = [{"x": feed["x"] + 1} for feed in examples(3, *images)]
    bias = {"b": normal(channels, seed=5)} if with_bias or kind == "MatMul" else {}
    call = layer.format(b=", b" if bias else "")
    body = f"l = {call} y = Add(l, b)" if kind == "MatMul" else f"l = {call} y = Identity(l)"
    dims = ",".join(map(str, images))
    outputs = ",".join("N" * len(images))
    text = f"exact (float[{dims}] x) => (float[{outputs}] y) {{ {body} }}"
    model = network(text, {"w": weights} | bias)
    int8 = network(
        text.replace("{ l", f"{{ w = DequantizeLinear<axis={axis}>(q, s) l"), {"q": integers, "s": scale} | bias
    )
    save(int8, tmp_path / "int8.onnx")
    wanted = np.stack([run_proto(ir.to_proto(model), feed)[0] for feed in feeds])
    before = np.stack([run_proto(ir.to_proto(int8), feed)[0] for feed in feeds])
    assert correct_biases(model, tmp_path / "int8.onnx", feeds, tmp_path) == 1
    node = next(node for node in model.graph if node.name == "l")
    node_weights = node.inputs[1]
    assert node_weights is not None
    exact = (integers * scale.reshape([-1 if i == axis else 1 for i in range(weights.ndim)])).astype(np.float32)
    node_weights.const_value = ir.tensor(exact, name="w")
    after = np.stack([run_proto(ir.to_proto(model), feed)[0] for feed in feeds])
    places = tuple(i for i in range(wanted.ndim) if i != (wanted.ndim - 1 if kind == "MatMul" else 2))
    assert np.abs((before - wanted).mean(axis=places)).max() > 0.01
    np.testing.assert_allclose((after - wanted).mean(axis=places), 0, atol=1e-5)


DEPTHWISE = """depthwise (float[4,8,12,12] x) => (float[4,8,12,12] y) {
    c1 = Conv<pads=[1,1,1,1],group=8>(x, w1, b)  r1 = Relu(c1)  c2 = Conv<pads=[1,1,1,1],group=8>(r1, w2, b)  r2 = Relu(c2)
    y = Conv<pads=[1,1,1,1],group=8>(r2, w3, b)
}"""


@pytest.mark.parametrize("seed", range(5))
def test_depthwise_networks_keep_their_mean(seed: int, tmp_path: Path) -> None:
    """Weights that all lie almost half a step above an integer: the mean error of the outputs falls by more than a third."""
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {"b": rng.standard_normal(8).astype(np.float32)}
    for name in ("w1", "w2", "w3"):
        integers = rng.integers(-20, 60, (8, 1, 3, 3)) + 0.45
        integers[:, :, 0, 0] = 127
        weights[name] = (integers / 127 / 3).astype(np.float32)
    feeds = [{"x": np.abs(normal(4, 8, 12, 12, seed=seed + i))} for i in range(3)]
    model = network(DEPTHWISE, weights)
    file = tmp_path / "q.onnx"

    def mean_error(options: QuantizationOptions) -> float:
        made = quantize(model, feeds, file, options)
        assert made.corrected == (3 if options.bias_correction else 0)
        run = open_run(file)
        errors = [run(feed)[0] - run_proto(ir.to_proto(model), feed)[0] for feed in feeds]
        return float(np.abs(np.stack(errors).mean(axis=(0, 1, 3, 4))).mean())

    assert mean_error(CORRECT) < mean_error(QuantizationOptions()) * 2 / 3


def test_layers_in_float32_keep_their_biases(tmp_path: Path) -> None:
    weights = {name: normal(8, 1, 3, 3) for name in ("w1", "w2", "w3")} | {"b": normal(8)}
    options = QuantizationOptions(bias_correction=True, keep_float=KeepFloat.parse(["c2"]))
    made = quantize(network(DEPTHWISE, weights), examples(2, 4, 8, 12, 12), tmp_path / "q.onnx", options)
    assert made.corrected == 2
    (bias,) = (node.inputs[2] for node in load(tmp_path / "q.onnx").graph if node.name == "c2")
    assert bias is not None and bias.const_value is not None
    np.testing.assert_array_equal(bias.const_value.numpy(), normal(8))


@pytest.mark.parametrize("kind", ["zeros", "constant", "weights of 0"])
def test_awkward_data_has_finite_biases(kind: str, tmp_path: Path) -> None:
    x = {"zeros": np.zeros((4, 8, 12, 12), np.float32), "constant": np.full((4, 8, 12, 12), 3, np.float32)}
    w = np.zeros((8, 1, 3, 3), np.float32) if kind == "weights of 0" else normal(8, 1, 3, 3)
    model = network(DEPTHWISE, {"w1": w, "w2": w, "w3": w, "b": normal(8)})
    options = QuantizationOptions(bias_correction=True, equalize=True)
    made = quantize(model, [{"x": x.get(kind, normal(4, 8, 12, 12))}], tmp_path / "q.onnx", options)
    assert made.error is not None and made.error < 0.1
    for value in load(tmp_path / "q.onnx").graph.initializers.values():
        assert value.const_value is not None and np.isfinite(value.const_value.numpy()).all()
