"""TFLite files: LiteRT's results equal those of ONNX Runtime for the graph."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, shape_inference
from torch import Tensor, nn
from torch.nn import functional as fn

from nnstretch.bench.comparison.subject import random_feeds, reference_outputs
from nnstretch.devices.external.litert import flatbuffer
from nnstretch.devices.external.litert.writer import write_tflite
from nnstretch.errors import MissingExtraError, ModelError
from nnstretch.frontends.torch_module import export
from nnstretch.graph.reference import relative_error

interpreter = pytest.importorskip("ai_edge_litert.interpreter")

TOLERANCE = 1e-4


def last(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value.transpose(0, 2, 3, 1)) if value.ndim == 4 else value


def first(value: np.ndarray) -> np.ndarray:
    return value.transpose(0, 3, 1, 2) if value.ndim == 4 else value


def run(content: bytes, feeds: list[np.ndarray]) -> list[np.ndarray]:
    """Outputs of a TFLite file in LiteRT; input and output images are N,C,H,W."""
    opened = interpreter.Interpreter(model_content=content, num_threads=1)
    opened.allocate_tensors()
    for about, value in zip(opened.get_input_details(), feeds, strict=True):
        opened.set_tensor(about["index"], last(value))
    opened.invoke()
    return [first(opened.get_tensor(about["index"])) for about in opened.get_output_details()]


def check(graph: ir.Model, seed: int = 0) -> None:
    feeds = random_feeds(graph, seed)
    expected = list(reference_outputs(graph, feeds).values())
    found = run(write_tflite(graph), list(feeds.values()))
    assert [y.shape for y in found] == [y.shape for y in expected]
    for y, wanted in zip(found, expected, strict=True):
        assert relative_error(y, wanted) < TOLERANCE


class Calls(nn.Module):
    """A module that applies a function to its input and layers."""

    def __init__(self, function, *children: nn.Module) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        super().__init__()
        self.parts = nn.ModuleList(children)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.parts)  # type: ignore[no-any-return]


def conv(before: int = 8, after: int = 8, kernel: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel, padding=kernel // 2)


def heads(x: Tensor, one: nn.Module, two: nn.Module) -> Tensor:
    """The end of a detector: images transposed to channels last, flattened and concatenated."""
    flat = [head(x).permute(0, 2, 3, 1).reshape(1, -1, 4) for head in (one, two)]
    return torch.cat(flat, 1).softmax(-1)


MODULES = {
    "same": nn.Conv2d(8, 12, 3, padding=1),
    "stride 2, padded before": nn.Conv2d(8, 12, 3, 2, 1),
    "valid": nn.Conv2d(8, 5, 3, bias=False),
    "dilated": nn.Conv2d(8, 5, 3, padding=2, dilation=2),
    "rectangular": nn.Conv2d(8, 5, (1, 7), (1, 2), (0, 3)),
    "depthwise": nn.Conv2d(8, 8, 5, 2, 2, groups=8),
    "depthwise, twice the channels": nn.Conv2d(8, 16, 3, padding=1, groups=8),
    "grouped": nn.Conv2d(8, 12, 3, 1, 1, groups=2),
    "batch norm alone": nn.Sequential(nn.MaxPool2d(2), nn.BatchNorm2d(8)),
    "relu6": nn.Sequential(conv(), nn.ReLU6()),
    "clip": nn.Sequential(conv(), nn.Hardtanh(-0.2, 0.3)),
    "silu": nn.Sequential(conv(), nn.SiLU()),
    "hard swish": nn.Sequential(conv(), nn.Hardswish()),
    "hard sigmoid": nn.Sequential(conv(), nn.Hardsigmoid()),
    "gelu": nn.Sequential(conv(), nn.GELU()),
    "gelu of tanh": nn.Sequential(conv(), nn.GELU("tanh")),
    "mish": nn.Sequential(conv(), nn.Mish()),
    "softplus": nn.Sequential(conv(), nn.Softplus()),
    "elu": nn.Sequential(conv(), nn.ELU(0.7)),
    "celu": nn.Sequential(conv(), nn.CELU(0.7)),
    "selu": nn.Sequential(conv(), nn.SELU()),
    "slopes": nn.Sequential(conv(), nn.PReLU(8)),
    "group norm": nn.Sequential(conv(), nn.GroupNorm(2, 8), nn.SiLU()),
    "instance norm": nn.Sequential(conv(), nn.InstanceNorm2d(8)),
    "layer norm of rows": nn.Sequential(conv(), nn.LayerNorm(16)),
    "layer norm of channels": Calls(lambda x, norm: norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.LayerNorm(8)),
    "root mean square": nn.RMSNorm(16, eps=1e-6),
    "leaky": nn.Sequential(conv(), nn.LeakyReLU(0.1)),
    "sigmoid": nn.Sequential(conv(), nn.Sigmoid()),
    "tanh alone": nn.Sequential(nn.MaxPool2d(2), nn.Tanh()),
    "residual": Calls(lambda x, a: fn.relu(a(fn.relu(x)) + x), conv(kernel=3)),
    "squeeze and excite": Calls(lambda x, a: x * a(x.mean((2, 3), keepdim=True)).sigmoid(), conv()),
    "sub": Calls(lambda x, a: a(x) - fn.relu(x), conv()),
    "by a constant": Calls(lambda x: fn.max_pool2d(x, 2) * torch.arange(8.0).reshape(8, 1, 1)),
    "scalar": Calls(lambda x: fn.max_pool2d(x, 2) * 3.0),
    "max pool of negatives": Calls(lambda x: fn.max_pool2d(x - 9.0, 3, 2, 1)),
    "max pool of no negatives": Calls(lambda x: fn.max_pool2d(fn.relu(x), 3, 2, 1)),
    "max pool, ceil": nn.MaxPool2d(3, 2, ceil_mode=True),
    "mean, pads counted": nn.AvgPool2d(3, 1, 1),
    "mean, pads not counted": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "mean, same": nn.AvgPool2d(3, 1, 1, count_include_pad=False),
    "global": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    "global max": nn.AdaptiveMaxPool2d(1),
    "flat": nn.Sequential(nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * 12, 7), nn.ReLU(), nn.Linear(7, 2, bias=False)),
    "unflat": Calls(lambda x, a: a(x.flatten(1).reshape(1, 4, 12, 32)), conv(4, 3, 3)),
    "concat": Calls(lambda x, a: torch.cat([a(x), x, fn.relu(x)], 1), conv()),
    "softmax over channels": Calls(lambda x: x.softmax(1)),
    "softmax in the middle": Calls(lambda x: x.flatten(2).softmax(1)),
    "softmax of an image's row": Calls(lambda x, a: a(x.softmax(2)), conv()),
    "detector": Calls(heads, conv(8, 12, 3), conv(8, 4, 1)),
    "slice of channels": Calls(lambda x, a: a(x)[:, 2:7:2, 1:, ::3], conv()),
    "slice of rows": Calls(lambda x: x.flatten(2)[:, 1:, 5:90:4]),
    "exponential": Calls(lambda x: fn.max_pool2d(x, 2).exp()),
    "turned": Calls(lambda x, a: a(x).permute(0, 2, 1, 3), conv()),
    "from rows": Calls(lambda x, a: a(x.permute(0, 3, 1, 2)), conv(16, 4)),
    "sine": Calls(lambda x: x.sin() + x.cos()),
    "square root of sizes": Calls(lambda x: x.abs().sqrt()),
    "powers": Calls(lambda x: x.abs() ** 1.7 + 2.0**x),
    "rounded": Calls(lambda x: x.round() + x.floor() - x.ceil() * x.sign()),
    "logarithm": Calls(lambda x: (x.abs() + 0.1).log()),
    "reciprocal": Calls(lambda x: 1 / (x.abs() + 1)),
    "error function": Calls(torch.erf),
    "by a number that is computed": Calls(lambda x: torch.maximum(x, x.mean()) + torch.arange(16.0)),
    "log softmax over channels": Calls(lambda x: x.log_softmax(1)),
    "log softmax in the middle": Calls(lambda x: x.log_softmax(2)),
    "means of regions": nn.AdaptiveAvgPool2d((7, 9)),
    "channels by number": Calls(lambda x: x[:, [7, 0, -1]]),
    "channels in two lists": Calls(lambda x: x[:, torch.tensor([[7, 0], [1, 3]])]),
    "backwards": Calls(lambda x: x.flip(3)[:, ::2]),
    "masked": Calls(lambda x: torch.where(torch.arange(16) % 3 == 0, x, torch.tensor(-5.0))),
    "variance": Calls(lambda x: x.var(1)),
    "length 1": Calls(lambda x: fn.normalize(x, dim=1)),
    "attention": Calls(
        lambda x: fn.scaled_dot_product_attention(*(x.flatten(2).transpose(1, 2)[:, None] * s for s in (1.0, 0.5, 2.0)))
    ),
    "bilinear": Calls(lambda x: fn.interpolate(x, scale_factor=2, mode="bilinear")),
    "bilinear, corners": Calls(lambda x: fn.interpolate(x, (19, 30), mode="bilinear", align_corners=True)),
    "nearest": Calls(lambda x: fn.interpolate(x, scale_factor=2)),
}


class All(nn.Module):
    """Every module of the table on one image: one export serves them all."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(MODULES.values())

    def forward(self, x: Tensor) -> list[Tensor]:
        return [part(x) for part in self.parts]


