"""Models come in whole or with one clear line."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper, parser
from torch import Tensor, nn

from nnstretch.errors import FileError, ModelError, NNStretchError, UsageError
from nnstretch.frontends import onnx_file
from nnstretch.frontends.input_shapes import parse_shapes
from nnstretch.frontends.modes import check_reads_images, run_once
from nnstretch.frontends.onnx_file import ModelWarning, load, save
from nnstretch.frontends.resolve import load_any, load_model, load_module, stated_image_size, stated_input_shape
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layers import GraphNode, graph_inputs, graph_outputs, layers
from nnstretch.graph.metadata import module_path
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from tests.kits.graphs.fused_graphs import run_layers

Check = Callable[..., list[GraphNode]]

CLASSIFIER = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,3,H,W] x) => (float[N,4] y) {
    t = Conv(x, w)
    u = Relu(t)
    p = GlobalAveragePool(u)
    s = Shape(p)
    n = Gather<axis=0>(s, first)
    m = Unsqueeze(n, axis)
    q = Concat<axis=0>(m, rest)
    y = Reshape(p, q)
}"""


def classifier(weight: np.ndarray | None = None) -> onnx.ModelProto:
    proto = parser.parse_model(CLASSIFIER)
    arrays = {
        "w": np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32) if weight is None else weight,
        "first": np.array(0),
        "axis": np.array([0]),
        "rest": np.array([-1]),
    }
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return proto


