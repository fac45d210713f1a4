"""Weights that are read past the message are the message's, and what is wrong with a file is found all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from nnstretch.errors import ModelError, NNStretchError
from nnstretch.frontends import onnx_message
from nnstretch.frontends.onnx_file import load
from nnstretch.frontends.onnx_message import LARGE, read_message


def model(*initializers: TensorProto, opset: int = 17) -> onnx.ModelProto:
    """A network that adds up all initializers' elements, so that types and shapes are free."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    nodes += [
        helper.make_node("Identity", [tensor.name], [f"{tensor.name}_{i}"]) for i, tensor in enumerate(initializers)
    ]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,)) for name in "xy"]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def write(content: bytes, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


def weight(name: str, dtype: str = "float32", size: int = LARGE) -> TensorProto:
    values = np.random.default_rng(0).integers(0, 100, (2, size // 2)).astype(dtype)
    return numpy_helper.from_array(values, name)


@pytest.mark.parametrize("opset", [12, 17])
def test_large_weights_are_no_part_of_the_message(tmp_path: Path, opset: int) -> None:
    tensors = [weight(dtype, dtype) for dtype in ("float32", "float16", "int8", "int64", "bool")]
    small = weight("small", size=2)
    path = write(model(*tensors, small, opset=opset).SerializeToString(), tmp_path)
    message = read_message(path)
    assert message.proto.ByteSize() < 2000
    assert set(message.weights) == {tensor.name for tensor in tensors}
    initializers = load(path).graph.initializers
    for tensor in [*tensors, small]:
        value = initializers[tensor.name].const_value
        assert value is not None
        found, wanted = value.numpy(), numpy_helper.to_array(tensor)
        assert found.dtype == (np.float32 if wanted.dtype == np.float16 else wanted.dtype)  # is computed in float32
        np.testing.assert_array_equal(found, wanted)


def altered(**changes: object) -> TensorProto:
    tensor = weight("w")
    for field, value in changes.items():
        tensor.ClearField(field)
        if isinstance(value, list):
            getattr(tensor, field).extend(value)
        elif value is not None:
            setattr(tensor, field, value)
    return tensor


@pytest.mark.parametrize(
    "tensors",
    [
        [altered(dims=[LARGE + 1])],
        [altered(dims=[LARGE - 1])],
        [altered(dims=[-1])],
        [altered(dims=[-2, -LARGE // 2])],
        [altered(dims=[2**62, 2**62])],
        [altered(dims=[0])],
        [altered(data_type=None)],
        [altered(data_type=TensorProto.STRING)],
        [altered(data_type=99)],
        [altered(float_data=[1.0])],
        [altered(data_location=TensorProto.EXTERNAL)],
        [altered(name=None)],
        [weight("w"), weight("w")],
    ],
)
def test_weights_that_are_not_what_they_say(tmp_path: Path, tensors: list[TensorProto]) -> None:
    path = write(model(*tensors).SerializeToString(), tmp_path)
    with pytest.raises(ModelError, match=r"model\.onnx") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("last", [np.full(LARGE, 3, np.float32).tobytes(), b"", b"12"])
def test_of_data_that_are_there_twice_the_last_count(tmp_path: Path, last: bytes) -> None:
    """Fields of protocol buffers may come again, and so may messages, which then are put together."""
    tensor = weight("w").SerializeToString() + TensorProto(raw_data=last).SerializeToString()
    first = model().SerializeToString()
    graph = b"\x2a" + onnx_message._encoded(len(tensor)) + tensor
    path = write(first + b"\x3a" + onnx_message._encoded(len(graph)) + graph, tmp_path)
    if len(last) < LARGE:
        with pytest.raises(ModelError, match=r"TensorProto \(tensor name: w\)"):
            read_message(path)
    else:
        np.testing.assert_array_equal(read_message(path).weights["w"], np.full((2, LARGE // 2), 3, np.float32))


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_files_are_read_as_if_all_were_in_the_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(model(weight("a", size=8), weight("b", "int8", size=80)).SerializeToString())
    for _ in range(data.draw(st.integers(0, 2))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(1, len(content)) | st.just(len(content)))]
    path = write(bytes(content), tmp_path_factory.mktemp("damaged"))
    answers: list[object] = []
    for large in (1, 1 << 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(onnx_message, "LARGE", large)
            try:
                message = read_message(path)
            except NNStretchError as error:
                answers.append(type(error))
                continue
        for tensor in message.proto.graph.initializer:
            if tensor.name in message.weights:
                tensor.raw_data = message.weights[tensor.name].tobytes()
        answers.append(message.proto.SerializeToString(deterministic=True))
    assert answers[0] == answers[1]


def test_nodes_in_any_order_are_sorted_and_cycles_are_refused(tmp_path: Path) -> None:
    """A branch of a control-flow operator reads what a later node of the graph makes."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] p) { p = Neg (b) }, else_branch = d () => (float[2] q) { q = Neg (x) }
            >
            b = Relu (a)
            a = Add (x, x)
        }"""
    network = onnx.parser.parse_model(text)
    loaded = load(write(network.SerializeToString(), tmp_path))
    assert [node.op_type for node in loaded.graph] == ["Add", "Relu", "If"]
    network.graph.node[2].input[1] = "b"
    with pytest.raises(ModelError, match="topologically sorted"):
        load(write(network.SerializeToString(), tmp_path))