@pytest.fixture(scope="module")
def answers() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name of a module -> what LiteRT and what ONNX Runtime compute."""
    torch.manual_seed(0)
    graph = export(All().eval(), torch.randn(1, 8, 12, 16))
    feeds = random_feeds(graph, 0)
    found = run(write_tflite(graph), list(feeds.values()))
    expected = reference_outputs(graph, feeds).values()
    return dict(zip(MODULES, zip(found, expected, strict=True), strict=True))


@pytest.mark.parametrize("name", MODULES)
def test_layers(name: str, answers: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    found, expected = answers[name]
    assert found.shape == expected.shape
    assert np.ptp(expected) > 0
    assert relative_error(found, expected) < TOLERANCE


def conv_graph(kernel: int, stride: int, pad: int, size: int, dilation: int, groups: int) -> ir.Model:
    """A convolution of four channels as an ONNX graph."""
    weight = np.random.default_rng(0).standard_normal((4, 4 // groups, kernel, kernel)).astype(np.float32)
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=[stride] * 2,
        pads=[pad] * 4,
        dilations=[dilation] * 2,
        group=groups,
    )
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, size, size + 2))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ir.from_proto(shape_inference.infer_shapes(model))


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(5, 11),
    st.integers(1, 2),
    st.sampled_from((1, 2, 4)),
)
def test_windows(kernel: int, stride: int, pad: int, size: int, dilation: int, groups: int) -> None:
    """Kernels, strides and pads of all kinds; TFLite's two padding modes cover only some."""
    check(conv_graph(kernel, stride, pad, max(size, (kernel - 1) * dilation + 1), dilation, groups))