def write(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    return write(classifier(), tmp_path / "dynamic.onnx")


# -- ONNX files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["proto", "bytes"])
def test_a_model_in_memory_is_read_as_from_a_file(form: str, dynamic: Path) -> None:
    model: Any = classifier() if form == "proto" else dynamic.read_bytes()
    found = load_any(model, shapes={"x": (2, 3, 8, 8)})
    expected = load(dynamic, {"x": (2, 3, 8, 8)})
    assert ir.to_proto(found).SerializeToString() == ir.to_proto(expected).SerializeToString()
    with pytest.raises(ModelError, match=r"input 'x' has dynamic shape \[N,3,H,W\]"):
        load_any(model)


def test_a_model_in_memory_that_cannot_be_read_is_called_the_model() -> None:
    with pytest.raises(ModelError, match=r"^the model is not an ONNX file, or it is truncated"):
        load_any(b"no model")
    proto = classifier()
    external = proto.graph.initializer[0]
    external.ClearField("raw_data")
    external.data_location = onnx.TensorProto.EXTERNAL
    external.external_data.add(key="location", value="weights.bin")
    with pytest.raises(ModelError, match="the model keeps weights in other files; give the path of its file"):
        load_any(proto)


def test_dynamic_input_needs_a_shape(dynamic: Path) -> None:
    python = r"\(in Python shapes=\{'x': \(1, 3, 224, 224\)\}\)"
    with pytest.raises(
        ModelError,
        match=rf"input 'x' has dynamic shape \[N,3,H,W\]; give --image-size 224, or --shape x=1,3,224,224 {python}",
    ):
        load(dynamic)


@pytest.mark.parametrize("name", ["x", ""])
def test_dynamic_input_with_a_shape(dynamic: Path, name: str) -> None:
    model = load(dynamic, {name: (2, 3, 8, 7)})
    assert graph_inputs(model)[0][1].shape == (2, 3, 8, 7)
    fused = optimize(model)
    assert graph_outputs(fused)[0][1].shape == (2, 4)
    assert [node.layer.op for node in layers(fused)] == ["Conv", "GlobalPool", "Reshape"]
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 7)).astype(np.float32)
    (wanted,) = run_proto(onnx.load(dynamic), {"x": x})
    (result,) = run_layers(fused, {"x": x})
    assert relative_error(result, wanted) < 1e-5


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (1, 4, 8, 8)}, r"\[N,3,H,W\], which 1,4,8,8 contradicts"),
        ({"x": (1, 3, 8)}, "which 1,3,8 contradicts"),
        ({"image": (1, 3, 8, 8)}, "a shape is given for 'image', but the inputs are 'x'"),
        ({"x": (1, 3, 2, 8)}, "the image is smaller than the window of Conv"),
        ({"x": (1, 3, 1 << 31, 1 << 31)}, "fits no machine"),
    ],
)
def test_shapes_that_do_not_fit(dynamic: Path, shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(dynamic, shapes)


def test_inputs_and_outputs_may_lack_shapes(dynamic: Path) -> None:
    proto = onnx.load(dynamic)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.ClearField("shape")
    write(proto, dynamic)
    outside = dynamic.with_name("outside.onnx")
    onnx.save_model(proto, outside, save_as_external_data=True, location="weights.bin", size_threshold=16)
    for path in (dynamic, outside):
        with pytest.raises(ModelError, match="input 'x' has unknown shape; give --shape x=1,3,224,224"):
            load(path)
        assert graph_outputs(load(path, {"x": (2, 3, 8, 7)}))[0][1].shape == (2, 4)


def test_unnamed_shape_among_several_inputs(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,3] x, float[2,3] z) => (float[2,3] y) { y = Add(x, z) }"""
    path = write(parser.parse_model(text), tmp_path / "two.onnx")
    assert graph_inputs(load(path, {"": (2, 3)}))[0][1].shape == (2, 3)
    static = write(parser.parse_model(text.replace("N", "2")), tmp_path / "static.onnx")
    with pytest.raises(ModelError, match="without a name, but the inputs are 'x', 'z'"):
        load(static, {"": (2, 3)})


def test_parse_shapes() -> None:
    assert parse_shapes(["x=1,3,8,8", "/model/in:0=2", "a=b=7"]) == {
        "x": (1, 3, 8, 8),
        "/model/in:0": (2,),
        "a=b": (7,),
    }
    assert parse_shapes(["1,3,8,8"]) == {"": (1, 3, 8, 8)}


@pytest.mark.parametrize("text", ["x=1,N,8", "x=0,3", "x=-1", "x=1,,2", "x=1.5"])
def test_parse_shapes_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="is not understood"):
        parse_shapes([text])
    with pytest.raises(UsageError, match="two shapes"):
        parse_shapes(["x=1", "x=2"])


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        load(tmp_path / "none.onnx")
    with pytest.raises(FileError, match="is a folder; give an ONNX file"):
        load(tmp_path)
    if os.geteuid() != 0:
        locked = write(classifier(), tmp_path / "locked.onnx")
        locked.chmod(0)
        with pytest.raises(FileError, match="Permission denied"):
            load(locked)


@pytest.mark.parametrize(
    "content", [b"", b"hello, this is no model", b"\x89PNG\r\n\x1a\n" + bytes(64), bytes(100), b"\x08\x07"]
)
def test_files_that_are_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="ONNX") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@given(st.data())
@settings(max_examples=100)
def test_truncated_or_damaged_files_raise_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(classifier().SerializeToString())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("damaged") / "model.onnx"
    path.write_bytes(content)
    message = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            optimize(load(path, {"": (1, 3, 8, 8)}))
    except NNStretchError as error:
        message = str(error)
    assert "\n" not in message


def test_invalid_models(tmp_path: Path) -> None:
    cyclic = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Add(x, z) z = Relu(y) }"""
    )
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        load(write(cyclic, tmp_path / "cyclic.onnx"))
    idle = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => () { y = Relu(x) }""")
    with pytest.raises(ModelError, match="no outputs"):
        load(write(idle, tmp_path / "idle.onnx"))


def test_unknown_operators(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "%s": 1]> g (float[2] x) => (float[2] y) { y = %s (x) }"""
    unknown = write(parser.parse_model(text % ("my.domain", "my.domain.Frobnicate")), tmp_path / "unknown.onnx")
    with pytest.raises(ModelError, match=r"my\.domain\.Frobnicate, which neither nnstretch nor ONNX Runtime knows"):
        load(unknown)
    # ONNX Runtime's own operators run in the fallback.
    known = write(parser.parse_model(text % ("com.microsoft", "com.microsoft.QuickGelu")), tmp_path / "known.onnx")
    model = load(known)
    model.graph.outputs[0].shape = ir.Shape([2])
    x = np.array([1.0, -2.0], np.float32)
    (node,) = layers(optimize(model))
    assert node.layer.op == "onnx:com.microsoft/QuickGelu"
    np.testing.assert_array_equal(run_layers(optimize(model), {"x": x})[0], run_proto(onnx.load(known), {"x": x})[0])


