"""TFLite files become ONNX graphs that answer as LiteRT does; `load_tflite` itself compares the two."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from nnstretch.devices.external.litert.flatbuffer import IDENTIFIER, FlatModel, load_schema
from nnstretch.devices.external.litert.writer import write_tflite
from nnstretch.errors import FileError, ModelError, NNStretchError, UsageError
from nnstretch.frontends.resolve import load_model, load_module, load_network
from nnstretch.frontends.tflite_file import load, load_tflite
from nnstretch.frontends.torch_module import export
from tests.devices.external.test_litert_writer import MODULES

pytest.importorskip("ai_edge_litert.interpreter")


def network() -> nn.Module:
    """A small CNN with what converters make of one: padding, a depthwise layer, a residual, a gate, a head."""

    class Gate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x * x.mean((2, 3), keepdim=True).sigmoid()

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6(), nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Hardswish(), Gate(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4), nn.Softmax(1),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def content() -> bytes:
    return write_tflite(export(network(), torch.randn(1, 3, 12, 12), input_names=["image"], output_names=["scores"]))


@pytest.fixture
def file(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "net.tflite"
    path.write_bytes(content)
    return path


def changed(content: bytes, change: Callable[[Any], None]) -> bytes:
    """A file with other tables."""
    model = load_schema().ModelT.InitFromPackedBuf(content, 0)
    change(model)
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def without_options(model: Any) -> None:
    for operator in model.subgraphs[0].operators:
        operator.builtinOptions = None


def test_no_transposition_is_left_in_a_plain_cnn(file: Path) -> None:
    model = load_model(str(file))
    found = Counter(node.op_type for node in model.graph)
    assert "Transpose" not in found
    assert found["Conv"] == 2
    assert model.graph.inputs[0].shape == ir.Shape([1, 3, 12, 12])


def test_the_module_answers_as_the_network_did_for_any_batch(file: Path) -> None:
    module, image = load_module(str(file))
    several = torch.randn(4, 3, 12, 12)
    assert image.shape == (1, 3, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close(module(several), network()(several), rtol=1e-5, atol=1e-5)


def test_every_layer_that_is_written_is_read(tmp_path: Path) -> None:
    """One file with all layers; reading it compares every answer with LiteRT's."""

    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(MODULES.values())

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [part(x) for part in self.parts]

    torch.manual_seed(0)
    model = export(All().eval(), torch.randn(1, 8, 12, 16))
    path = tmp_path / "all.tflite"
    path.write_bytes(write_tflite(model))
    assert len(load_tflite(path).graph.outputs) == len(MODULES)


def test_operators_that_are_not_written(tmp_path: Path) -> None:
    """Operators and forms that other converters write: transposed convolution, splits, packing, reductions, selection."""
    flat = FlatModel("others")
    rng = np.random.default_rng(0)
    x = flat.tensor((1, 4, 6, 8), "x")
    schema = flat.schema

    def ints(*numbers: int) -> int:
        return flat.constant(np.array(numbers, np.int32), "numbers")

    def pads(*numbers: int) -> int:
        return flat.constant(np.array(numbers, np.int32).reshape(-1, 2), "pads")

    def add(name: str, inputs: list[int], shape: tuple[int, ...], table: str = "", **options: Any) -> int:
        made = flat.tensor(shape, f"{name}:{len(outputs)}")
        flat.operator(name, inputs, [made], options, table=table)
        outputs.append(made)
        return made

    outputs: list[int] = []
    kernel = flat.constant(rng.standard_normal((5, 3, 3, 8)).astype(np.float32), "kernel")
    for padding, size in ((schema.Padding.SAME, (8, 12)), (schema.Padding.VALID, (9, 13))):
        add("TRANSPOSE_CONV", [ints(1, *size, 5), kernel, x], (1, *size, 5), "TransposeConvOptions",
            padding=padding, strideH=2, strideW=2)  # fmt: skip
    halves = [flat.tensor((1, 4, 6, 4), f"half {i}") for i in range(2)]
    flat.operator("SPLIT", [ints(3), x], halves, {"numSplits": 2}, table="SplitOptions")
    add("SQUARED_DIFFERENCE", halves, (1, 4, 6, 4))
    add("MAXIMUM", halves, (1, 4, 6, 4))
    add("PACK", halves, (2, 1, 4, 6, 4), "PackOptions", valuesCount=2, axis=0)
    add("SUM", [x, ints(1)], (1, 6, 8), "ReducerOptions", keepDims=False)
    add("REDUCE_MAX", [x, ints(3)], (1, 4, 6), "ReducerOptions", keepDims=False)
    add("MEAN", [x, ints(1, 2)], (1, 8), "ReducerOptions", keepDims=False)
    add("MIRROR_PAD", [x, pads(0, 0, 1, 1, 2, 0, 0, 0)], (1, 6, 8, 8), "MirrorPadOptions")
    add("STRIDED_SLICE", [x, ints(0, 1, 0, 0), ints(1, 4, 6, 8), ints(1, 2, 1, 1)], (1, 2, 6, 8), "StridedSliceOptions")
    add("STRIDED_SLICE", [x, ints(0, 1, 0, 0), ints(1, 2, 6, 8), ints(1, 1, 1, 1)], (1, 6, 8), "StridedSliceOptions",
        shrinkAxisMask=2)  # fmt: skip
    add("GATHER", [x, ints(5, 0)], (1, 4, 6, 2), "GatherOptions", axis=3)
    add("SPACE_TO_DEPTH", [x], (1, 2, 3, 32), "SpaceToDepthOptions", blockSize=2)
    add("DEPTH_TO_SPACE", [x], (1, 8, 12, 2), "DepthToSpaceOptions", blockSize=2)
    add("L2_NORMALIZATION", [x], (1, 4, 6, 8), "L2NormOptions")
    add("RSQRT", [add("ABS", [x], (1, 4, 6, 8))], (1, 4, 6, 8))
    add("TILE", [x, ints(1, 1, 2, 1)], (1, 4, 12, 8))
    add("RESIZE_BILINEAR", [x, ints(7, 9)], (1, 7, 9, 8), "ResizeBilinearOptions")
    rows = add("TRANSPOSE", [x, ints(0, 2, 1, 3)], (1, 6, 4, 8))
    add("BATCH_MATMUL", [rows, rows], (1, 6, 4, 4), "BatchMatMulOptions", adjY=True)
    path = tmp_path / "others.tflite"
    path.write_bytes(flat.finish([x], outputs))
    model = load_tflite(path)
    assert len(model.graph.outputs) == len(outputs)


