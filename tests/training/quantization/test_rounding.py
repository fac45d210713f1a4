"""Fake quantisation rounds as ONNX Runtime does, and lets gradients pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnxruntime.quantization.quant_utils import compute_scale_zp, quantize_nparray

from nnstretch.training.quantization.rounding import (
    ActivationQuantizer,
    BiasQuantizer,
    WeightQuantizer,
    quantization_parameters,
)

ENDS = st.tuples(st.floats(-100, 0, width=32), st.floats(0, 100, width=32)).filter(
    lambda ends: ends[1] - ends[0] > 1e-3
)


def of_onnxruntime(low: float, high: float) -> tuple[int, float]:
    zero_point, scale = compute_scale_zp(np.float32(low), np.float32(high), np.uint8(0), np.uint8(255))
    return int(zero_point), float(scale)


def qdq(x: np.ndarray, scale: float, zero_point: int) -> Any:
    """A QuantizeLinear and a DequantizeLinear, computed by ONNX Runtime."""
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        "qdq",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
        [
            helper.make_tensor("s", TensorProto.FLOAT, [], [scale]),
            helper.make_tensor("z", TensorProto.UINT8, [], [zero_point]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


@settings(max_examples=40)
@given(ENDS, st.sampled_from(["learned", "ema"]), st.integers(0, 1000))
def test_activations_are_those_of_the_operators(ends: tuple[float, float], ranges: str, seed: int) -> None:
    """Values between two steps and beyond the ends are among them."""
    quantizer = ActivationQuantizer(*ends, ranges).eval()
    zero_point, scale = of_onnxruntime(*ends)
    assert quantizer.parameters_of_file == (scale, zero_point)
    halves = (np.arange(-20, 280, dtype=np.float32) - zero_point + np.float32(0.5)) * np.float32(scale)
    noise = np.random.default_rng(seed).normal(0, ends[1] - ends[0], 300).astype(np.float32)
    x = np.stack([halves, noise])
    np.testing.assert_array_equal(quantizer(torch.from_numpy(x)).detach().numpy(), qdq(x, scale, zero_point))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([0, 1, None]), st.floats(1e-6, 1e3))
def test_weights_are_those_of_the_quantiser(seed: int, axis: int | None, size: float) -> None:
    weight = (np.random.default_rng(seed).standard_normal((3, 4, 3, 3)) * size).astype(np.float32)
    weight[0] = 0
    channels = [weight] if axis is None else [np.take(weight, [index], axis) for index in range(weight.shape[axis])]
    rounded = []
    for part in channels:
        low, high = part.min(), part.max()
        zero, scale = compute_scale_zp(low, high, np.int8(-127), np.int8(127), symmetric=True)
        integers = quantize_nparray(TensorProto.INT8, part, scale, zero).astype(np.float32)
        rounded.append(integers * np.float32(scale))
    wanted = rounded[0] if axis is None else np.concatenate(rounded, axis)
    np.testing.assert_array_equal(WeightQuantizer(axis)(torch.from_numpy(weight)).numpy(), wanted)


def test_gradients_pass_inside_the_range_and_move_its_scale() -> None:
    """Equation 3 of LSQ: the rounding error inside, the clipped end outside; over the sum of their magnitudes."""
    quantizer = ActivationQuantizer(-1.0, 1.55, "learned")
    x = torch.tensor([[0.013, -3.0, 4.0, 0.3]], requires_grad=True)
    quantizer(x).backward(torch.tensor([[1.0, 10.0, 100.0, 0.0]]))
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert quantizer.growth.grad is not None
    parts = np.array([(1 - 1.3) * 1, (0 - 100) * 10, (255 - 100) * 100])
    wanted = torch.tensor(parts.sum() / np.abs(parts).sum(), dtype=torch.float32)
    torch.testing.assert_close(quantizer.growth.grad, wanted, rtol=1e-4, atol=0)
    weight = torch.randn(2, 3, requires_grad=True)
    WeightQuantizer(0)(weight).backward(torch.ones(2, 3))
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones(2, 3))


def test_averaged_ranges_follow_the_batches_in_training_alone() -> None:
    quantizer = ActivationQuantizer(0.0, 1.0, "ema").train()
    x = torch.linspace(-2.0, 3.0, 11).view(1, 11)
    for _ in range(600):
        quantizer(x)
    torch.testing.assert_close(
        (quantizer.low, quantizer.high), (torch.tensor(-2.0), torch.tensor(3.0)), rtol=0.01, atol=0
    )
    zero_point, scale = of_onnxruntime(float(quantizer.low), float(quantizer.high))
    assert quantizer.parameters_of_file == (scale, zero_point)
    before = quantizer.state_dict()["low"].clone()
    quantizer.eval()(10 * x)
    assert torch.equal(quantizer.low, before)


def test_biases_are_multiples_of_the_scales_of_input_and_weights() -> None:
    layer = torch.nn.Linear(4, 3)
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", WeightQuantizer(0))
    quantizer = ActivationQuantizer(0.0, 2.0, "learned")
    weights = layer.parametrizations.weight
    scales = weights[0].scales(weights.original).view(-1) * quantizer.step
    bias = torch.tensor([0.0, 0.37, -5.1], requires_grad=True)
    rounded = BiasQuantizer(layer, quantizer)(bias)
    torch.testing.assert_close(rounded / scales, (rounded / scales).round(), rtol=0, atol=0.1)
    assert (rounded - bias).abs().max() <= scales.max()
    rounded.sum().backward()
    assert bias.grad is not None
    assert torch.equal(bias.grad, torch.ones(3))


def test_a_range_without_width_rounds_to_whole_numbers() -> None:
    assert [float(value) for value in quantization_parameters(torch.zeros(()), torch.zeros(()))] == [1.0, 0.0]
    assert of_onnxruntime(0.0, 0.0) == (0, 1.0)