def test_nan_in_weights_is_a_warning(tmp_path: Path) -> None:
    weight = np.zeros((4, 3, 3, 3), np.float32)
    weight[1, 2, 0, 1] = np.nan
    path = write(classifier(weight), tmp_path / "nan.onnx")
    with pytest.warns(ModelWarning, match="'w' holds NaN"):
        load(path, {"x": (1, 3, 8, 8)})
    with pytest.warns(ModelWarning, match="^the model: weight 'w' holds NaN"):
        load_any(path.read_bytes(), shapes={"x": (1, 3, 8, 8)})


class TestExternalData:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "model" / "external.onnx"
        path.parent.mkdir()
        onnx.save_model(classifier(), path, save_as_external_data=True, location="weights.bin", size_threshold=16)
        return path

    def test_is_read(self, path: Path) -> None:
        model = load(path, {"x": (1, 3, 8, 8)})
        x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
        (wanted,) = run_proto(classifier(), {"x": x})
        assert relative_error(run_layers(optimize(model), {"x": x})[0], wanted) < 1e-5

    def test_missing(self, path: Path) -> None:
        (path.parent / "weights.bin").unlink()
        with pytest.raises(FileError, match=r"weights\.bin: No such file"):
            load(path, {"x": (1, 3, 8, 8)})

    def test_truncated(self, path: Path) -> None:
        os.truncate(path.parent / "weights.bin", 100)
        with pytest.raises(ModelError, match=r"has 100 bytes, .* wants 432"):
            load(path, {"x": (1, 3, 8, 8)})

    @pytest.mark.parametrize("offset", ["-1", "x"])
    def test_at_no_place(self, path: Path, offset: str) -> None:
        proto = onnx.load(path, load_external_data=False)
        for entry in proto.graph.initializer[0].external_data:
            if entry.key == "offset":
                entry.value = offset
        with pytest.raises(ModelError, match="no numbers for the place of 'w'"):
            load(write(proto, path), {"x": (1, 3, 8, 8)})

    def test_of_a_function_outside_of_the_folder(self, path: Path) -> None:
        tensor = onnx.TensorProto(name="t", data_type=1, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="../outside.bin")
        constant = helper.make_node("Constant", [], ["c"], value=tensor)
        proto = onnx.load(path, load_external_data=False)
        imports = [helper.make_opsetid("", 17)]
        proto.functions.append(helper.make_function("own", "Two", [], ["c"], [constant], imports))
        with pytest.raises(ModelError, match="outside of its folder"):
            load(write(proto, path), {"x": (1, 3, 8, 8)})

    @pytest.mark.parametrize("location", ["../outside.bin", "/etc/passwd", "link.bin", "", "w\0x"])
    def test_outside_of_the_folder(self, path: Path, location: str) -> None:
        outside = path.parent.parent / "outside.bin"
        (path.parent / "weights.bin").rename(outside)
        (path.parent / "link.bin").symlink_to(outside)
        proto = onnx.load(path, load_external_data=False)
        for entry in proto.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = location
        write(proto, path)
        with pytest.raises(ModelError, match="outside of its folder"):
            load(path, {"x": (1, 3, 8, 8)})


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_old_operator_sets(tmp_path: Path, check: Check, opset: int) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["t"]),
        helper.make_node("Relu", ["t"], ["r"]),
        helper.make_node("Dropout", ["r"], ["d"]),
        helper.make_node("ReduceMean", ["d"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("Softmax", ["m"], ["y"], axis=1),
    ]
    if opset < 11:
        nodes[1] = helper.make_node("Clip", ["t"], ["r"], min=0.0, max=6.0)
    graph = helper.make_graph(
        nodes,
        "old",
        [helper.make_tensor_value_info("x", 1, (1, 3, 8, 8))],
        [helper.make_tensor_value_info("y", 1, (1, 4))],
        [numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32), "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    model = load(write(proto, tmp_path / "old.onnx"))
    assert [node.layer.op for node in check(model)] == ["Conv", "GlobalPool", "Reshape", "Softmax"]
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    assert relative_error(run_layers(optimize(model), {"x": x})[0], run_proto(proto, {"x": x})[0]) < 1e-5


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("operator", "opset", "factor"),
    [("Upsample", 9, 2.0), ("Upsample", 9, 2.5), ("Resize", 10, 3.0), ("Resize", 10, 0.5), ("Resize", 10, 0.6)],
)
def test_old_resizes_keep_their_coordinates(
    tmp_path: Path, mode: str, operator: str, opset: int, factor: float
) -> None:
    size = int(7 * factor)
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "s"], ["y"], mode=mode)],
        "old",
        [helper.make_tensor_value_info("x", 1, (1, 2, 7, 7))],
        [helper.make_tensor_value_info("y", 1, (1, 2, size, size))],
        [numpy_helper.from_array(np.array([1, 1, factor, factor], np.float32), "s")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=5)
    fused = optimize(load(write(proto, tmp_path / "old.onnx")))
    assert [node.layer.op for node in layers(fused)] == ["Resize"]
    x = np.random.default_rng(1).standard_normal((1, 2, 7, 7)).astype(np.float32)
    assert relative_error(run_layers(fused, {"x": x})[0], run_proto(proto, {"x": x})[0]) < 1e-6


