"""Bias correction (Nagel et al., Data-free quantization, ICCV 2019, section 4.2) with means of calibration data.

Rounding changes a layer's weights by ε, and so the mean of its outputs by E[εx], which is subtracted from its bias. The paper
derives E[x] from batch norms. Here every layer multiplies also ε with the inputs that it has in float32, and each output
channel's mean is taken over examples and places, so that padding counts, too. Effects of rounded or clipped activations
are no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from nnstretch.frontends.onnx_file import load
from nnstretch.graph.metadata import unused_name
from nnstretch.quantization.feeds import Feeds
from nnstretch.quantization.runs import open_tensors
from nnstretch.quantization.weights import initializer, set_initializer

_CHANNELS = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}
"""Operators with weights -> axis of their output's channels."""


def correct_biases(model: ir.Model, int8: Path, feeds: Iterable[Feeds], folder: Path) -> int:
    """Changes biases of a network in float32 so that rounded weights keep the mean of every layer's outputs.

    A product of matrices has a bias if the sum with a constant follows it, and is left alone without.

    Args:
        model: the network; its biases change in place.
        int8: file that was made from it.
        feeds: calibration data.
        folder: for temporary files.

    Returns:
        Number of layers whose biases were changed.
    """
    errors = _weight_errors(model, int8)
    places = {node: place for node in model.graph if node.name in errors and (place := _bias(node)) is not None}
    if not places:
        return 0
    shifts = _mean_shifts(model, {str(node.name): errors[str(node.name)] for node in places}, feeds, folder)
    names = {str(name) for name in model.graph.initializers}
    for node, (holder, index) in places.items():
        before, shift = initializer(holder, index), shifts[str(node.name)]
        name = unused_name(f"{node.name}/corrected", names, "#")
        names.add(name)
        shift = shift / node.attributes.get_float("beta", 1.0)
        set_initializer(holder, index, (0.0 if before is None else before.astype(np.float64)) - shift, name)
    return len(places)


def _weight_errors(model: ir.Model, int8: Path) -> dict[str, np.ndarray]:
    """Rounded minus exact weights of every layer whose weights are int8 in a file."""
    rounded = {str(node.name): node.inputs[1] for node in load(int8).graph if node.op_type in _CHANNELS}
    found = {}
    for node in model.graph:
        exact, value = initializer(node, 1), rounded.get(str(node.name))
        producer = value.producer() if value is not None else None
        if exact is None or producer is None or producer.op_type != "DequantizeLinear":
            continue
        weights = _dequantised(producer)
        if weights is not None:
            found[str(node.name)] = (weights - exact).astype(np.float32)
    return found


def _dequantised(node: ir.Node) -> np.ndarray | None:
    """What a DequantizeLinear of constants, with one scale or one per channel, computes."""
    integers, scale, zero = (initializer(node, index) for index in range(3))
    if integers is None or scale is None:
        return None
    axis = node.attributes.get_int("axis", 1)
    shape = [1] * integers.ndim
    if scale.size > 1:
        shape[axis] = -1
    offset = 0.0 if zero is None else zero.astype(np.float64).reshape(shape)
    return np.asarray((integers.astype(np.float64) - offset) * scale.astype(np.float64).reshape(shape))


def _bias(node: ir.Node) -> tuple[ir.Node, int] | None:
    """The node and the input that hold a layer's bias, or can hold one; None if nothing can."""
    if node.op_type != "MatMul":
        computed = len(node.inputs) > 2 and node.inputs[2] is not None and initializer(node, 2) is None
        return None if computed or not node.attributes.get_float("beta", 1.0) else (node, 2)
    readers = node.outputs[0].consumers()
    if len(readers) != 1 or readers[0].op_type != "Add" or node.outputs[0].is_graph_output():
        return None
    index = 1 - list(readers[0].inputs).index(node.outputs[0])
    constant = initializer(readers[0], index)
    return (readers[0], index) if constant is not None and constant.ndim <= 1 else None


def _mean_shifts(
    model: ir.Model, errors: Mapping[str, np.ndarray], feeds: Iterable[Feeds], folder: Path
) -> dict[str, np.ndarray]:
    """Mean of what the errors of weights make of a layer's inputs, per output channel."""
    augmented = model.clone()
    axes, outputs = {}, {}
    for node in list(augmented.graph):
        if node.name not in errors:
            continue
        attributes = list(node.attributes.values())
        output = ir.Value(name=f"{node.name}/shift", type=node.outputs[0].type, shape=node.outputs[0].shape)
        shifted = ir.Node("", node.op_type, node.inputs[:2], attributes, outputs=[output], name=output.name)
        augmented.graph.insert_after(node, shifted)
        set_initializer(shifted, 1, errors[str(node.name)], f"{node.name}/error")
        axes[str(node.name)], outputs[str(node.name)] = _CHANNELS[node.op_type], str(output.name)
    run = open_tensors(augmented, list(outputs.values()), folder)
    sums, count = {name: np.zeros(1) for name in outputs}, 0
    for feed in feeds:
        count += 1
        for name, values in zip(outputs, run(feed), strict=True):
            others = tuple(axis for axis in range(values.ndim) if axis != axes[name] % values.ndim)
            sums[name] = sums[name] + values.mean(axis=others, dtype=np.float64)
    return {name: total / count for name, total in sums.items()}
