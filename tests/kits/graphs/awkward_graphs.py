"""Small random ONNX graphs of all operators that the passes know, with awkward attributes and shapes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_SIZES = (1, 1, 2, 3, 4, 5, 8, 0)
_RANKS = (4, 4, 4, 4, 3, 2, 2, 1, 0, 5)
_UNARY = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "HardSwish",
    "HardSigmoid",
    "LeakyRelu",
    "Identity",
    "Neg",
    "Abs",
    "Dropout",
    "Softplus",
)
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
_REDUCTIONS = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum")
_ATTEMPTS = 4


class AwkwardGraph:
    """A graph of one to five nodes that shape inference accepts.

    Attributes:
        opset: version of the operators, 13 to 21.
        is_quantized: whether tensors are rounded to int8, so that results differ by more than the order of sums.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.opset = random.randint(13, 21)
        self.is_quantized = False
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        for _ in range(random.randint(1, 2)):
            self._add_input()
        for _ in range(random.randint(1, 5)):
            self._add_node()
        self.model = self._model()

    def _model(self) -> onnx.ModelProto:
        read = {name for node in self._nodes for name in node.input}
        made = [name for node in self._nodes for name in node.output if name in self._shapes]
        outputs = [name for name in made if name not in read or self._random.random() < 0.2]
        if not outputs:
            self._nodes.append(self._node("Identity", [[*self._shapes][-1]]))
            outputs = [self._nodes[-1].output[0]]
            self._shapes[outputs[0]] = self._shapes[self._nodes[-1].input[0]]
        types = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, self._shapes[name]) for name in outputs]
        return self._checked(types)

    def _checked(self, outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, "g", self._inputs, outputs, self._constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    # -- drawing -------------------------------------------------------------------------------------------------

    def _flip(self, probability: float = 0.5) -> bool:
        return self._random.random() < probability

    def _shape(self) -> tuple[int, ...]:
        sizes = _SIZES if self._flip(0.15) else _SIZES[:-1]
        return tuple(self._random.choice(sizes) for _ in range(self._random.choice(_RANKS)))

    def _add_input(self) -> None:
        name, shape = f"x{len(self._inputs)}", self._shape()
        self._inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        self._shapes[name] = shape

    def _constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def _weights(self, *shape: int) -> str:
        rng = np.random.default_rng(self._random.randint(0, 99))
        return self._constant(rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape))

    def _integers(self, *values: int) -> str:
        return self._constant(values, np.int64)

    def _operand(self, shape: tuple[int, ...]) -> str:
        """A tensor that likely broadcasts with `shape`: computed or constant."""
        if self._flip():
            return self._random.choice([*self._shapes])
        kept = shape[self._random.randint(0, len(shape)) :]
        return self._weights(*(n if self._flip(0.6) else 1 for n in kept))

    def _pair(self, low: int, high: int) -> list[int]:
        return [self._random.randint(low, high) for _ in range(2)]

    def _axes(self, rank: int) -> list[int]:
        count = self._random.randint(1, max(1, min(rank, 3)))
        axes = self._random.sample(range(rank), min(count, rank))
        return [axis - rank if self._flip(0.3) else axis for axis in axes]

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _add_node(self) -> None:
        makers: list[Callable[[str, tuple[int, ...]], onnx.NodeProto]] = [
            *(self._unary, self._unary, self._binary, self._binary, self._clip, self._sum, self._concat, self._softmax),
            *(self._reshape, self._unsqueeze, self._squeeze, self._flatten, self._transpose, self._slice, self._split),
            *(self._reduce, self._matmul, self._gemm, self._prelu, self._expand, self._pad, self._gather, self._cast),
            *[self._conv, self._pool, self._global_pool, self._normalization, self._resize] * 2,
        ]
        for _ in range(_ATTEMPTS):
            source = self._random.choice([*self._shapes][-2:])
            before = len(self._constants)
            with contextlib.suppress(IndexError, ValueError):  # such a node does not exist for this shape
                if self._accept(self._random.choice(makers)(source, self._shapes[source])):
                    if self._nodes[-1].output[0] in self._shapes and self._flip(0.08):
                        self._round(self._nodes[-1].output[0])
                    return
            del self._constants[before:]

    def _accept(self, node: onnx.NodeProto) -> bool:
        """Adds a node if its outputs have static shapes."""
        self._nodes.append(node)
        try:
            inferred = onnx.shape_inference.infer_shapes(self._checked([]), strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError:
            self._nodes.pop()
            return False
        found = {value.name: value.type.tensor_type for value in inferred.graph.value_info}
        shapes = {name: found[name].shape.dim for name in node.output if name in found}
        if len(shapes) != len(node.output) or not all(
            d.HasField("dim_value") for dims in shapes.values() for d in dims
        ):
            self._nodes.pop()
            return False
        sizes = [d.dim_value for dims in shapes.values() for d in dims]
        is_empty = 0 in self._shapes.get(node.input[0], ())
        if min(sizes, default=0) < 0 or (
            "kernel_shape" in {a.name for a in node.attribute} and 0 in sizes and not is_empty
        ):
            self._nodes.pop()  # windows larger than the image are refused
            return False
        for name, dims in shapes.items():
            if found[name].elem_type == onnx.TensorProto.FLOAT:
                self._shapes[name] = tuple(d.dim_value for d in dims)
        return True

    def _node(self, op_type: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> onnx.NodeProto:
        number = len(self._nodes)
        names = [f"t{number}_{index}" for index in range(outputs)]
        return helper.make_node(op_type, inputs, names, name=f"n{number}", **attributes)

    def _round(self, name: str) -> None:
        scale, zero = self._constant(0.05), self._constant(self._random.choice([0, 3]), np.int8)
        self._nodes.append(self._node("QuantizeLinear", [name, scale, zero]))
        self._nodes.append(self._node("DequantizeLinear", [self._nodes[-1].output[0], scale, zero]))
        self._shapes[self._nodes[-1].output[0]] = self._shapes[name]
        self.is_quantized = True

    def _unary(self, x: str, _shape: tuple[int, ...]) -> onnx.NodeProto:
        return self._node(self._random.choice(_UNARY), [x])

    def _binary(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        operands = [x, self._operand(shape)]
        op_type = self._random.choice(_BINARY)
        return self._node(op_type, operands[::-1] if op_type != "Div" and self._flip() else operands)

    def _clip(self, x: str, _shape: tuple[int, ...]) -> onnx.NodeProto:
        bounds = [self._constant(-0.5) if self._flip() else "", self._constant(0.7) if self._flip() else ""]
        return self._node("Clip", [x, *bounds])

    def _sum(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        return self._node("Sum", [x, *(self._operand(shape) for _ in range(self._random.randint(0, 2)))])

    def _concat(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        return self._node("Concat", [x, x if self._flip() else self._operand(shape)], axis=self._axes(len(shape))[0])

    def _softmax(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        return self._node("Softmax", [x], **({} if self._flip() else {"axis": self._axes(len(shape))[0]}))

    def _reshape(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        wanted = [*shape]
        if self._flip():
            self._random.shuffle(wanted)
        else:
            cut = self._random.randint(0, len(shape))
            wanted = [*shape[:cut], -1]
        return self._node(
            "Reshape", [x, self._integers(*wanted)], allowzero=int(self._flip()) if self.opset > 13 else None
        )

    def _unsqueeze(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        return self._node("Unsqueeze", [x, self._integers(*self._axes(len(shape) + 1))])

    def _squeeze(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        axes = [axis for axis, size in enumerate(shape) if size == 1]
        return self._node("Squeeze", [x, self._integers(*axes[:2])] if self._flip() else [x])

    def _flatten(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        return self._node("Flatten", [x], axis=self._random.randint(-len(shape), len(shape)))

    def _transpose(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        order = self._random.sample(range(len(shape)), len(shape))
        attributes: dict[str, Any] = {"perm": order} if self._flip(0.8) else {}
        return self._node("Transpose", [x], **attributes)

    def _slice(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        axes = self._axes(len(shape))
        bounds = [[self._random.randint(-3, 9) for _ in axes] for _ in range(2)]
        steps = [self._random.choice((1, 1, 2, 3, -1)) for _ in axes]
        return self._node("Slice", [x, *(self._integers(*values) for values in (*bounds, axes, steps))])

    def _split(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        axis = self._axes(len(shape))[0]
        if self.opset >= 18 and self._flip():
            return self._node("Split", [x], 2, axis=axis, num_outputs=2)
        first = self._random.randint(0, shape[axis])
        return self._node("Split", [x, self._integers(first, shape[axis] - first)], 2, axis=axis)

    def _reduce(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        op_type, axes, keeps = self._random.choice(_REDUCTIONS), self._axes(len(shape)), int(self._flip())
        if self._flip(0.3):
            axes = [2, 3]
        if 0 in shape:
            # Of empty tensors, ONNX Runtime's results have the standard's shape for sums over axes counted from the first.
            op_type, axes = "ReduceSum", [axis % len(shape) for axis in axes]
        elif self._flip(0.1):
            return self._node(op_type, [x], keepdims=keeps)
        if self.opset >= 18 or op_type == "ReduceSum":
            return self._node(op_type, [x, self._integers(*axes)], keepdims=keeps)
        return self._node(op_type, [x], axes=axes, keepdims=keeps)

    def _matmul(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        columns = self._random.choice(((), (1,), (3,), (5,)))
        other = self._random.choice([*self._shapes]) if self._flip(0.2) else self._weights(shape[-1], *columns)
        return self._node("MatMul", [x, other])

    def _gemm(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        rows, depth = shape[::-1] if (transposed := self._flip(0.2)) else shape
        columns, flips = self._random.choice((1, 3, 5)), self._flip()
        inputs = [x, self._weights(columns, depth) if flips else self._weights(depth, columns)]
        if self._flip():
            inputs.append(
                self._weights(*self._random.choice(((columns,), (1, columns), (rows, columns), (rows, 1), ())))
            )
        scales: dict[str, Any] = {"alpha": 0.5, "beta": self._random.choice((0.0, 2.0))} if self._flip(0.3) else {}
        return self._node("Gemm", inputs, transA=int(transposed), transB=int(flips), **scales)

    def _prelu(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        slope = self._random.choice(((1,) * bool(shape), (), shape[1:2] + (1,) * (len(shape) - 2)))
        return self._node("PRelu", [x, self._weights(*slope)])

    def _expand(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        return self._node("Expand", [x, self._integers(*(3 if n == 1 and self._flip() else n for n in shape))])

    def _pad(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        pads = [0] * 2 * len(shape)
        for index in range(len(pads)):
            if index % len(shape) >= min(2, len(shape) - 1) and self._flip():
                pads[index] = self._random.choice((1, 2, -1))
        value = [self._constant(self._random.choice((0.0, 1.5)))] if self._flip(0.4) else []
        mode = self._random.choice(("constant", "constant", "reflect", "edge"))
        return self._node("Pad", [x, self._integers(*pads), *value], mode=mode)

    def _gather(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        axis = self._axes(len(shape))[0]
        places = [self._random.randint(-shape[axis], shape[axis] - 1) for _ in range(self._random.randint(0, 3))]
        index = self._constant(places[0], np.int64) if places and self._flip() else self._integers(*places)
        return self._node("Gather", [x, index], axis=axis)

    def _cast(self, x: str, _shape: tuple[int, ...]) -> onnx.NodeProto:
        return self._node("Cast", [x], to=self._random.choice((1, 1, 7, 9, 10, 11)))

    def _window(self, rank: int) -> dict[str, Any]:
        window: dict[str, Any] = {"strides": self._pair(1, 3)} if self._flip() else {}
        if self._flip(0.25):
            window["dilations"] = self._pair(1, 2)
        # ONNX Runtime ignores dilations where pools pad for the same size, unlike the standard.
        kinds = ("", "pads", "pads", "VALID", *(() if "dilations" in window else ("SAME_UPPER", "SAME_LOWER")))
        kind = self._random.choice(kinds)
        if kind == "pads":
            window["pads"] = [*self._pair(0, 2), *self._pair(0, 2)]
        elif kind:
            window["auto_pad"] = kind
        return window if rank == 4 else {}

    def _conv(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        groups = self._random.choice([n for n in (1, 2, shape[1]) if n and shape[1] % n == 0] or [1])
        filters = groups * self._random.choice((1, 2, 3))
        kernel = [self._random.randint(1, 3) for _ in shape[2:]]
        inputs = [x, self._weights(filters, shape[1] // groups, *kernel)]
        if self._flip():
            inputs.append(self._weights(filters))
        return self._node("Conv", inputs, group=groups, **self._window(len(shape)))

    def _pool(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        op_type = self._random.choice(("MaxPool", "AveragePool"))
        window = self._window(len(shape)) | {"kernel_shape": [self._random.randint(1, 3) for _ in shape[2:]]}
        if op_type == "AveragePool":
            window["count_include_pad"] = int(self._flip())
            if self.opset < 19:
                window.pop("dilations", None)
        if self._flip(0.3):
            window["ceil_mode"] = 1
        return self._node(op_type, [x], **window)

    def _global_pool(self, x: str, _shape: tuple[int, ...]) -> onnx.NodeProto:
        return self._node(self._random.choice(("GlobalAveragePool", "GlobalMaxPool")), [x])

    def _normalization(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        variance = self._constant(np.linspace(0.5, 2, shape[1]))
        parameters = [self._weights(shape[1]) for _ in range(3)]
        return self._node("BatchNormalization", [x, *parameters, variance], epsilon=self._random.choice((1e-5, 0.1)))

    def _resize(self, x: str, shape: tuple[int, ...]) -> onnx.NodeProto:
        scales = [1.0] * min(2, len(shape)) + [self._random.choice((0.5, 1.0, 2.0, 1.5, 2.3)) for _ in shape[2:]]
        sizes = [max(1, int(n * scale)) for n, scale in zip(shape, scales, strict=True)]
        wanted = [self._constant(scales)] if self._flip() else ["", self._integers(*sizes)]
        coordinates = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
        return self._node(
            "Resize",
            [x, "", *wanted],
            mode=self._random.choice(("nearest", "linear", "cubic")),
            coordinate_transformation_mode=self._random.choice(coordinates),
            nearest_mode=self._random.choice(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
        )