def test_initializers_among_the_inputs_are_no_inputs(tmp_path: Path) -> None:
    proto = classifier()
    proto.graph.input.append(helper.make_tensor_value_info("w", 1, (4, 3, 3, 3)))
    model = load(write(proto, tmp_path / "model.onnx"), {"": (1, 3, 8, 8)})
    assert [name for name, _ in graph_inputs(model)] == ["x"]
    assert [node.layer.op for node in layers(optimize(model))] == ["Conv", "GlobalPool", "Reshape"]


def test_save_is_what_was_loaded(tmp_path: Path, dynamic: Path) -> None:
    model = load(dynamic, {"x": (1, 3, 8, 8)})
    save(model, tmp_path / "again.onnx")
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    (wanted,) = run_proto(onnx.load(dynamic), {"x": x})
    np.testing.assert_array_equal(run_proto(onnx.load(tmp_path / "again.onnx"), {"x": x})[0], wanted)
    with pytest.raises(FileError, match="cannot write"):
        save(model, tmp_path / "no" / "folder" / "model.onnx")


def test_weights_that_no_file_holds_are_beside_it(
    tmp_path: Path, exported: ir.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "LARGEST_WEIGHTS", 1 << 10)
    large = np.arange(1 << 12, dtype=np.float32)
    weight = ir.Value(name="large", const_value=ir.Tensor(large, name="large"))
    model = exported.clone()
    model.graph.register_initializer(weight)
    path = tmp_path / "model.onnx"
    for _ in range(2):  # the second time both files are replaced
        save(model, path)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
        assert path.stat().st_size < 1 << 14 <= (tmp_path / "model.onnx.data").stat().st_size
        assert np.array_equal(load(path).graph.initializers["large"].const_value.numpy(), large)
        image = np.ones((2, 3, 9, 9), np.float32)
        found, wanted = run_file(path, {"image": image}), run_proto(ir.to_proto(exported), {"image": image})
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
    with pytest.raises(FileError, match="cannot write"):
        save(model, tmp_path / "no" / "model.onnx")


def run_file(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, feeds)
    return found


