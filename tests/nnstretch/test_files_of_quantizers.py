"""Files of other quantisers: wherever these put Q and DQ nodes, all quantised layers are int8 layers of the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import usable_cores
from nnstretch.frontends.onnx_file import load, save
from nnstretch.graph.layers import layers
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from tests.kits.graphs.float_networks import classifier, examples, normal

SHAPE = (1, 3, 16, 16)


class Examples(ort.CalibrationDataReader):  # type: ignore[misc]
    """Inputs for ONNX Runtime's calibration."""

    def __init__(self) -> None:
        self._left = iter(examples(4, *SHAPE))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def onnxruntime_file(folder: Path, **options: Any) -> Path:
    """A file of `quantize_static`."""
    save(classifier(), folder / "float.onnx")
    ort.quantize_static(folder / "float.onnx", folder / "q.onnx", Examples(), **options)
    return folder / "q.onnx"


class Rounded(nn.Module):
    """A layer with rounded weights, one scale per channel, whose outputs are rounded as well.

    Args:
        layer: convolution or dense layer.
        is_positive: a ReLU comes before the rounding.
    """

    scale: torch.Tensor
    zero: torch.Tensor

    def __init__(self, layer: nn.Conv2d | nn.Linear, *, is_positive: bool = True) -> None:
        super().__init__()
        self.layer, self.is_positive = layer, is_positive
        largest = layer.weight.detach().abs().flatten(1).amax(1)
        self.register_buffer("scale", largest / 127)
        self.register_buffer("zero", torch.zeros(len(largest), dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.fake_quantize_per_channel_affine(self.layer.weight, self.scale, self.zero, 0, -128, 127)
        layer = self.layer
        if isinstance(layer, nn.Linear):
            y = nn.functional.linear(x, weight, layer.bias)
        else:
            y = nn.functional.conv2d(x, weight, layer.bias, layer.stride, layer.padding, groups=layer.groups)
        return rounded(torch.relu(y), 0.01, -128) if self.is_positive else rounded(y, 0.02, 5)


def rounded(x: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x, scale, zero, -128, 127)


class TorchClassifier(nn.Module):
    """Rounds as torch's quantisers do: inputs, outputs behind activations, sums, means."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Rounded(nn.Conv2d(3, 8, 3, 2, 1))
        self.depthwise = Rounded(nn.Conv2d(8, 8, 3, 1, 1, groups=8))
        self.last = Rounded(nn.Conv2d(8, 8, 1), is_positive=False)
        self.dense = Rounded(nn.Linear(8, 5), is_positive=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(rounded(x, 0.03, 3))
        x = rounded(torch.relu(self.last(self.depthwise(x)) + x), 0.02, -128)
        x = rounded(nn.functional.adaptive_avg_pool2d(x, 1), 0.01, -128)
        result: torch.Tensor = self.dense(torch.flatten(x, 1))
        return result


def torch_file(folder: Path) -> Path:
    """A file of torch's exporter: weights stay float, between a Q and a DQ."""
    torch.manual_seed(0)
    network = TorchClassifier().eval()
    file = folder / "q.onnx"
    torch.onnx.export(network, (torch.zeros(SHAPE),), file, dynamo=False, opset_version=17, input_names=["x"])
    return file


class _NncfFile:
    """A residual block as NNCF writes it, which rounds inputs of layers alone: not what only an activation reads.

    Args:
        rounds_weights: weights are float, with a Q and a DQ, as from quantisation-aware training; else they are integers.
        rounds_both: both operands of the sum are rounded, else the one that the block's first layer reads.
    """

    def __init__(self, *, rounds_weights: bool, rounds_both: bool) -> None:
        self._rounds_weights = rounds_weights
        self._values: dict[str, np.ndarray] = {}
        self._nodes: list[onnx.NodeProto] = []
        entry = self._round("x", 0.02, 120)
        first = self._round(self._add("Relu", [self._convolution(entry, 3, 1)]), 0.03, 0)
        second = self._convolution(first, 3, 2)
        left = self._round(second, 0.03, 100) if rounds_both else second
        summed = self._add("Relu", [self._add("Add", [left, entry])])
        self.output = self._convolution(self._round(summed, 0.03, 0), 1, 3)

    def write(self, file: Path) -> Path:
        shape = (1, 16, 12, 12)
        graph = helper.make_graph(
            self._nodes,
            "nncf",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(self.output, TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(array, name) for name, array in self._values.items()],
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
        return file

    def _add(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def _round(self, source: str, scale: float, zero: int) -> str:
        parameters = [f"{source}_scale", f"{source}_zero"]
        self._values |= dict(zip(parameters, (np.asarray(scale, np.float32), np.asarray(zero, np.uint8)), strict=True))
        return self._add("DequantizeLinear", [self._add("QuantizeLinear", [source, *parameters]), *parameters])

    def _convolution(self, source: str, kernel: int, seed: int) -> str:
        weights = normal(16, 16, kernel, kernel, seed=seed) / 10
        scale = np.abs(weights).max(axis=(1, 2, 3)) / 127
        stored, parameters = f"w{seed}", [f"s{seed}", f"z{seed}"]
        self._values |= dict(zip(parameters, (scale, np.zeros(16, np.int8)), strict=True))
        integers = np.rint(weights / scale.reshape(-1, 1, 1, 1)).astype(np.int8)
        self._values |= {stored: weights if self._rounds_weights else integers, f"b{seed}": normal(16, seed=seed)}
        if self._rounds_weights:
            stored = self._add("QuantizeLinear", [stored, *parameters], axis=0)
        exact = self._add("DequantizeLinear", [stored, *parameters], axis=0)
        return self._add("Conv", [source, exact, f"b{seed}"], pads=[kernel // 2] * 4)


def nncf_file(folder: Path, *, rounds_weights: bool, rounds_both: bool) -> Path:
    return _NncfFile(rounds_weights=rounds_weights, rounds_both=rounds_both).write(folder / "q.onnx")


FILES: dict[str, Callable[[Path], Path]] = {
    "ONNX Runtime, its defaults": onnxruntime_file,
    "ONNX Runtime, uint8, scales per channel": lambda folder: onnxruntime_file(
        folder, activation_type=ort.QuantType.QUInt8, per_channel=True
    ),
    "ONNX Runtime, symmetric": lambda folder: onnxruntime_file(folder, extra_options={"ActivationSymmetric": True}),
    "ONNX Runtime, weights with Q and DQ": lambda folder: onnxruntime_file(
        folder, extra_options={"AddQDQPairToWeight": True}
    ),
    "torch": torch_file,
    "NNCF, both operands": lambda folder: nncf_file(folder, rounds_weights=False, rounds_both=True),
    "NNCF, one operand": lambda folder: nncf_file(folder, rounds_weights=False, rounds_both=False),
    "NNCF, trained": lambda folder: nncf_file(folder, rounds_weights=True, rounds_both=True),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("tool", FILES)
def test_layers_are_in_int8_and_native(tool: str, tmp_path: Path) -> None:
    file = FILES[tool](tmp_path)
    model = load(file)
    multiplying = [n.layer for n in layers(optimize(model)) if n.layer.op.endswith(("Conv", "Dense"))]
    assert len(multiplying) >= 3
    last = multiplying.pop() if "NNCF" in tool else None  # its output is float32
    assert [layer.name for layer in multiplying if not layer.is_int8] == []
    (value,) = model.graph.inputs
    assert value.shape is not None
    feeds = {str(value.name): normal(*value.shape.numpy())}
    (wanted,) = run_proto(onnx.load(file), feeds)
    with compile_model(model, build_processors(f"cpu:{usable_cores()[0]}"), tune=False) as session:
        assert not session.plan.fallback_layers
        routines = {step.layer: step.routine for step in session.plan.steps}
        assert all(":int8/" in routines[layer.name] for layer in multiplying), routines
        assert last is None or last.name in routines
        (y,) = session.run(None, feeds)
    assert relative_error(y, wanted) < 0.03  # a few steps of 1/255
