"""Reference results of layers, from their expansion in ONNX Runtime, and errors relative to them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime

from nnstretch.errors import ModelError, first_line
from nnstretch.graph.expand import expand
from nnstretch.graph.layer import Layer
from nnstretch.support.onnxruntime_errors import refusals

# Smallest range: nearly constant outputs are compared absolutely.
_SMALLEST_RANGE = 1e-6
_INT8_STEPS = 255
_ROUNDED_STEPS = 2
"""Steps by which one layer's results may differ: it may round twice."""


def rounding_error(layers: int) -> float:
    """Difference, relative to the range, that the rounding of `layers` int8 layers explains.

    An int8 result between two values may round to either, depending on the order of the arithmetic. Over several layers
    these steps add up like a random walk.
    """
    return _ROUNDED_STEPS * math.sqrt(layers) / _INT8_STEPS


def run_proto(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of a standard model from ONNX Runtime, on one thread and without graph optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def run_layer(layer: Layer, *inputs: np.ndarray) -> list[np.ndarray]:
    """Outputs of one layer for its run-time inputs (`layer.activations`).

    Raises:
        ModelError: ONNX Runtime refuses the layer or the values of its inputs.
    """
    try:
        return run_proto(expand(layer), {f"x{position}": array for position, array in enumerate(inputs)})
    except refusals() as error:
        raise ModelError(f"ONNX Runtime cannot run layer {layer.name} ({layer.op}): {first_line(error)}") from error


def answer_error(layer: Layer, index: int, result: np.ndarray, reference: np.ndarray) -> float:
    """Error of output `index` of a layer relative to its range, less what rounding to int8 explains.

    Integers without quantisation parameters must be equal: any difference is infinite.
    """
    rounded = sum(link.is_int8 for link in layer.parts or (layer,))
    if layer.outputs[index].quantization is None and not np.issubdtype(reference.dtype, np.floating):
        return 0.0 if np.array_equal(result, reference) else math.inf
    if layer.outputs[index].quantization is None:
        error = relative_error(result, reference)
    else:
        error = float(np.abs(np.subtract(result, reference, dtype=np.int32)).max(initial=0)) / _INT8_STEPS
    return max(0.0, error - rounding_error(rounded))


def relative_error(result: np.ndarray, reference: np.ndarray) -> float:
    """Largest difference over the reference's range, which includes 0; infinite if only one is not finite."""
    if not result.size:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.asarray(np.subtract(result, reference, dtype=np.float64))
    worst = float(np.abs(difference, out=difference).max())
    finite = reference
    if not math.isfinite(worst):  # somewhere not finite: on both sides alike is no difference
        same = (result == reference) | (np.isnan(result) & np.isnan(reference))
        worst = float(np.nan_to_num(np.where(same, 0.0, difference), nan=np.inf, posinf=np.inf).max())
        finite = reference[np.isfinite(reference)]
    # Zero counts into the range, or the error of a single large number would be compared with nothing.
    low, high = (float(edge(finite, initial=0)) for edge in (np.min, np.max))
    return worst / max(high - low, _SMALLEST_RANGE)


def largest_error(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest error of all outputs, each relative to its range; outputs are matched in order.

    Axes of size 1 may differ, since some engines have no batch axis. Infinite if the sizes differ.
    """
    if [y.size for y in outputs.values()] != [y.size for y in expected.values()]:
        return float("inf")
    pairs = zip(outputs.values(), expected.values(), strict=True)
    return max((relative_error(y.reshape(wanted.shape), wanted) for y, wanted in pairs), default=0.0)
