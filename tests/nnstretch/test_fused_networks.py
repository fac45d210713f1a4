"""Random graphs and the networks of the zoo: fused, they compute what ONNX Runtime does from the originals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper, numpy_helper

from nnstretch import zoo
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layers import GraphNode, layers
from nnstretch.graph.passes import optimize

Check = Callable[..., list[GraphNode]]


class GraphBuilder:
    """A random image network, node by node."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.shape = (
            draw(st.integers(1, 2)),
            draw(st.sampled_from([1, 2, 4, 6])),
            draw(st.integers(4, 9)),
            draw(st.integers(4, 9)),
        )
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.values: dict[str, tuple[int, ...]] = {"x": self.shape}
        self.generator = np.random.default_rng(draw(st.integers(0, 1000)))

    def pick(self) -> str:
        return self.draw(st.sampled_from(sorted(self.values)))

    def weight(self, *shape: int, positive: bool = False) -> str:
        name = f"w/{len(self.weights)}"
        array = self.generator.standard_normal(shape).astype(np.float32)
        self.weights[name] = np.abs(array) + np.float32(0.3) if positive else array
        return name

    def add(self, op_type: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> None:
        name = f"/net/{op_type}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        self.values[name] = shape

    def conv(self) -> None:
        source = self.pick()
        n, c, h, w = self.values[source]
        groups = self.draw(st.sampled_from([g for g in (1, 2, c) if c % g == 0]))
        outputs = groups * self.draw(st.integers(1, 3))
        kernel = [self.draw(st.integers(1, 3)) for _ in range(2)]
        dilations = [self.draw(st.integers(1, 2)) for _ in range(2)]
        strides = [self.draw(st.integers(1, 2)) for _ in range(2)]
        pads = [self.draw(st.integers(0, 2)) for _ in range(4)]
        size = [
            (length + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
            for axis, length in enumerate((h, w))
        ]
        if min(size) < 1:
            return
        weights = [self.weight(outputs, c // groups, *kernel)] + [self.weight(outputs)] * self.draw(st.integers(0, 1))
        self.add(
            "Conv",
            [source, *weights],
            (n, outputs, *size),
            group=groups,
            dilations=dilations,
            strides=strides,
            pads=pads,
        )

    def norm(self) -> None:
        source = self.pick()
        c = self.values[source][1]
        parameters = [self.weight(c), self.weight(c), self.weight(c), self.weight(c, positive=True)]
        self.add("BatchNormalization", [source, *parameters], self.values[source])

    def activation(self) -> None:
        source = self.pick()
        op_type = self.draw(
            st.sampled_from(["Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "HardSigmoid", "Identity"])
        )
        self.add(op_type, [source], self.values[source])

    def silu(self) -> None:
        source = self.pick()
        self.add("Sigmoid", [source], self.values[source])
        self.add("Mul", [source, f"/net/Sigmoid.{len(self.nodes) - 1}"], self.values[source])

    def binary(self) -> None:
        left = self.pick()
        shape = self.values[left]
        fitting = [name for name, other in self.values.items() if other in (shape, (*shape[:2], 1, 1))]
        right = self.draw(st.sampled_from(sorted(fitting)))
        pair = [left, right] if self.draw(st.booleans()) else [right, left]
        self.add(self.draw(st.sampled_from(["Add", "Sub", "Mul"])), pair, shape)

    def constant(self) -> None:
        source = self.pick()
        n, c, h, w = self.values[source]
        shape = self.draw(st.sampled_from([(), (1,), (c, 1, 1), (1, c, 1, 1), (h, w), (1, 1, 1, w), (n, c, h, w)]))
        operand = self.weight(*shape, positive=True)
        pair = [source, operand] if self.draw(st.booleans()) else [operand, source]
        self.add(self.draw(st.sampled_from(["Add", "Sub", "Mul", "Div"])), pair, self.values[source])

    def pool(self) -> None:
        source = self.pick()
        n, c, h, w = self.values[source]
        kernel = [self.draw(st.integers(1, min(3, length))) for length in (h, w)]
        strides = [self.draw(st.integers(1, 2)) for _ in range(2)]
        pads = [self.draw(st.integers(0, kernel[axis % 2] - 1)) for axis in range(4)]
        size = [(length + pads[a] + pads[a + 2] - kernel[a]) // strides[a] + 1 for a, length in enumerate((h, w))]
        op_type = self.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        more = {"count_include_pad": self.draw(st.integers(0, 1))} if op_type == "AveragePool" else {}
        self.add(op_type, [source], (n, c, *size), kernel_shape=kernel, strides=strides, pads=pads, **more)

    def pool_all(self) -> None:
        source = self.pick()
        n, c, *_ = self.values[source]
        self.add(self.draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool"])), [source], (n, c, 1, 1))

    def pad(self) -> None:
        source = self.pick()
        n, c, h, w = self.values[source]
        pads = [self.draw(st.integers(0, 1)) for _ in range(4)]
        name = f"w/{len(self.weights)}"
        self.weights[name] = np.array([0, 0, *pads[:2], 0, 0, *pads[2:]])
        self.add("Pad", [source, name], (n, c, h + pads[0] + pads[2], w + pads[1] + pads[3]))

    def join(self) -> None:
        left = self.pick()
        n, c, h, w = self.values[left]
        fitting = [name for name, (m, _, i, j) in self.values.items() if (m, i, j) == (n, h, w)]
        right = self.draw(st.sampled_from(sorted(fitting)))
        self.add("Concat", [left, right], (n, c + self.values[right][1], h, w), axis=-3)


@st.composite
def networks(draw: st.DrawFn) -> ir.Model:
    """Random image networks; a quarter of what they compute are outputs."""
    builder = GraphBuilder(draw)
    steps = [
        builder.conv, builder.conv, builder.norm, builder.activation, builder.silu, builder.binary, builder.constant,
        builder.pool, builder.pool_all, builder.pad, builder.join,
    ]  # fmt: skip
    for _ in range(draw(st.integers(1, 10))):
        draw(st.sampled_from(steps))()
    names = [name for name in builder.values if name != "x"] or ["x"]
    outputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=max(1, len(names) // 4), unique=True))
    if outputs == ["x"]:
        builder.add("Relu", ["x"], builder.shape)
        outputs = ["/net/Relu.0"]
    graph = helper.make_graph(
        builder.nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, builder.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, builder.values[name]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in builder.weights.items()],
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


@given(model=networks())
@settings(max_examples=150)
def test_random_networks_compute_the_same(check: Check, model: ir.Model) -> None:
    nodes = check(model, tolerance=1e-4)
    left = {node.layer.op for node in nodes if node.layer.op.startswith("onnx:")}
    # What the table has no layer for: a pad that no window takes, a constant divided or diminished by x.
    assert left <= {"onnx:Pad", "onnx:Div", "onnx:Sub"}


_COMPARED_MACS = 2e9
ZOO_LAYERS = {
    "resnet18": {"Conv": 20, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnet34": {"Conv": 36, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnet50": {"Conv": 53, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "vgg16": {"Conv": 13, "MaxPool": 5, "Reshape": 1, "Dense": 3},
    "mobilenetv2": {"Conv": 52, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "regnet_x_1_6gf": {"Conv": 59, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "efficientnet_lite4": {"Conv": 91, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "squeezenet1_0": {"Conv": 26, "MaxPool": 3, "Concat": 8, "GlobalPool": 1, "Reshape": 1},
    "squeezenet1_1": {"Conv": 26, "MaxPool": 3, "Concat": 8, "GlobalPool": 1, "Reshape": 1},
    "densenet121": {
        "Conv": 120, "MaxPool": 1, "Affine": 62, "Concat": 58, "AveragePool": 3, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "googlenet": {"Conv": 57, "MaxPool": 13, "Concat": 9, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnet101": {"Conv": 104, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnet152": {"Conv": 155, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "vgg11": {"Conv": 8, "MaxPool": 5, "Reshape": 1, "Dense": 3},
    "vgg13": {"Conv": 10, "MaxPool": 5, "Reshape": 1, "Dense": 3},
    "vgg19": {"Conv": 16, "MaxPool": 5, "Reshape": 1, "Dense": 3},
    "densenet161": {
        "Conv": 160, "MaxPool": 1, "Affine": 82, "Concat": 78, "AveragePool": 3, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "densenet169": {
        "Conv": 168, "MaxPool": 1, "Affine": 86, "Concat": 82, "AveragePool": 3, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "densenet201": {
        "Conv": 200, "MaxPool": 1, "Affine": 102, "Concat": 98, "AveragePool": 3, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "inception_v3": {
        "Conv": 94, "MaxPool": 4, "AveragePool": 9, "Concat": 15, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "ssd_resnet50": {
        "Conv": 73, "MaxPool": 1, "Transpose": 10, "Reshape": 14, "Concat": 3, "Softmax": 1,
        "Slice": 2, "Mul": 2, "Affine": 1, "Add": 2, "Sub": 1,
    },
    "mobilenetv3_small": {"Conv": 52, "GlobalPool": 10, "Mul": 9, "Reshape": 1, "Dense": 2},
    "mobilenetv3_large": {"Conv": 62, "GlobalPool": 9, "Mul": 8, "Reshape": 1, "Dense": 2},
    "efficientnet_b5": {"Conv": 194, "GlobalPool": 40, "Mul": 39, "Reshape": 1, "Dense": 1},
    "regnet_x_4gf": {"Conv": 74, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnetxy": {"Conv": 53, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
}  # fmt: skip


def test_every_network_of_the_zoo_is_looked_at() -> None:
    assert set(ZOO_LAYERS) == set(zoo.names())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("resnet18", "squeezenet1_1") else pytest.mark.slow) for n in ZOO_LAYERS]
)
def test_zoo(check: Check, name: str) -> None:
    model = export(zoo.build(name), zoo.example_input(name))
    # Numbers of the large ones are compared where they run on kernels, which is much faster than layer by layer.
    nodes = check(model) if zoo.entry(name).macs < _COMPARED_MACS else layers(optimize(model))
    assert Counter(node.layer.op for node in nodes) == ZOO_LAYERS[name]
    assert sum(node.layer.macs for node in nodes) == zoo.entry(name).macs
    # No activation and no sum is a layer where a convolution could have taken it.
    assert {str(node.layer.activation) for node in nodes if node.layer.op == "Affine"} <= {"relu", "exp"}
    assert not any(node.layer.op == "Activation" for node in nodes)
    assert all(node.path for node in nodes if node.layer.op in ("Conv", "Dense"))
