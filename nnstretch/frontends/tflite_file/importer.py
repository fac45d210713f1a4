"""The ONNX graph that grows operator by operator while a TFLite file is read.

TFLite's images are N,H,W,C, ONNX's are N,C,H,W. A tensor with four axes has up to two forms, as in the file and with
channels second; an operator requests the form that it works in. A transposition is added where a form is missing, so
that in a plain CNN there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from nnstretch.frontends.tflite_file.flat import FlatFile, FlatOperator, FlatTensor, Quantization
from nnstretch.graph.layer import Attribute

TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Orders of axes that make N,C,H,W of N,H,W,C, and the other way round."""
FIRST_AXIS = (0, 2, 3, 1)
"""Axis of N,H,W,C -> its axis in N,C,H,W."""
OPSET = 20
_DTYPES = {
    "float32": ir.DataType.FLOAT,
    "int8": ir.DataType.INT8,
    "uint8": ir.DataType.UINT8,
    "int32": ir.DataType.INT32,
    "int64": ir.DataType.INT64,
    "bool": ir.DataType.BOOL,
}
_INTEGERS = ("int8", "uint8")


class UnsupportedError(Exception):
    """An operator, or a form of it, that has no counterpart; the text says what about it."""


class Importer:
    """An ONNX graph that computes what a TFLite file does.

    Attributes:
        flat: the file's tables.
        nodes: of the ONNX graph, in the order in which they run.
    """

    def __init__(self, flat: FlatFile) -> None:
        self.flat = flat
        self.nodes: list[ir.Node] = []
        self._initializers: list[ir.Value] = []
        self._plain: dict[int, ir.Value] = {}
        self._first: dict[int, ir.Value] = {}
        self._quantized: dict[int, ir.Value] = {}
        self._names: set[str] = set()
        self._named: set[ir.Value] = set()
        self._label = ""

    # -- tensors of the file --------------------------------------------------------------------------------------

    def tensor(self, number: int) -> FlatTensor:
        """A tensor of the file. Raises UnsupportedError if it is an optional one that is absent."""
        if number < 0:
            raise UnsupportedError("an input is missing")
        return self.flat.tensors[number]

    def array(self, number: int) -> np.ndarray:
        """The value of a constant, as real numbers where it is quantised. Raises UnsupportedError if it is computed."""
        tensor = self.tensor(number)
        if tensor.data is None:
            raise UnsupportedError(f"{tensor.name!r} is computed in the run")
        return _real(tensor.data, tensor.quantization)

    def is_constant(self, number: int) -> bool:
        """Whether a tensor is in the file, not computed."""
        return number >= 0 and self.flat.tensors[number].data is not None and number not in self._plain

    def is_map(self, number: int) -> bool:
        """Whether a tensor is computed, has four axes, and is at hand with channels second."""
        return number in self._first

    def plain(self, number: int) -> ir.Value:
        """A tensor with its axes as in the file; float32 where it is quantised."""
        if number not in self._plain:
            if number in self._first:
                self._plain[number] = self.add("Transpose", [self._first[number]], {"perm": TO_LAST})
            else:
                self._plain[number] = self.constant(self.array(number), self.tensor(number).name)
        return self._plain[number]

    def first(self, number: int) -> ir.Value:
        """A tensor of four axes as N,C,H,W; float32 where it is quantised."""
        if number not in self._first:
            tensor = self.tensor(number)
            if len(tensor.shape) != 4:
                raise UnsupportedError(f"{tensor.name!r} has the shape {list(tensor.shape)}, not N,H,W,C")
            if self.is_constant(number):
                return self.constant(self.array(number).transpose(TO_FIRST), tensor.name)
            self._first[number] = self.add("Transpose", [self.plain(number)], {"perm": TO_FIRST})
        return self._first[number]

    def set_plain(self, number: int, value: ir.Value) -> None:
        """Makes `value` a computed tensor with its axes as in the file."""
        self._plain[number] = self._rounded(number, value)

    def set_first(self, number: int, value: ir.Value) -> None:
        """Makes `value`, which is N,C,H,W, a computed tensor."""
        self._first[number] = self._rounded(number, value)

    def weight(
        self, number: int, order: Sequence[int], shape: Sequence[int], axis: int, *, quantized: bool
    ) -> ir.Value:
        """A constant with its axes in another order, then reshaped.

        Args:
            number: of the tensor.
            order: of its axes.
            shape: that it has then.
            axis: which then has the scales, if there are several.
            quantized: whether integers stay integers, with a DequantizeLinear.
        """
        tensor = self.tensor(number)
        scaling = tensor.quantization
        if scaling is None or not quantized:
            array = np.asarray(self.array(number).transpose(order), np.float32).reshape(shape)
            return self.constant(array, tensor.name)
        if tensor.data is None:
            raise UnsupportedError(f"the weights {tensor.name!r} are computed in the run")
        array = tensor.data.transpose(order).reshape(shape)
        return self._dequantized(
            self.constant(array, tensor.name), Quantization(scaling.scales, scaling.zero_points, axis)
        )

    # -- nodes of the ONNX graph ----------------------------------------------------------------------------------

    def begin(self, operator: FlatOperator) -> None:
        """Names the nodes that follow after the operator's output."""
        self._label = self.flat.tensors[operator.outputs[0]].name if operator.outputs else operator.name

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Attribute] | None = None,
        count: int = 1,
    ) -> ir.Value:
        """Adds a node; returns its first output."""
        return self.add_several(op_type, inputs, attributes, count)[0]

    def add_several(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Attribute] | None, count: int
    ) -> Sequence[ir.Value]:
        """Adds a node; returns its outputs."""
        outputs = [ir.Value(name=self._unused(f"{self._label}/{op_type}")) for _ in range(count)]
        node = ir.node(op_type, inputs, attributes, outputs=outputs, name=outputs[0].name)
        self.nodes.append(node)
        return outputs

    def constant(self, array: np.ndarray, name: str) -> ir.Value:
        """Adds a constant."""
        used = self._unused(name)
        tensor = ir.Tensor(np.asarray(array, order="C"), name=used)
        value = ir.Value(name=used, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._initializers.append(value)
        return value

    def integers(self, numbers: Sequence[int], name: str) -> ir.Value:
        """Adds a constant of int64, such as a shape."""
        return self.constant(np.array(numbers, np.int64), f"{self._label}/{name}")

    def number(self, value: float, like: int | None = None) -> ir.Value:
        """Adds a scalar of float32, or of the type of tensor `like`."""
        dtype = "float32" if like is None or self.tensor(like).quantization else self.tensor(like).dtype
        return self.constant(np.array(value, dtype), f"{self._label}/number")

    # -- the graph as a whole -------------------------------------------------------------------------------------

    def add_inputs(self) -> list[ir.Value]:
        """The inputs of the ONNX graph: N,C,H,W where they have four axes; integers where they are quantised."""
        inputs = []
        self._names.update((*self.flat.inputs, *self.flat.outputs))
        for name, number in self.flat.inputs.items():
            tensor = self.tensor(number)
            is_map = len(tensor.shape) == 4
            shape = [tensor.shape[axis] for axis in TO_FIRST] if is_map else tensor.shape
            value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(self._dtype(tensor)))
            inputs.append(value)
            self._label = name
            real = value if tensor.quantization is None else self._dequantized(value, tensor.quantization)
            (self._first if is_map else self._plain)[number] = real
        return inputs

    def finish(self, inputs: Sequence[ir.Value]) -> ir.Model:
        """The model, with outputs in the form of the inputs."""
        outputs = [self._output(name, number) for name, number in self.flat.outputs.items()]
        graph = ir.Graph(
            inputs, outputs, nodes=self.nodes, initializers=self._initializers, opset_imports={"": OPSET}, name="tflite"
        )
        return ir.Model(graph, ir_version=10, metadata_props=dict(self.flat.metadata))

    def _output(self, name: str, number: int) -> ir.Value:
        tensor = self.tensor(number)
        kind = self._dtype(tensor)
        value = self._quantized.get(number) if len(tensor.shape) != 4 or number in self._first else None
        if value is None:
            value = self.first(number) if len(tensor.shape) == 4 else self.plain(number)
            self._label = name
            if tensor.quantization is not None:
                value = self._scaled("QuantizeLinear", value, tensor.quantization, tensor.dtype)
        if value.producer() is None or value in self._named:
            value = self.add("Identity", [value])
        self._named.add(value)
        value.name = name
        value.type = ir.TensorType(kind)
        return value

    def _dtype(self, tensor: FlatTensor) -> ir.DataType:
        if tensor.dtype not in _DTYPES:
            raise UnsupportedError(f"{tensor.name!r} is of {tensor.dtype}")
        return _DTYPES[tensor.dtype]

    def _rounded(self, number: int, value: ir.Value) -> ir.Value:
        """A computed value as the file's tensor holds it: rounded to integers where it is quantised."""
        tensor = self.tensor(number)
        if tensor.quantization is None:
            return value
        if tensor.dtype not in _INTEGERS:
            raise UnsupportedError(f"{tensor.name!r} is computed in {tensor.dtype}; int8 and uint8 are known")
        self._quantized[number] = self._scaled("QuantizeLinear", value, tensor.quantization, tensor.dtype)
        return self._dequantized(self._quantized[number], tensor.quantization)

    def _dequantized(self, value: ir.Value, quantization: Quantization) -> ir.Value:
        assert value.type is not None
        return self._scaled(
            "DequantizeLinear", value, quantization, value.dtype.numpy().name if value.dtype else "int8"
        )

    def _scaled(self, op_type: str, value: ir.Value, quantization: Quantization, dtype: str) -> ir.Value:
        several = quantization.scales.size > 1
        shape = (-1,) if several else ()
        scales = self.constant(quantization.scales.reshape(shape), f"{value.name}/scale")
        inputs = [value, scales]
        if dtype != "int32":  # whose zero points are 0
            inputs.append(
                self.constant(quantization.zero_points.astype(dtype).reshape(shape), f"{value.name}/zero_point")
            )
        made = self.add(op_type, inputs, {"axis": quantization.axis} if several else None)
        made.type = ir.TensorType(_DTYPES[dtype] if op_type == "QuantizeLinear" else ir.DataType.FLOAT)
        return made

    def _unused(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._names:
            count += 1
            name = f"{wanted}_{count}"
        self._names.add(name)
        return name


def _real(array: np.ndarray, quantization: Quantization | None) -> np.ndarray:
    """The numbers that a constant stands for; float16 as float32."""
    if quantization is None:
        return array.astype(np.float32) if array.dtype == np.float16 else array
    shape = [1] * array.ndim
    if quantization.scales.size > 1:
        shape[quantization.axis] = -1
    scales, zero_points = (part.reshape(shape) for part in (quantization.scales, quantization.zero_points))
    return np.asarray((array.astype(np.float32) - zero_points.astype(np.float32)) * scales, np.float32)
