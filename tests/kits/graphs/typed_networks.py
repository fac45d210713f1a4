"""Small networks that native kernels compute, with inputs and outputs of all types of elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx import ModelProto, TensorProto, helper, numpy_helper

from nnstretch.graph.dtypes import ELEMENT_TYPES

SHAPE = (2, 3, 4)
NATIVE = tuple(name for name, element in ELEMENT_TYPES.items() if element.code)
"""The types that native kernels move."""
_SPELT = {"float32": "FLOAT", "float64": "DOUBLE"}
_ONNX = {name: TensorProto.DataType.Value(_SPELT.get(name, name.upper())) for name in NATIVE}


@dataclass(frozen=True)
class TypedNetwork:
    """A network with an array for each input."""

    proto: ModelProto
    feeds: Mapping[str, np.ndarray]

    def graph(self) -> ir.Model:
        """The network."""
        return ir.from_proto(self.proto)


def _network(
    nodes: list[Any],
    inputs: Mapping[str, tuple[str, tuple[int, ...]]],
    outputs: Mapping[str, tuple[str, tuple[int, ...]]],
    constants: Mapping[str, Any],
    seed: int,
) -> TypedNetwork:
    given, made = (
        [helper.make_tensor_value_info(name, _ONNX[dtype], shape) for name, (dtype, shape) in ends.items()]
        for ends in (inputs, outputs)
    )
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "typed", given, made, values)
    rng = np.random.default_rng(seed)
    return TypedNetwork(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10),
        {name: _drawn(rng, dtype, shape) for name, (dtype, shape) in inputs.items()},
    )


def _drawn(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = ELEMENT_TYPES[dtype].kind
    if kind == "int":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if kind == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def bytes_of_an_image() -> TypedNetwork:
    """An image in bytes, which a cast and a scale make numbers for a convolution."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Cast", ["x"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["numbers", "scale"], ["scaled"]),
        helper.make_node("Conv", ["scaled", "w"], ["sums"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["sums"], ["y"]),
    ]
    weight = rng.standard_normal((8, 3, 3, 3)).astype(np.float32)
    constants = {"scale": np.float32(1 / 255), "w": weight}
    return _network(nodes, {"x": ("uint8", (1, 3, 12, 10))}, {"y": ("float32", (1, 8, 6, 5))}, constants, 2)


def quantised_ends(dtype: str = "int8") -> TypedNetwork:
    """A convolution in int8 whose input and output are int8 or uint8, as quantisers of whole networks write it."""
    rng, shift = np.random.default_rng(3), np.iinfo(dtype).min + 128
    constants = {
        "x_scale": np.float32(0.02),
        "x_zero": np.array(3 + shift, dtype),
        "w": rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8),
        "w_scale": rng.uniform(0.01, 0.02, 8).astype(np.float32),
        "w_zero": np.zeros(8, np.int8),
        "y_scale": np.float32(0.1),
        "y_zero": np.array(-7 + shift, dtype),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["real"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["weight"], axis=0),
        helper.make_node("Conv", ["real", "weight"], ["sums"], pads=[1] * 4),
        helper.make_node("QuantizeLinear", ["sums", "y_scale", "y_zero"], ["y"]),
    ]
    return _network(nodes, {"x": (dtype, (1, 4, 9, 7))}, {"y": (dtype, (1, 8, 9, 7))}, constants, 4)


def all_types() -> TypedNetwork:
    """An input and an output of every type: the axes change their places."""
    nodes = [helper.make_node("Transpose", [name], [f"{name}_turned"], perm=[2, 0, 1]) for name in NATIVE]
    turned = (SHAPE[2], *SHAPE[:2])
    outputs = {f"{name}_turned": (name, turned) for name in NATIVE}
    return _network(nodes, {name: (name, SHAPE) for name in NATIVE}, outputs, {}, 5)


def casts() -> TypedNetwork:
    """Inputs of several types that are computed with, and outputs of several."""
    nodes = [
        helper.make_node("Cast", ["numbers"], ["n"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["halves"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["n", "m"], ["masked"]),
        helper.make_node("Add", ["masked", "h"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["sum"], ["z"], to=TensorProto.BFLOAT16),
    ]
    inputs = {"numbers": ("uint8", SHAPE), "mask": ("bool", SHAPE), "halves": ("float16", SHAPE)}
    return _network(nodes, inputs, {"y": ("float16", SHAPE), "z": ("bfloat16", SHAPE)}, {}, 6)


NETWORKS: Mapping[str, Callable[[], TypedNetwork]] = {
    "an image in bytes": bytes_of_an_image,
    "int8 ends": quantised_ends,
    "uint8 ends": partial(quantised_ends, "uint8"),
    "all types": all_types,
    "casts": casts,
}