# -- torch modules -----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.gate = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.gate(self.norm(self.conv(x)) + x)
        return result


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2)
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.drop = nn.Dropout()
        self.head = nn.Linear(4, 5)

    def forward(self, image: Tensor) -> Tensor:
        features = self.blocks(torch.nn.functional.hardswish(self.stem(image)))
        result: Tensor = self.head(self.drop(features.mean((2, 3))))
        return result


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    module = Network()
    # Statistics that a batch normalisation cannot hide behind.
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.uniform_(-1, 1)
            part.running_var.uniform_(0.5, 2)
    return module


@pytest.fixture(scope="module")
def exported(network: Network) -> ir.Model:
    return export(network, torch.zeros(2, 3, 9, 9))


def test_export_computes_what_torch_does(network: Network, exported: ir.Model) -> None:
    x = torch.randn((2, 3, 9, 9), generator=torch.Generator().manual_seed(0))
    (result,) = run_layers(optimize(exported), {"image": x.numpy()})
    with torch.no_grad():
        reference = network.eval()(x).numpy()
    assert relative_error(result, reference) < 1e-5


def test_module_paths_survive_fusion(exported: ir.Model) -> None:
    nodes = layers(optimize(exported))
    assert [(node.layer.op, node.path) for node in nodes] == [
        ("Conv", "stem"),
        ("Conv", "blocks.0.conv"),
        ("Conv", "blocks.1.conv"),
        ("GlobalPool", ""),
        ("Reshape", ""),
        ("Dense", "head"),
    ]
    assert len({node.layer.name for node in nodes}) == len(nodes)


def test_saved_export_is_plain_onnx_with_paths(tmp_path: Path, exported: ir.Model) -> None:
    path = tmp_path / "network.onnx"
    save(exported, path)
    proto = onnx.load(path)
    assert {node.domain for node in proto.graph.node} == {""}
    # Nothing of this machine goes into the file.
    assert str(Path(__file__).parent).encode() not in path.read_bytes()
    again = load(path)
    assert [module_path(node) for node in again.graph if node.op_type == "Conv"] == [
        "stem",
        "blocks.0.conv",
        "blocks.1.conv",
    ]
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 9)).astype(np.float32)
    (wanted,) = run_proto(proto, {"image": x})
    assert relative_error(run_layers(optimize(again), {"image": x})[0], wanted) < 1e-5


def test_export_leaves_training_flags(network: Network, capfd: pytest.CaptureFixture[str]) -> None:
    network.train()
    network.blocks[0].norm.eval()
    model = export(network, (torch.zeros(1, 3, 9, 9),), input_names=["a"], output_names=["b"])
    assert network.training
    assert network.blocks[1].norm.training
    assert not network.blocks[0].norm.training
    assert [name for name, _ in graph_inputs(model)] == ["a"]
    assert [name for name, _ in graph_outputs(model)] == ["b"]
    assert not any(node.op_type == "Dropout" for node in model.graph)
    assert capfd.readouterr() == ("", "")


class DataDependent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.sum()) > 0 else x


class WrongShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x)
        return result


@pytest.mark.parametrize("module", [DataDependent(), WrongShape()])
def test_export_failure_is_one_line(module: nn.Module, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=f"{type(module).__name__} cannot be exported") as caught:
        export(module, torch.ones(2, 3))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_single_output_is_called_y(tmp_path: Path) -> None:
    def ends(module: nn.Module) -> list[str | None]:
        return [value.name for value in export(module, torch.ones(2, 3)).graph.outputs]

    assert ends(nn.Linear(3, 2)) == ["y"]
    assert ends(nn.Identity()) == ["input"]  # the input itself


# -- names -------------------------------------------------------------------------------------------------------------


def test_load_model_by_zoo_name() -> None:
    model = load_model("squeezenet1_1", {"": (2, 3, 64, 64)})
    assert [kind.shape for _, kind in graph_inputs(model) + graph_outputs(model)] == [(2, 3, 64, 64), (2, 1000)]


def test_load_model_by_path(dynamic: Path) -> None:
    assert graph_inputs(load_model(str(dynamic), {"x": (1, 3, 8, 8)}))[0][0] == "x"


