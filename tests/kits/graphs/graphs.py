"""Random small networks for tests of planning and execution."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from nnstretch.graph.metadata import PLACEMENT_KEY


class RandomNetwork:
    """A random DAG of convolutions, sums, products, pools and concats over N,C,H,W tensors of equal planes.

    Nodes are placed on one of `processors` (metadata) or left to the planner. Outputs are all tensors without consumers, with
    `kept` that number of other tensors, and with `flat` some tensors reshaped to rows. Planes have sides of `size` or random
    ones; an OpenCL driver compiles kernels for each size.
    """

    def __init__(
        self,
        seed: int,
        processors: int,
        nodes: int = 12,
        channels: tuple[int, ...] = (16, 32),
        *,
        kept: int = 0,
        flat: bool = False,
        size: int | None = None,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._processors = processors
        self._channels = channels
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._tensors: dict[str, int] = {"x": channels[0]}
        drawn = int(self._rng.integers(3, 9))
        self._size = size or drawn
        for i in range(nodes):
            self._add_node(i)
        rows = self._add_rows() if flat else []
        used = {name for node in self._nodes for name in node.input}
        ends = [name for name in self._tensors if name not in used and name != "x"]
        if kept:
            inner = [name for name in self._tensors if name not in ends and name != "x"]
            ends += list(self._rng.permutation(inner)[:kept])
        shapes = {name: (1, self._tensors[name], self._size, self._size) for name in ends}
        self.model = self._model(shapes | dict(rows))
        self.input = self._rng.standard_normal((1, channels[0], self._size, self._size)).astype(np.float32)

    def expected(self) -> list[np.ndarray]:
        """ONNX Runtime's answer."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(self.model.SerializeToString(), options)
        return [np.asarray(y) for y in session.run(None, {"x": self.input})]

    def graph(self) -> ir.Model:
        """The network as an onnx_ir model."""
        return ir.from_proto(self.model)

    def _pick(self, channels: int | None = None) -> str:
        names = [n for n, c in self._tensors.items() if channels is None or c == channels]
        recent = names[-4:]
        return str(self._rng.choice(recent))

    def _add_node(self, number: int) -> None:
        kind = self._rng.choice(["Conv", "Conv", "Add", "Mul", "Concat", "MaxPool", "Relu"])
        first = self._pick()
        channels = self._tensors[first]
        output = f"t{number}"
        if kind == "Conv":
            channels = int(self._rng.choice(self._channels))
            node = self._convolution(first, self._tensors[first], channels, output)
        elif kind in ("Add", "Mul"):
            node = helper.make_node(kind, [first, self._pick(channels)], [output])
        elif kind == "Concat":
            second = self._pick()
            channels += self._tensors[second]
            if channels > 128:
                channels = self._tensors[first]
                node = helper.make_node("Relu", [first], [output])
            else:
                node = helper.make_node("Concat", [first, second], [output], axis=1)
        elif kind == "MaxPool":
            node = helper.make_node("MaxPool", [first], [output], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        else:
            node = helper.make_node("Relu", [first], [output])
        node.name = f"n{number}"
        self._place(node)
        self._tensors[output] = channels

    def _place(self, node: onnx.NodeProto) -> None:
        """Adds a node, on a random processor if there are any."""
        if self._processors and self._rng.random() < 0.8:
            entry = node.metadata_props.add()
            entry.key, entry.value = PLACEMENT_KEY, str(self._rng.integers(self._processors))
        self._nodes.append(node)

    def _add_rows(self) -> list[tuple[str, tuple[int, int]]]:
        """Reshapes some tensors to rows and concatenates them; returns two outputs of these."""
        self._weights.append(numpy_helper.from_array(np.array([1, -1]), "row_shape"))
        rows: dict[str, int] = {}
        for name in map(str, self._rng.choice([*self._tensors], 3)):
            row = f"row{len(rows)}"
            rows[row] = self._tensors[name] * self._size**2
            self._place(helper.make_node("Reshape", [name, "row_shape"], [row], name=row))
        self._place(helper.make_node("Concat", [*rows], ["rows"], axis=1, name="rows"))
        self._place(helper.make_node("Relu", ["rows"], ["positive_rows"], name="positive_rows"))
        return [("positive_rows", (1, sum(rows.values()))), ("row0", (1, rows["row0"]))]

    def _convolution(self, source: str, channels: int, filters: int, output: str) -> onnx.NodeProto:
        size = int(self._rng.choice([1, 3]))
        weight = self._rng.standard_normal((filters, channels, size, size)) / np.sqrt(channels * size * size)
        name = f"{output}_weight"
        self._weights.append(numpy_helper.from_array(weight.astype(np.float32), name))
        pads = [size // 2] * 4
        return helper.make_node("Conv", [source, name], [output], kernel_shape=[size, size], pads=pads)

    def _model(self, outputs: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
        shape = [1, self._channels[0], self._size, self._size]
        graph = helper.make_graph(
            self._nodes,
            "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        onnx.checker.check_model(model, full_check=True)
        return onnx.shape_inference.infer_shapes(model)