@pytest.mark.parametrize(
    "name",
    ["squeezenet1_1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mobilenetv3_small", "resnet18"))],
)
def test_networks(name: str) -> None:
    from nnstretch.frontends.resolve import load_model

    check(load_model(name, {"": (1, 3, 64, 64)}))


def test_weights_are_aligned() -> None:
    """Readers map the file and use its weights in place."""
    schema = flatbuffer.load_schema()
    torch.manual_seed(0)
    content = write_tflite(export(nn.Sequential(conv(8, 3), conv(3, 5)), torch.randn(1, 8, 4, 4)))
    model = schema.Model.GetRootAs(content, 0)
    buffers = [model.Buffers(i) for i in range(model.BuffersLength())]
    begins = [b._tab.Vector(b._tab.Offset(4)) for b in buffers if b.DataLength()]
    assert len(begins) >= 4
    assert all(begin % 16 == 0 for begin in begins)


def test_what_tflite_does_not_have() -> None:
    image = torch.randn(1, 8, 12, 16)
    with pytest.raises(ModelError, match="CumSum"):
        write_tflite(export(Calls(lambda x: x.cumsum(1)), image))
    with pytest.raises(ModelError, match="dilated pool"):
        write_tflite(export(nn.MaxPool2d(2, 1, dilation=2), image))
    with pytest.raises(ModelError, match=r"counterpart of layer .* \(Greater\)"):
        write_tflite(export(Calls(lambda x: torch.where(x > x.mean(), x, -x)), image))
    with pytest.raises(ModelError, match="int64"):
        write_tflite(export(nn.Embedding(4, 4), torch.zeros(1, 3, dtype=torch.int64)))


def test_too_large_for_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatbuffer, "_LIMIT", 1 << 20)
    with pytest.raises(ModelError, match="2 GB"):
        write_tflite(export(conv(), torch.randn(1, 8, 4, 4)))


def test_without_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ai_edge_litert", None)
    with pytest.raises(MissingExtraError, match=r"nnstretch\[litert\]"):
        write_tflite(export(conv(), torch.randn(1, 8, 4, 4)))
