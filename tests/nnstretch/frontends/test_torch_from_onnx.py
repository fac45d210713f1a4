"""ONNX graphs become torch modules with the same answers, for any batch, and go back to ONNX with their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import parser
from torch import Tensor, nn
from torch.nn import functional

from nnstretch import zoo
from nnstretch.branching.tracing.capture import capture
from nnstretch.branching.tracing.operators import Role, role_of
from nnstretch.errors import ModelError, UsageError
from nnstretch.frontends.onnx_file import save
from nnstretch.frontends.resolve import load_network
from nnstretch.frontends.torch_from_onnx.batch import BatchAxis
from nnstretch.frontends.torch_from_onnx.convert import ConvertedNetwork, to_torch
from nnstretch.frontends.torch_from_onnx.names import Paths
from nnstretch.frontends.torch_module import export

IMAGE = (1, 8, 6, 6)
RNG = np.random.default_rng(0)


def answers(model: ir.Model, feeds: Sequence[Tensor]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    found: list[np.ndarray] = session.run(None, {n: feed.numpy() for n, feed in zip(names, feeds, strict=True)})
    return found


def round_trip(module: nn.Module, shape: tuple[int, ...] = IMAGE) -> ConvertedNetwork:
    """Converts an export of the module, and checks its answers, those for three images and those of its own export."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    model = export(module.eval(), x, input_names=["image"], output_names=["scores"])
    converted = to_torch(model, "network.onnx")
    back = converted.interface.applied(export(converted.module, x))
    assert [value.name for value in (*back.graph.inputs, *back.graph.outputs)] == ["image", "scores"]
    (wanted,), (found,) = answers(model, [x]), answers(back, [x])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))
    several = torch.randn(3, *shape[1:], generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(converted.module(several), module(several), rtol=1e-4, atol=1e-4)
    return converted


def kinds(converted: ConvertedNetwork) -> set[str]:
    return {type(part).__name__ for part in converted.module.modules()} - {"Module", "network"}


def operator_model(
    op_type: str,
    shape: Sequence[int],
    attributes: Mapping[str, Any] | None = None,
    constants: Sequence[np.ndarray | None] = (),
    outputs: int = 1,
    opset: int = 20,
    domain: str = "",
) -> ir.Model:
    """A graph with one operator of an image and constants."""
    names = ["" if array is None else f"c{i}" for i, array in enumerate(constants)]
    node = onnx.helper.make_node(
        op_type, ["x", *names], [f"y{i}" for i in range(outputs)], name="it", domain=domain, **(attributes or {})
    )
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info(f"y{i}", onnx.TensorProto.UNDEFINED, None) for i in range(outputs)],
        [onnx.numpy_helper.from_array(array, f"c{i}") for i, array in enumerate(constants) if array is not None],
    )
    imports = [onnx.helper.make_opsetid("", opset), *([onnx.helper.make_opsetid(domain, 1)] if domain else [])]
    proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(12, eps=1e-3)
        self.conv2 = nn.Conv2d(12, 8, 1, groups=4)
        self.gamma = nn.Parameter(torch.rand(8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.conv2(functional.relu(self.bn1(self.conv1(x)))) * self.gamma[:, None, None]
        scores: Tensor = self.head(y.mean((2, 3)))
        return scores


def test_weights_keep_names_and_can_be_trained() -> None:
    network = Residual()
    converted = round_trip(network)
    state = converted.module.state_dict()
    assert {*network.state_dict()} - {"gamma"} <= {*state}  # the exporter reshaped gamma
    for name, tensor in network.state_dict().items():
        if name != "gamma":
            torch.testing.assert_close(state[name], tensor)
    assert kinds(converted) == {"Conv2d", "BatchNorm2d", "ReLU", "Linear"}
    assert sum(p.numel() for p in converted.module.parameters()) == sum(p.numel() for p in network.parameters())
    norm = converted.module.get_submodule("bn1")
    assert isinstance(norm, nn.BatchNorm2d)
    assert (norm.eps, norm.momentum) == (1e-3, 0.1)
    converted.module.train()
    converted.module(torch.randn(4, 8, 6, 6)).sum().backward()
    assert all(parameter.grad is not None for parameter in converted.module.parameters())
    assert not torch.equal(norm.running_mean, network.bn1.running_mean)  # type: ignore[arg-type]


class Tokens(nn.Module):
    """Attention over pixels, with a class token, a position embedding and heads."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 37, 8))
        self.norm, self.qkv = nn.LayerNorm(8), nn.Linear(8, 24)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1) + self.positions
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + ((q @ k.transpose(-2, -1)) * 0.5).softmax(-1).matmul(v).transpose(1, 2).reshape(b, n, c)
        token: Tensor = (x + self.mlp(x))[:, 0]
        return token


def test_attention_for_any_batch() -> None:
    converted = round_trip(Tokens())
    assert {"LayerNorm", "Linear", "GELU"} <= kinds(converted)
    learned = dict(converted.module.named_parameters())
    assert "positions" in learned
    assert sum(p.numel() for p in learned.values()) == sum(p.numel() for p in Tokens().parameters())


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (functional.silu, {"SiLU"}),
        (functional.gelu, {"GELU"}),
        (lambda x: functional.gelu(x, approximate="tanh"), {"GELU"}),
        (functional.hardswish, {"Hardswish"}),
        (functional.hardsigmoid, {"Hardsigmoid"}),
        (functional.mish, {"Mish"}),
        (functional.softplus, {"Softplus"}),
        (functional.relu6, {"ReLU6"}),
        (functional.elu, {"ELU"}),
        (functional.selu, {"SELU"}),
        (lambda x: functional.celu(x, 0.5), {"CELU"}),
        (lambda x: functional.leaky_relu(x, 0.1), {"LeakyReLU"}),
        (lambda x: x.clamp(min=0.3) + torch.tanh(x), {"Tanh"}),
        (lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), {"MaxPool2d"}),
        (lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False), {"AvgPool2d"}),
        (lambda x: functional.interpolate(x, scale_factor=2.0), {"Upsample"}),
        (lambda x: functional.interpolate(x, size=(9, 11), mode="bilinear"), {"Upsample"}),
        (lambda x: functional.interpolate(x, size=(9, 9), mode="bilinear", align_corners=True), {"Upsample"}),
        (lambda x: functional.pixel_shuffle(x, 2), {"PixelShuffle"}),
        (lambda x: functional.pixel_unshuffle(x, 2), set()),
        (lambda x: functional.pad(x, (1, 2, 0, 1)), {"ZeroPad2d"}),
        (lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect"), set()),
        (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1)[:, 1:7:2], set()),
        (lambda x: x.view(len(x), 2, 4, 6, 6).transpose(1, 2).reshape(len(x), 8, 6, 6), set()),
        (lambda x: x.amax(1, keepdim=True) / (x.std((2, 3), keepdim=True) + 1) ** 2, set()),
        (lambda x: torch.where(x > 0.5, x, x * x).flip(2), set()),
        (lambda x: x.flatten(1).topk(3)[0], set()),
        (lambda x: functional.normalize(x, dim=1).cumsum(3), set()),
        (lambda x: torch.einsum("nchw,ndhw->ncd", x, x), set()),
    ],
)  # fmt: skip
def test_functions(function: Callable[[Tensor], Tensor], found: set[str]) -> None:
    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    assert kinds(round_trip(Network())) >= found


@pytest.mark.parametrize(
    "module",
    [
        nn.ConvTranspose2d(8, 6, 3, 2, 1, output_padding=1, groups=2),
        nn.GroupNorm(4, 8),
        nn.InstanceNorm2d(8, affine=True),
        nn.PReLU(8),
        nn.Sequential(
            nn.Conv2d(8, 4, 3, padding=(0, 1), dilation=2), nn.Dropout(0.3), nn.Flatten(), nn.Linear(4 * 8, 3)
        ),
        nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(8, 2, 1), nn.Sigmoid()),
        nn.LocalResponseNorm(3),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules(module: nn.Module) -> None:
    wanted = {type(part).__name__ for part in module.modules()} - {"Sequential", "Flatten", "Sigmoid", "Dropout"}
    assert wanted - {"LocalResponseNorm"} <= kinds(round_trip(module))


def one_operator(model: ir.Model, shape: Sequence[int]) -> ConvertedNetwork:
    converted = to_torch(model, "one.onnx")
    x = torch.randn(tuple(shape))
    with torch.no_grad():
        found = converted.module(x)
    for left, right in zip([found] if isinstance(found, Tensor) else found, answers(model, [x]), strict=True):
        np.testing.assert_allclose(left.numpy(), right, rtol=1e-5, atol=1e-5)
    return converted


@pytest.mark.parametrize(
    ("op_type", "attributes", "constants"),
    [
        ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, [RNG.random((4, 8, 3, 3))]),
        ("Conv", {"pads": [0, 1, 2, 0]}, [RNG.random((4, 8, 3, 3)), RNG.random((4,))]),
        ("ConvTranspose", {"pads": [0, 0, 1, 2], "strides": [2, 2]}, [RNG.random((8, 3, 4, 4))]),
        ("ConvTranspose", {"output_shape": [13, 12], "strides": [2, 2]}, [RNG.random((8, 3, 3, 3))]),
        ("AveragePool", {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}, []),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [0, 0, 1, 1], "count_include_pad": 1}, []),
        ("MaxPool", {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]}, []),
        ("DepthToSpace", {"blocksize": 2, "mode": "DCR"}, []),
        ("SpaceToDepth", {"blocksize": 2}, []),
        ("Resize", {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
         [None, np.array([1, 1, 1.5, 2])]),
        ("Slice", {}, [np.array([-1, 4]), np.array([-9, 1]), np.array([1, 3]), np.array([-2, -1])]),
        ("Gather", {"axis": 1}, [np.array([[0, -1], [3, 3]])]),
        ("Pad", {"mode": "edge"}, [np.array([0, 0, 1, 0, 0, 0, 0, 2])]),
        ("PRelu", {}, [RNG.random((8, 6, 1))]),
        ("LayerNormalization", {"axis": 2}, [RNG.random((6, 6)), RNG.random((6, 6))]),
        ("Tile", {}, [np.array([1, 2, 1, 1])]),
        ("ReduceL2", {"keepdims": 0}, [np.array([1])]),
        ("Max", {}, [RNG.random((8, 1, 1)), RNG.random((1,))]),
        ("Squeeze", {}, []),
    ],
)  # fmt: skip
def test_operators_as_other_exporters_write_them(
    op_type: str, attributes: Mapping[str, Any], constants: list[np.ndarray | None]
) -> None:
    typed = [a.astype(np.float32) if a is not None and a.dtype == np.float64 else a for a in constants]
    shape = (1, 8, 1, 6) if op_type == "Squeeze" else IMAGE
    one_operator(operator_model(op_type, shape, attributes, typed), shape)


@pytest.mark.parametrize(
    ("attributes", "extents"),
    [
        ({"mode": "cubic", "cubic_coeff_a": -0.5}, [None, np.array([1, 1, 2, 1.5], np.float32)]),
        ({"mode": "cubic", "coordinate_transformation_mode": "asymmetric"}, [None, None, np.array([1, 8, 9, 4])]),
        ({"mode": "linear", "coordinate_transformation_mode": "asymmetric"}, [None, np.array([1, 1, 2, 2], np.float32)]),
        ({"mode": "linear", "antialias": 1, "axes": [3, 2]}, [None, None, np.array([4, 3])]),
        ({"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "round_prefer_ceil"},
         [None, None, np.array([1, 8, 16, 14])]),
        ({"mode": "nearest", "nearest_mode": "floor"}, [None, np.array([1, 1, 1.5, 2.5], np.float32)]),
    ],
)  # fmt: skip
def test_resizes_that_torch_does_not_have(attributes: Mapping[str, Any], extents: list[np.ndarray | None]) -> None:
    converted = one_operator(operator_model("Resize", IMAGE, attributes, extents), IMAGE)
    assert "ResizedMap" in kinds(converted)
    x = torch.randn(IMAGE, generator=torch.Generator().manual_seed(3))
    back = export(converted.module, x)
    assert [node.op_type for node in back.graph] == ["Resize"]
    with torch.no_grad():
        np.testing.assert_allclose(answers(back, [x])[0], converted.module(x).numpy(), rtol=1e-5, atol=1e-5)


def test_a_resize_that_torch_does_not_have_lets_channels_be_dropped() -> None:
    resize = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    part = one_operator(operator_model("Resize", IMAGE, resize, [None, np.array([1, 1, 2, 2], np.float32)]), IMAGE)
    network = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), part.module, nn.Conv2d(8, 8, 3, padding=1))
    traced = capture(network, torch.randn(IMAGE))
    assert [role_of(node) for node in traced.graph.nodes].count(Role.CHANNELWISE) == 1


def test_a_sum_becomes_the_bias_and_equal_matrices_stay_one_module() -> None:
    weight, bias = (RNG.random(shape).astype(np.float32) for shape in ((6, 6), (6,)))
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"], name="/block/fc/MatMul"),
        onnx.helper.make_node("Add", ["b", "a"], ["c"], name="/block/fc/Add"),
        onnx.helper.make_node("MatMul", ["c", "w"], ["d"], name="/block/fc_1/MatMul"),
        onnx.helper.make_node("Add", ["b", "d"], ["y"], name="/block/fc_1/Add"),
    ]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, IMAGE) for name in "xy"]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in (("w", weight), ("b", bias))]
    graph = onnx.helper.make_graph(nodes, "one", ends[:1], ends[1:], constants)
    proto = onnx.shape_inference.infer_shapes(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    )
    converted = one_operator(ir.from_proto(proto), IMAGE)
    assert {*converted.module.state_dict()} == {"block.fc.weight", "block.fc.bias"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (operator_model("Swirl", IMAGE, domain="com.example"), r"com.example.Swirl 'it': an operator of a custom domain"),
        (operator_model("NonZero", IMAGE), "NonZero 'it': the size of its result depends on the image"),
        (operator_model("Resize", IMAGE, {"coordinate_transformation_mode": "tf_crop_and_resize"},
                        [np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32), np.array([1, 1, 2, 2], np.float32)]),
         "Resize 'it': torch has no resizing of 2 axes by tf_crop_and_resize"),
        (operator_model("QuantizeLinear", IMAGE, None, [np.array(0.1, np.float32), np.array(3, np.uint8)]),
         "before its quantisation"),
        (operator_model("Resize", IMAGE, {"mode": "nearest", "antialias": 1},
                        [None, None, np.array([1, 8, 3, 3], np.int64)]), "Resize 'it': ONNX Runtime does not compute it"),
        (operator_model("MaxUnpool", IMAGE, {"kernel_shape": [2, 2]}, [np.zeros(IMAGE, np.int64)]), "MaxUnpool 'it'"),
    ],
)  # fmt: skip
def test_refusals_name_node_and_operator(model: ir.Model, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        to_torch(model, "one.onnx")


def test_a_module_that_answers_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnstretch.frontends.torch_from_onnx import arithmetic

    monkeypatch.setitem(arithmetic._UNARY, "Sin", torch.cos)
    with pytest.raises(ModelError, match=r"differs from ONNX Runtime's by .* give the module itself"):
        to_torch(operator_model("Sin", IMAGE), "one.onnx")


def test_layers_of_one_matrix_keep_their_own_biases_and_factors() -> None:
    """The second input is a number, which has no images."""
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[1,6,4] x, float t) => (float[1,6,5] y) {
        a = MatMul(x, w)  b = Add(a, first)
        c = MatMul(x, w)  d = Add(c, second)
        e = Mul(d, t)
        y = Sub(b, e)
    }"""
    model = parser.parse_model(text)
    for name, shape in (("w", (4, 5)), ("first", (5,)), ("second", (5,))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(RNG.normal(size=shape).astype(np.float32), name))
    to_torch(ir.from_proto(model), "tied.onnx")  # compares with ONNX Runtime


def test_a_pad_of_nothing() -> None:
    to_torch(operator_model("Pad", IMAGE, None, [np.zeros(8, np.int64)]), "pad.onnx")


def test_files_with_open_sizes(tmp_path: Path) -> None:
    file = tmp_path / "open.onnx"
    model = export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.zeros(1, 3, 32, 32))
    model.graph.inputs[0].shape = ir.Shape(["n", 3, "h", "w"])
    model.metadata_props["author"] = "me"
    model.graph.outputs[0].shape = ir.Shape(["n", 4])
    save(model, file)
    assert load_network(str(file)).image.shape == (1, 3, 224, 224)
    found = load_network(str(file), 48)
    assert found.image.shape == (1, 3, 48, 48)
    assert found.interface.metadata["author"] == "me"


def test_several_inputs_are_named() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x + y, x - y

    x = torch.randn(2, 3)
    converted = to_torch(export(Two(), (x, x)), "two.onnx")
    assert len(converted.module(torch.ones(5, 3), torch.ones(5, 3))) == 2
    with pytest.raises(UsageError, match=r"reads 2 tensors \(x, y\)"):
        _ = converted.image


def test_modules_may_be_called_as_torch_calls_its_own_attributes() -> None:
    module = nn.Sequential()
    module.meta = nn.Linear(3, 4)
    x = torch.randn(2, 3)
    converted = to_torch(export(module, x), "meta.onnx")
    torch.testing.assert_close(converted.module(x), module(x))
    assert "meta_.weight" in converted.module.state_dict()


def test_half_precision_is_refused() -> None:
    model = export(nn.ReLU(), torch.zeros(1, 2, dtype=torch.float16))
    with pytest.raises(ModelError, match="FLOAT16; networks are branched and trained in float32"):
        to_torch(model, "half.onnx")


def test_where_the_images_lie_after_a_reshape() -> None:
    assert BatchAxis(0).reshaped((2, 56, 56, 96), (2 * 64, 49, 96), 2) == BatchAxis(0, 1, 64)
    assert BatchAxis(0, 1, 64).reshaped((2 * 64, 49, 96), (2, 8, 8, 7, 7, 96), 2) == BatchAxis(0)
    assert BatchAxis(1).reshaped((7, 2, 8), (7 * 2, 8), 2) == BatchAxis(0, 7, 1)
    assert BatchAxis(0).reshaped((6, 4), (2, 3, 4), 6) is None


def test_paths_are_valid_and_apart() -> None:
    paths = Paths()
    assert [paths.reserve(name, "conv") for name in ("a.b", "a.b", "a.b.c", "a", "forward", "meta.0", "class.1", "::", "")] == [
        "a.b", "a.b_2", "a.b_3.c", "a_2", "forward_", "meta_.0", "class_.1", "conv", "conv_2",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenetv3_large", "googlenet", "densenet121"])
def test_networks_of_the_zoo_keep_all_weights(name: str) -> None:
    torch.manual_seed(0)
    network = zoo.build(name).eval()
    converted = round_trip(network, (1, 3, 64, 64))
    assert {*network.state_dict()} == {*converted.module.state_dict()}
