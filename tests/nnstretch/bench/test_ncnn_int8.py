"""Quantised files in ncnn: its int8 layers compute with the weights and scales of the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

from nnstretch.bench.comparison.client import EngineProcess, Workspace
from nnstretch.bench.comparison.subject import reference_outputs
from nnstretch.bench.engines import Job, engine_entry
from nnstretch.graph.reference import largest_error
from nnstretch.support.worker_process import WorkerError
from tests.kits.graphs.quantized_networks import QuantizedNetwork

pytest.importorskip("ncnn")
pytest.importorskip("pnnx")

from nnstretch.bench.engines import ncnn_engine
from nnstretch.bench.engines.ncnn_files import read_param


class File:
    """A quantised network that a test writes node by node, from x."""

    def __init__(self, *shape: int, dtype: type = np.float32) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, np.ndarray] = {}
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._input = helper.make_tensor_value_info("x", kind, shape)

    def add(self, kind: str, inputs: list[str], constants: Mapping[str, Any] | None = None, **attributes: Any) -> str:
        """Adds a node that reads these and then these constants, and returns the name of what it makes."""
        name = f"t{len(self._nodes)}"
        names = [f"{name}_{role}" for role in constants or {}]
        self._constants |= dict(zip(names, map(np.asarray, (constants or {}).values()), strict=True))
        self._nodes.append(helper.make_node(kind, [*inputs, *names], [name], name=name, **attributes))
        return name

    def rounded(self, source: str, scale: float, zero: np.generic) -> str:
        """Adds a QuantizeLinear and a DequantizeLinear."""
        numbers = {"scale": np.float32(scale), "zero": zero}
        return self.add("DequantizeLinear", [self.add("QuantizeLinear", [source], numbers)], numbers)

    def weights(self, stored: np.ndarray, scales: np.ndarray, axis: int = 0) -> str:
        """Adds the DequantizeLinear of int8 weights."""
        zeros = np.zeros(scales.shape, np.int8)
        return self.add("DequantizeLinear", [], {"w": stored, "scale": scales, "zero": zeros}, axis=axis)

    def written(self, folder: Path, *outputs: str) -> Path:
        """The ONNX file."""
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        weights = [numpy_helper.from_array(value, name) for name, value in self._constants.items()]
        graph = helper.make_graph(self._nodes, "file", [self._input], ends, weights)
        path = folder / "file.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        return path


def prepared(path: Path, folder: Path) -> Path:
    return ncnn_engine.prepare(Job("m", str(path), (0,)), folder, lambda *_: None)


def run(files: Path, **feeds: np.ndarray) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Outputs and facts of ncnn."""
    engine = ncnn_engine.load(Job("m", "", (0,), file=str(files)), feeds, lambda *_: None)
    engine.run()
    return list(engine.outputs().values()), engine.facts()


def terms(files: Path) -> list[str]:
    """Of convolutions and dense layers: whether they compute in int8 (1), and make the integers of the next (101)."""
    kinds = ("Convolution", "ConvolutionDepthWise", "InnerProduct")
    return [layer.numbers.get(8, "0") for layer in read_param(files) if layer.kind in kinds]


# -- single layers -------------------------------------------------------------------------------------------------------

Zero = np.int8 | np.uint8
ZEROS: list[Zero] = [np.int8(0), np.uint8(128), np.uint8(0), np.uint8(97), np.int8(-20)]
KINDS = ["conv", "strided", "depthwise", "groups", "conv1x1", "gemm", "gemm transposed", "matmul"]


def integers(x: np.ndarray, scale: float, zero: Zero) -> tuple[np.ndarray, float]:
    """The integers of the input that ncnn computes with, and their scale."""
    limits = np.iinfo(zero.dtype)
    x = np.maximum(x, 0) if zero == limits.min else x
    symmetric = int(zero) == limits.max - 127
    largest = 127 * scale if symmetric else scale * max(int(zero) - limits.min, limits.max - int(zero))
    return np.clip(np.rint(x * (127 / largest)), -127, 127), largest / 127


CASES = [("conv", zero) for zero in ZEROS] + [(kind, ZEROS[number % 5]) for number, kind in enumerate(KINDS) if number]