FACTORIES = """
import torch
from torch import nn

def plain():
    return nn.Conv2d(3, 2, 3)

def with_input():
    return nn.Linear(4, 2), torch.zeros(3, 4)

def wants(argument):
    return argument

def grey():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 4, 3), nn.Conv2d(4, 2, 3))


def late():
    return nn.Conv2d(16, 8, 3)


def sized():
    return nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 48, 48)


def number():
    return 7


def fails():
    return number() / 0


made = plain()
"""


class _Pair(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right


@pytest.mark.parametrize(
    ("module", "example", "words"),
    [
        (_Pair(), torch.zeros(1, 3, 8, 8), "'right'"),
        (_Pair(), (torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8)), "tuple of 2"),
        (nn.ReLU(), [torch.zeros(1, 3, 8, 8)], "list of 1"),
    ],
)
def test_modules_that_do_not_read_images_alone_are_refused(module: nn.Module, example: object, words: str) -> None:
    with pytest.raises(ModelError, match=f"pair.py:make.*{words}.*one input, a tensor of images"):
        check_reads_images(module, example, "pair.py:make")
    check_reads_images(nn.ReLU(), torch.zeros(1, 3, 8, 8), "pair.py:make")


def test_load_by_factory(tmp_path: Path) -> None:
    file = tmp_path / "my_networks.py"
    file.write_text(FACTORIES)
    module, example = load_module(f"{file}:plain")
    assert isinstance(module, nn.Conv2d)
    assert example.shape == (1, 3, 224, 224)
    assert load_module(f"{file}:grey")[1].shape == (1, 1, 224, 224)
    assert load_module(f"{file}:late")[1].shape == (1, 3, 224, 224)  # no convolution reads an image
    assert graph_outputs(load_model(f"{file}:with_input"))[0][1].shape == (3, 2)
    assert stated_image_size(stated_input_shape(f"{file}:sized")) == 48
    for unsized in (f"{file}:plain", f"{file}:with_input", "resnet18"):
        assert stated_image_size(stated_input_shape(unsized)) is None
    for spec, message in {
        f"{file}:missing": "has no function 'missing'",
        f"{file}:made": "made is a module; write FILE.py:FACTORY with a function that returns it",
        f"{file}:wants": "cannot be called without arguments",
        f"{file}:number": "returned int",
        f"{file}:fails": "fails in line 31 with ZeroDivisionError: division by zero; mend it there",
        str(file): "does not say which function",
    }.items():
        with pytest.raises(ModelError, match=message):
            load_module(spec)
    with pytest.raises(FileError, match="no such file"):
        load_module(f"{tmp_path}/none.py:plain")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ModelError, match="nothing_of_that_name"):
        load_module(f"{tmp_path}/broken.py:plain")


def test_unknown_names(dynamic: Path) -> None:
    with pytest.raises(ModelError, match="resnet50"):
        load_model("resnet5O")
    with pytest.raises(FileError, match="No such file"):
        load_model("no/such/file.onnx")


def test_onnx_files_need_no_torch(dynamic: Path) -> None:
    code = f"""
import sys
from nnstretch.frontends.resolve import load_model
from nnstretch.passes import optimize
optimize(load_model({str(dynamic)!r}, {{"x": (1, 3, 8, 8)}}))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_network_that_does_not_run_is_refused_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """Modules that torch.fx has made print one."""
    with pytest.raises(ModelError, match=r"does not run on an input of shape \(1, 3, 8, 8\)"):
        run_once(torch.fx.symbolic_trace(lambda images: images.reshape(7)), torch.zeros(1, 3, 8, 8))
    assert capfd.readouterr().err == ""


def test_a_batch_beside_an_input_that_is_a_number(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[N,3,8,8] x, float t) => (float[N,3,8,8] y) { y = Mul(x, t) }"""
    onnx.save(parser.parse_model(text), tmp_path / "scaled.onnx")
    inputs = load_model(str(tmp_path / "scaled.onnx"), batch=4).graph.inputs
    assert [tuple(value.shape or ()) for value in inputs] == [(4, 3, 8, 8), ()]
