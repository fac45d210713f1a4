"""Adaptive rounding: weights become the integer below or above them that changes a layer's outputs least.

Layers are rounded in their order. Each gets the inputs that it has behind the layers before it, which are rounded already, and
is to compute what it computes in float32 (the asymmetric reconstruction of Nagel et al., "Up or down? Adaptive rounding
for post-training quantization", 2020, section 3.3 and equation 25). How the roundings are found: `rounding_search`. Scales and
biases stay. Every second example chooses the integers, the others check them: a layer whose error does not fall on these and
on all examples keeps the nearest integers. So do layers that are not Conv, Gemm or MatMul with weights of their own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from nnstretch.quantization.feeds import Feeds
from nnstretch.quantization.input_moments import WeightMatrix
from nnstretch.quantization.rounding_search import Problem, search
from nnstretch.quantization.runs import open_run
from nnstretch.quantization.stepwise import StepwiseNetwork
from nnstretch.support.progress import Progress, silent

EXAMPLES = 32
"""Weights are rounded with the first examples, at most this number; one batch at least."""
_LAYERS = ("Conv", "Gemm", "MatMul")

_MOST_INPUTS = 5000
"""Inputs of an output: with more, the matrices of their products (200 MB each) take too much memory and time."""


@dataclass(frozen=True)
class RoundedLayer:
    """What adaptive rounding made of a layer.

    Attributes:
        name: of the layer.
        operator: of ONNX.
        nearest: error of its outputs with weights rounded to the nearest integers, behind layers that are rounded adaptively:
            Euclidean norm of the difference from the outputs in float32, relative to that of these.
        error: the same with the integers that the file has; never larger than `nearest`.
        changed: number of weights that are not rounded to the nearest integer.
    """

    name: str
    operator: str
    nearest: float
    error: float
    changed: int


@dataclass(frozen=True)
class Rounding:
    """Integers of all layers that were rounded.

    Attributes:
        layers: in the order of the network.
        integers: name of the constant in the int8 file -> its values.
    """

    layers: tuple[RoundedLayer, ...]
    integers: Mapping[str, np.ndarray]

    def write(self, file: Path) -> None:
        """Puts the integers into an int8 file of the same network."""
        model = onnx.load(file)
        for tensor in model.graph.initializer:
            if tensor.name in self.integers:
                tensor.CopyFrom(numpy_helper.from_array(self.integers[tensor.name], tensor.name))
        onnx.save(model, file)


def round_adaptively(network: ir.Model, int8: Path, feeds: Sequence[Feeds], progress: Progress = silent) -> Rounding:
    """Chooses the integers of all weights.

    Args:
        network: in float32, whose nodes have names.
        int8: file that was made from it, with the nearest integers.
        feeds: calibration data; the first `EXAMPLES` are used.
        progress: called for every layer.

    Raises:
        ModelError: ONNX Runtime cannot compute a layer.
    """
    batch = max(1, *(len(array) if array.ndim else 1 for array in feeds[0].values()))
    feeds = feeds[: max(1, EXAMPLES // batch)]
    proto = ir.to_proto(network)
    exact, rounded = StepwiseNetwork(proto, feeds), StepwiseNetwork(onnx.load(int8), feeds)
    stored = _stored_weights(onnx.load(int8, load_external_data=False), rounded.constants)
    layers = [node for node in proto.graph.node if node.name in stored and node.input[1] in exact.constants]
    found, integers = [], {}
    for number, node in enumerate(layers):
        progress(number, len(layers), "rounding weights")
        weights = stored[node.name]
        inputs = exact.tensor(node.input[0]), rounded.tensor(weights.source)
        layer, values = _Layer(node, exact.constants, weights).rounded(*inputs)
        found.append(layer)
        integers[weights.name] = values
        rounded.constants[weights.name] = numpy_helper.from_array(values, weights.name)
    return Rounding(tuple(found), integers)


@dataclass(frozen=True)
class _Stored:
    """Weights of a layer in an int8 file.

    Attributes:
        source: name of the layer's other input.
        name: of the constant.
        integers: its values.
        scale, zero: of its shape, or shapes that numpy broadcasts to it.
    """

    source: str
    name: str
    integers: np.ndarray
    scale: np.ndarray
    zero: np.ndarray


def _inputs(operator: str, shape: Sequence[int]) -> int:
    """Most inputs that an output of a layer may have, by the shape of its weights."""
    return math.prod(shape[1:]) if operator == "Conv" else max(shape)


def _stored_weights(model: onnx.ModelProto, constants: Mapping[str, onnx.TensorProto]) -> dict[str, _Stored]:
    """Weights of the layers that have some of their own, by the name of the layer."""
    makers = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    readers = Counter(name for node in model.graph.node for name in node.input)
    found = {}
    for node in model.graph.node:
        maker = makers.get(node.input[1]) if node.op_type in _LAYERS else None
        if maker is None or any(name not in constants for name in maker.input) or node.input[0] in constants:
            continue
        is_own = readers[maker.input[0]] == readers[node.input[1]] == 1
        turned = any(one.name == "transA" and one.i for one in node.attribute)
        values = [numpy_helper.to_array(constants[name]) for name in maker.input]
        if values[0].ndim < 2 or _inputs(node.op_type, values[0].shape) > _MOST_INPUTS:
            continue
        if not is_own or turned or (node.op_type == "MatMul" and values[0].ndim > 2):
            continue
        zero = values[2] if len(values) > 2 else np.zeros_like(values[1], values[0].dtype)
        axis = next((one.i for one in maker.attribute if one.name == "axis"), 1)
        shape = [-1 if i == axis % values[0].ndim else 1 for i in range(values[0].ndim)] if zero.size > 1 else []
        scale = values[1].astype(np.float64).reshape(shape)
        found[node.name] = _Stored(node.input[0], maker.input[0], values[0], scale, zero.reshape(shape))
    return found


class _Layer:
    """One layer, in float32 and in int8.

    Args:
        node: of the network in float32.
        constants: of that network.
        stored: the layer's weights in int8.
    """

    def __init__(self, node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], stored: _Stored) -> None:
        self._node, self._stored = node, stored
        self._weights = numpy_helper.to_array(constants[node.input[1]])
        self._bias = [constants[name] for name in node.input[2:] if name in constants]

    def rounded(self, exact: list[np.ndarray], near: list[np.ndarray]) -> tuple[RoundedLayer, np.ndarray]:
        """Its integers, chosen for what it is to compute from exact inputs and has to compute from those near them."""
        stored = self._stored
        matrix = WeightMatrix(self._node, self._weights.shape)
        nearest = stored.integers.astype(np.float64) - stored.zero
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.nan_to_num(self._weights / stored.scale, posinf=0.0, neginf=0.0)
        limit = np.abs(nearest).max(initial=0)  # what the quantiser uses, such as 127 of 128
        low, high = (np.clip(edge(steps), -limit, limit) for edge in (np.floor, np.ceil))
        outside = (nearest < low) | (nearest > high)  # rounded to a scale that something else has set
        low, high = np.where(outside, nearest, low), np.where(outside, nearest, high)
        hessian, cross = matrix.moments(exact[::2], near[::2])
        problem = Problem(matrix.of(steps), matrix.of(low), matrix.of(high), hessian, cross)
        chosen = matrix.back(search(problem, matrix.of(nearest)))
        sums = self._squares(exact, near, [nearest, chosen])
        unseen = sums[1::2] if len(sums) > 1 else sums
        if any(part[:, 2].sum() >= part[:, 1].sum() for part in (unseen, sums)):
            chosen, sums[:, 2] = nearest, sums[:, 1]
        totals = sums.sum(axis=0)
        errors = [float(value) for value in np.sqrt(totals[1:] / (totals[0] or 1.0))]
        changed = int(np.count_nonzero(chosen != nearest))
        layer = RoundedLayer(self._node.name, self._node.op_type, errors[0], errors[1], changed)
        return layer, (chosen + stored.zero).astype(stored.integers.dtype)

    def _squares(self, exact: list[np.ndarray], near: list[np.ndarray], choices: Sequence[np.ndarray]) -> np.ndarray:
        """Squared norms of the layer's exact outputs, and of the differences that integers, less zero points, make.

        Returns:
            examples × (1 + number of choices).
        """
        weights = [self._weights, *((choice * self._stored.scale).astype(np.float32) for choice in choices)]
        run = open_run(self._comparison(weights, exact[0]).SerializeToString())
        pairs = zip(exact, near, strict=True)
        return np.array([[float(value) for value in run({"x": x, "near": other})] for x, other in pairs])

    def _comparison(self, weights: Sequence[np.ndarray], x: np.ndarray) -> onnx.ModelProto:
        """A model of the squared norms of the exact output and of every other one's difference from it."""
        bias = [tensor.name for tensor in self._bias]
        nodes = []
        for number in range(len(weights)):
            source, compared = ("near", f"d{number}") if number else ("x", "y0")
            node = helper.make_node(self._node.op_type, [source, f"w{number}", *bias], [f"y{number}"])
            node.attribute.extend(self._node.attribute)
            nodes += [node] if not number else [node, helper.make_node("Sub", [f"y{number}", "y0"], [compared])]
            nodes.append(helper.make_node("ReduceSumSquare", [compared], [f"s{number}"], keepdims=0))
        tensors = [numpy_helper.from_array(array, f"w{number}") for number, array in enumerate(weights)]
        graph = helper.make_graph(
            nodes,
            "errors",
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, x.shape) for name in ("x", "near")],
            [helper.make_tensor_value_info(f"s{n}", onnx.TensorProto.FLOAT, []) for n in range(len(weights))],
            [*tensors, *self._bias],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
