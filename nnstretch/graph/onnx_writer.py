"""ONNX graphs under construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from nnstretch.graph.layer import TensorType
from nnstretch.graph.quantization import QuantizationParameters

# What canonical layers alone are written in; their operators mean the same in every version from 13 on.
OPSET_VERSION = 20
IR_VERSION = 10


@dataclass
class OnnxWriter:
    """A graph under construction.

    Attributes:
        title: name of the graph.
        signed: names of int8 tensors that are to be there as such when they are made.
        unsigned: name of an int8 tensor -> that of the same numbers as uint8, and the quantization.
        nodes: in topological order.
        initializers: constants by name.
        reserved: names that `fresh` must not give.
    """

    title: str
    signed: set[str] = field(default_factory=set)
    unsigned: dict[str, tuple[str, QuantizationParameters]] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    reserved: set[str] = field(default_factory=set)
    _count: int = 0

    def fresh(self, role: str) -> str:
        """A tensor name that nothing has."""
        while True:
            self._count += 1
            name = f"_{role}{self._count}"
            if name not in self.reserved and name not in self.initializers:
                return name

    def constant(self, role: str, array: np.ndarray, exact: bool = False) -> str:
        """An initializer, called `role` if `exact`."""
        name = role if exact else self.fresh(role)
        if name not in self.initializers:
            self.initializers[name] = _tensor_proto(array, name)
        return name

    def add(self, op_type: str, inputs: Sequence[str | None], output: str | None = None, **attributes: Any) -> str:
        """A node with one output, whose name is returned."""
        result = self.fresh(op_type) if output is None else output
        names = ["" if name is None else name for name in inputs]
        while names and not names[-1]:
            names.pop()
        self.nodes.append(helper.make_node(op_type, names, [result], name=self.fresh("node"), **attributes))
        return result

    def model(
        self,
        inputs: Sequence[tuple[str, TensorType]],
        outputs: Sequence[tuple[str, TensorType]],
        opsets: Mapping[str, int],
    ) -> onnx.ModelProto:
        """The model of the graph, with the versions of its operator sets by domain."""
        graph = helper.make_graph(
            self.nodes,
            self.title,
            [_value_info(name, kind) for name, kind in inputs],
            [_value_info(name, kind) for name, kind in outputs],
            list(self.initializers.values()),
        )
        imports = [helper.make_opsetid(domain, version) for domain, version in sorted(opsets.items())]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="nnstretch")


def _tensor_proto(array: np.ndarray, name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _element_type(kind.dtype), kind.shape)


def _element_type(name: str) -> int:
    """ONNX's number for an element type that is named as in numpy and ml_dtypes."""
    if name == "string":
        return int(ir.DataType.STRING)
    return next(
        int(kind)
        for kind in ir.DataType
        if kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and kind.numpy().name == name
    )
