"""Random graphs: fused, they compute what ONNX Runtime does from the originals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper, numpy_helper

from nnstretch.graph.layers import GraphNode
from nnstretch.passes import optimize

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


@given(model=networks())
@settings(max_examples=50, deadline=None)
def test_a_fused_graph_stays_as_it_is(model: ir.Model) -> None:
    fused = optimize(model)
    once, twice = (ir.to_proto(graph).SerializeToString(deterministic=True) for graph in (fused, optimize(fused)))
    assert once == twice