def test_weights_of_float16_become_float32(tmp_path: Path) -> None:
    flat = FlatModel("halves", halves=True)
    x, y = flat.tensor((1, 4), "x"), flat.tensor((1, 3), "y")
    weight = flat.weight(np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32), "w")
    flat.operator("FULLY_CONNECTED", [x, weight, -1], [y], table="FullyConnectedOptions")
    path = tmp_path / "halves.tflite"
    path.write_bytes(flat.finish([x], [y]))
    assert load_network(str(path)).module.state_dict()["y.weight"].dtype == torch.float32


def quantised_file(path: Path) -> Path:
    """A convolution in int8 with a scale per output channel and int8 ends."""
    from nnstretch.graph.dtypes import QuantizationParameters

    rng = np.random.default_rng(0)
    flat = FlatModel("int8")
    x = flat.tensor((1, 6, 6, 4), "x", QuantizationParameters(0.02, 3))
    y = flat.tensor((1, 6, 6, 5), "y", QuantizationParameters(0.05, -7))
    scales = rng.uniform(0.01, 0.02, 5).astype(np.float32)
    weight = flat.constant(rng.integers(-127, 128, (5, 3, 3, 4)).astype(np.int8), "w", scales)
    bias = flat.constant(rng.integers(-500, 500, 5).astype(np.int32), "b", scales * np.float32(0.02))
    flat.operator("CONV_2D", [x, weight, bias], [y], {"strideH": 1, "strideW": 1}, table="Conv2DOptions")
    path.write_bytes(flat.finish([x], [y]))
    return path


def test_int8_becomes_quantize_and_dequantize(tmp_path: Path) -> None:
    path = quantised_file(tmp_path / "int8.tflite")
    model = load_tflite(path)
    assert [node.op_type for node in model.graph].count("DequantizeLinear") == 3
    assert model.graph.inputs[0].dtype == model.graph.outputs[0].dtype == ir.DataType.INT8
    with pytest.raises(ModelError, match=r"input .* INT8|before its quantisation"):
        load_network(str(path))


def test_custom_operators_are_named(tmp_path: Path, content: bytes) -> None:
    def flex(model: Any) -> None:
        code = model.operatorCodes[0]
        code.builtinCode = code.deprecatedBuiltinCode = load_schema().BuiltinOperator.CUSTOM
        code.customCode = "FlexErf"

    path = tmp_path / "flex.tflite"
    path.write_bytes(changed(content, flex))
    with pytest.raises(ModelError, match=r"custom operator FlexErf.* convert it with TFLITE_BUILTINS alone"):
        load_tflite(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m.subgraphs[0].operators[0], "inputs", [0, 999]), "tensor 999 of"),
        (lambda m: setattr(m.subgraphs[0].operators[0], "opcodeIndex", 50), "code 50 of"),
        (lambda m: setattr(m.subgraphs[0].tensors[1], "buffer", 10**6), "reads buffer 1000000"),
        (lambda m: setattr(m.buffers[-1], "data", m.buffers[-1].data[:-1]), "does not fit its shape"),
        (lambda m: m.subgraphs.clear(), "holds no graph"),
        (without_options, "other inputs or options"),
    ],
)
def test_numbers_in_the_file_are_checked(
    tmp_path: Path, content: bytes, change: Callable[[Any], None], message: str
) -> None:
    path = tmp_path / "damaged.tflite"
    path.write_bytes(changed(copy.copy(content), change))
    with pytest.raises(ModelError, match=message):
        load_tflite(path)


def test_damaged_files(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_check", lambda *_: None)  # LiteRT need not read what is damaged
    path = tmp_path / "damaged.tflite"
    rng = np.random.default_rng(0)
    for length in (0, 7, 8, 40, len(content) // 2, len(content) - 40):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"damaged|truncated"):
            load_tflite(path)
    tables = len(content) // 3  # the tables are behind the weights or before them, in both thirds
    for _ in range(60):
        damaged = bytearray(content)
        place = (
            int(rng.integers(8, tables))
            if rng.random() < 0.5
            else int(rng.integers(len(content) - tables, len(content)))
        )
        damaged[place] = int(rng.integers(256))
        path.write_bytes(bytes(damaged))
        try:
            load_tflite(path)
        except NNStretchError:
            continue
    with pytest.raises(FileError, match="No such file"):
        load_tflite(tmp_path / "none.tflite")


def test_another_batch_or_shape_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match="no input with a dynamic batch"):
        load_tflite(file, batch=2)
    with pytest.raises(ModelError, match="contradicts"):
        load_tflite(file, {"": (1, 3, 20, 20)})


def test_another_answer_than_that_of_litert_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nnstretch.frontends.tflite_file import elementwise

    monkeypatch.setitem(elementwise._UNARY, "LOGISTIC", "Tanh")
    with pytest.raises(ModelError, match="differs from LiteRT's"):
        load_tflite(file)