@pytest.mark.parametrize(("kind", "zero"), CASES, ids=lambda value: str(getattr(value, "dtype", "")) + str(value))
def test_layers_compute_with_the_integers_of_the_file(kind: str, zero: Zero, tmp_path: Path) -> None:
    rng = np.random.default_rng([KINDS.index(kind), int(zero) + 128])
    dense = kind.startswith(("gemm", "matmul"))
    groups = {"depthwise": 8, "groups": 2}.get(kind, 1)
    stride, kernel = (2 if kind == "strided" else 1), (1 if kind == "conv1x1" else 3)
    shape = (1, 24) if dense else (1, 8, 11, 9)
    stored = rng.integers(-127, 128, (10, 24) if dense else (8, 8 // groups, kernel, kernel)).astype(np.int8)
    scales = rng.uniform(0.001, 0.004, len(stored)).astype(np.float32)
    if kind == "groups":  # ncnn has a scale for each group
        scales = np.repeat(scales[:2], 4)
    bias = rng.standard_normal(len(stored)).astype(np.float32)
    file = File(*shape)
    source = file.rounded("x", 0.021, zero)
    if dense:
        is_turned = kind != "gemm transposed"
        weights = file.weights(stored.T if is_turned else stored, scales, axis=int(is_turned))
        if kind == "matmul":
            result = file.add("Add", [file.add("MatMul", [source, weights])], {"bias": bias})
        else:
            result = file.add("Gemm", [source, weights], {"bias": bias}, transB=int(not is_turned))
    else:
        pads = [kernel // 2] * 4
        result = file.add(
            "Conv", [source, file.weights(stored, scales)], {"b": bias}, group=groups, strides=[stride] * 2, pads=pads
        )
    files = prepared(file.written(tmp_path, result), tmp_path)
    assert terms(files) == ["1"]
    x = rng.uniform(-3, 3, shape).astype(np.float32)

    def computed(numbers: np.ndarray, scale: float) -> np.ndarray:
        numbers_, weights_ = torch.from_numpy(numbers.astype(np.float64)), torch.from_numpy(stored.astype(np.float64))
        sums = (
            functional.linear(numbers_, weights_)
            if dense
            else functional.conv2d(numbers_, weights_, stride=stride, padding=kernel // 2, groups=groups)
        ).numpy()
        along = (1, -1, *(1,) * (sums.ndim - 2))
        return sums * scale * scales.reshape(along) + bias.reshape(along)

    steps, scale = integers(x, 0.021, zero)
    expected = computed(steps, scale)
    (found,), facts = run(files, x=x)
    assert facts["dtype"] == "int8"
    assert facts["variant"] == "1 of 1 layers in int8"
    # ncnn multiplies by reciprocals, and some are approximate.
    limit = 2e-4 * np.ptp(expected)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=limit)
    lowest = 0 if zero == np.iinfo(zero.dtype).min else -127 * scale
    in_float32 = computed(np.clip(x, lowest, 127 * scale), 1.0)
    assert np.abs(in_float32 - expected).max() > 3 * limit


def test_group_convolutions_with_a_scale_per_channel_stay_float(tmp_path: Path) -> None:
    rng, file = np.random.default_rng(0), File(1, 8, 7, 7)
    weights = file.weights(
        rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8), rng.uniform(0.001, 0.004, 8).astype(np.float32)
    )
    path = file.written(tmp_path, file.add("Conv", [file.rounded("x", 0.02, np.uint8(128)), weights], group=2))
    x = rng.uniform(-2, 2, (1, 8, 7, 7)).astype(np.float32)
    files = prepared(path, tmp_path)
    (found,), facts = run(files, x=x)
    assert terms(files) == ["0"]
    assert "dtype" not in facts
    assert largest_error({"y": found}, reference_outputs(path, {"x": x}, optimised=False)) < 0.01


# -- networks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [9, 31, 40])
def test_networks_are_near_onnxruntime(seed: int, tmp_path: Path) -> None:
    """A step of ncnn's activations is at most twice that of the file's; those that no int8 layer reads are not rounded."""
    network, path = QuantizedNetwork(seed), tmp_path / "network.onnx"
    onnx.save(network.model, path)
    files = prepared(path, tmp_path)
    found, _ = run(files, x=network.input)
    expected = reference_outputs(path, {"x": network.input}, optimised=False)
    assert terms(files)
    assert "0" not in terms(files)
    assert largest_error(dict(enumerate(found)), expected) < 0.03  # type: ignore[arg-type]


def convolution(file: File, source: str, channels: int, seed: int, results: int = 8) -> str:
    rng = np.random.default_rng(seed)
    stored = rng.integers(-127, 128, (results, channels, 3, 3)).astype(np.int8)
    return file.add("Conv", [source, file.weights(stored, np.full(results, 0.002, np.float32))], pads=[1] * 4)


X = np.random.default_rng(3).standard_normal((1, 4, 9, 7)).astype(np.float32)


def near(path: Path, files: Path, limit: float) -> list[np.ndarray]:
    """The outputs of ncnn, near those of ONNX Runtime."""
    found, _ = run(files, x=X)
    expected = reference_outputs(path, {"x": X}, optimised=False)
    assert largest_error({str(n): y for n, y in enumerate(found)}, expected) < limit
    return found


def test_convolutions_make_the_integers_that_the_next_read(tmp_path: Path) -> None:
    file = File(*X.shape)
    first = file.rounded(convolution(file, file.rounded("x", 0.03, np.int8(0)), 4, 1), 0.05, np.int8(0))
    ends = [convolution(file, first, 8, seed) for seed in (2, 3)]
    path = file.written(tmp_path, *ends)
    files = prepared(path, tmp_path)
    assert terms(files) == ["101", "1", "1"]
    near(path, files, 0.01)


def test_a_convolution_whose_result_others_read_makes_floats(tmp_path: Path) -> None:
    file = File(*X.shape)
    first = file.rounded(convolution(file, file.rounded("x", 0.03, np.int8(0)), 4, 1), 0.05, np.int8(0))
    path = file.written(
        tmp_path, file.add("Add", [convolution(file, first, 8, 2), first]), convolution(file, first, 8, 3)
    )
    files = prepared(path, tmp_path)
    assert terms(files) == ["1", "1", "1"]
    near(path, files, 0.01)


def test_an_activation_that_is_in_the_rounding_alone(tmp_path: Path) -> None:
    """Quantisers leave out a Relu, or a Clip from 0, in front of what rounds to uint8 from 0 on."""
    file = File(*X.shape)
    first = file.rounded(convolution(file, file.rounded("x", 0.03, np.uint8(128)), 4, 1), 2 / 255, np.uint8(0))
    second = file.rounded(convolution(file, first, 8, 2), 2 / 255, np.uint8(0))
    path = file.written(tmp_path, file.add("Sigmoid", [second]))
    files = prepared(path, tmp_path)
    found = near(path, files, 0.02)
    low, high = 1 / (1 + np.exp([0.0, -2.0]))
    assert (found[0].min(), found[0].max()) == pytest.approx((low, high), abs=1e-5)
    assert [layer.kind for layer in read_param(files)] == ["Input", "Convolution", "Convolution", "Sigmoid"]
    assert [layer.numbers.get(9) for layer in read_param(files)][1:3] == ["1", "3"]


def test_a_layer_that_the_converter_merges_with_others_stays_float(tmp_path: Path) -> None:
    file = File(*X.shape)
    first = convolution(file, file.rounded("x", 0.03, np.uint8(128)), 4, 1)
    numbers = {name: np.linspace(1, 2, 8).astype(np.float32) for name in ("scale", "shift", "mean", "variance")}
    normal = file.rounded(file.add("BatchNormalization", [first], numbers), 0.05, np.uint8(128))
    path = file.written(tmp_path, convolution(file, normal, 8, 2))
    files = prepared(path, tmp_path)
    assert terms(files) == ["0", "1"]
    near(path, files, 0.02)


def test_layers_with_equal_weights_have_scales_of_their_own(tmp_path: Path) -> None:
    file = File(1, 8, 9, 7)
    rng = np.random.default_rng(0)
    weights = file.weights(rng.integers(-127, 128, (8, 8, 1, 1)).astype(np.int8), np.full(8, 0.002, np.float32))
    first = file.add("Sigmoid", [file.add("Conv", [file.rounded("x", 0.03, np.int8(0)), weights])])
    path = file.written(tmp_path, file.add("Conv", [file.rounded(first, 0.01, np.int8(0)), weights]))
    x = rng.standard_normal((1, 8, 9, 7)).astype(np.float32)
    files = prepared(path, tmp_path)
    assert terms(files) == ["101", "1"]
    found, _ = run(files, x=x)
    assert largest_error({"y": found[0]}, reference_outputs(path, {"x": x}, optimised=False)) < 0.01


# -- the comparison ------------------------------------------------------------------------------------------------------


def served(path: Path, x: np.ndarray) -> EngineProcess:
    """ncnn's process in a comparison."""
    entry, job = engine_entry("ncnn"), Job("m", str(path), (0,))
    with Workspace() as workspace:
        file = workspace.file_for(entry, job, lambda *_: None)
        return EngineProcess(entry, Job("m", str(path), (0,), file=file), {"x": x}, lambda *_: None)


def test_a_comparison_names_the_type_and_the_number_of_layers(tmp_path: Path) -> None:
    network, path = QuantizedNetwork(10), tmp_path / "network.onnx"
    onnx.save(network.model, path)
    with served(path, network.input) as process:
        assert process.facts["dtype"] == "int8"
        assert process.facts["variant"] == "4 of 4 layers in int8"
        found = process.outputs()
    assert largest_error(found, reference_outputs(path, {"x": network.input}, optimised=False)) < 0.03


def test_what_ncnn_cannot_express_is_its_error(tmp_path: Path) -> None:
    file = File(*X.shape, dtype=np.uint8)
    numbers = {"scale": np.float32(0.03), "zero": np.uint8(128)}
    source = file.add("DequantizeLinear", ["x"], numbers)
    path = file.written(tmp_path, convolution(file, file.rounded(source, 0.03, np.uint8(128)), 4, 1))
    with pytest.raises(WorkerError, match="input x is uint8, and ncnn takes and makes float32"):
        served(path, np.zeros(X.shape, np.uint8))
    file = File(*X.shape)
    pooled = file.add("MaxPool", [file.add("QuantizeLinear", ["x"], numbers)], kernel_shape=[2, 2])
    path = file.written(tmp_path, file.add("DequantizeLinear", [pooled], numbers))
    with pytest.raises(WorkerError, match="integers are read by other operators"):
        served(path, X)


def test_a_first_layer_that_works_in_place(tmp_path: Path) -> None:
    file = File(1, 8, 4, 4)
    path = file.written(tmp_path, file.add("LeakyRelu", ["x"]))
    x = np.random.default_rng(0).standard_normal((1, 8, 4, 4)).astype(np.float32)
    with served(path, x) as process:
        (found,) = process.outputs().values()
    np.testing.assert_allclose(found, np.where(x < 0, 0.01 * x, x), rtol=1e-6)
