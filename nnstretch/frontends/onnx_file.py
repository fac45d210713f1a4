"""ONNX files, read with suspicion and written whole."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx_ir.passes import common

from nnstretch.errors import FileError, ModelError, first_line
from nnstretch.frontends.external_data import write_weights
from nnstretch.frontends.half_precision import compute_in_float32
from nnstretch.frontends.input_shapes import fix_batch, fix_images, fix_shapes
from nnstretch.frontends.mean_variance import expand_mean_variance
from nnstretch.frontends.onnx_message import Message, read_message
from nnstretch.frontends.scales import check_scales
from nnstretch.support.image_size import ImageSize
from nnstretch.support.onnxruntime_errors import refusals
from nnstretch.support.settings import atomic_write

# Older operator sets are converted to this one: from here on the operators that the passes know take their
# bounds, axes and pads as inputs, and Softmax works on one axis.
OLDEST_OPSET = 13
# Operators whose window may not fit into a small image.
_WINDOWED = ("Conv", "MaxPool", "AveragePool", "LpPool")
LARGEST_WEIGHTS = 2**31 - 2**24
"""Bytes of weights above which a file of their own holds them: a protocol buffer has at most 2 GiB, with the graph."""


class ModelWarning(UserWarning):
    """Something about a model that runs but is probably not meant."""


def load(
    path: str | Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    image_size: ImageSize | None = None,
    called: str = "",
) -> ir.Model:
    """The model in an ONNX file, checked, with static input shapes and inferred shapes of all it computes.

    It computes in float32 what the file computes in float16 or bfloat16.

    Args:
        path: the file. Weights outside of it must lie in its folder.
        shapes: input name (or "" for the only input) -> shape, for inputs with dynamic dimensions.
        batch: first dimension of the inputs for which that is dynamic and no shape is given.
        image_size: of the images where height and width are dynamic; a dynamic batch is then 1.
        called: what warnings call the model; "" for the path.

    Raises:
        UsageError: a batch is given and no input's is dynamic.
        FileError: the file or its external data is missing or cannot be read.
        ModelError: it is no valid ONNX model, has dynamic dimensions without a shape, operators that nothing runs, or
            impossible quantisation scales.

    Warns:
        ModelWarning: weights hold NaN.
    """
    path = Path(path)
    message = read_message(path)
    model = _to_ir(_modernise(message, path), path)
    damaged = _check_weights(model, path)
    common.RemoveInitializersFromInputsPass()(model)
    if batch is not None:
        fix_batch(model, batch, shapes or {}, path)
    if image_size is not None:
        fix_images(model, image_size)
    fix_shapes(model, shapes or {})
    expand_mean_variance(model)
    infer_shapes(compute_in_float32(model), path)
    check_scales(model, path)
    _check_operators(model, path)
    if damaged:
        _warn_of_nan(damaged, called or str(path))
    return model


def save(model: ir.Model, path: str | Path) -> None:
    """Write a model that is not fused as a plain ONNX file, complete or not at all.

    An ONNX file holds 2 GiB. More weights are in `PATH.data` beside it (external data), which belongs to the file.

    Raises:
        FileError: the place cannot be written.
        ModelError: the model without its weights is larger than one ONNX file can be.
    """
    path, proto = Path(path), ir.to_proto(model)
    if weight_bytes(model) > LARGEST_WEIGHTS:
        write_weights(proto, path)
    try:
        content = proto.SerializeToString()
    except EncodeError as error:
        raise ModelError(f"{path} would be larger than 2 GiB without its weights; use a smaller model") from error
    with atomic_write(path) as file:
        file.write(content)


def weight_bytes(model: ir.Model) -> int:
    """Bytes of the weights of a model's main graph."""
    values = (value.const_value for value in model.graph.initializers.values())
    return sum(value.nbytes for value in values if value is not None)


def _modernise(message: Message, path: Path) -> Message:
    imports = message.proto.opset_import
    version = next((entry.version for entry in imports if entry.domain in ("", "ai.onnx")), OLDEST_OPSET)
    if version >= OLDEST_OPSET:
        return message
    try:
        modern = onnx.version_converter.convert_version(message.proto, OLDEST_OPSET)
    except (RuntimeError, ValueError, onnx.version_converter.ConvertError) as error:
        raise ModelError(
            f"{path} uses operator set {version} and cannot be converted to {OLDEST_OPSET} "
            f"({first_line(error)}); export it again"
        ) from error
    if version < 11:
        _keep_old_resizes(modern, message.weights, path)
    return replace(message, proto=modern)


def _keep_old_resizes(proto: onnx.ModelProto, weights: Container[str], path: Path) -> None:
    """Before operator set 11 Upsample and Resize knew one way of coordinates, which is no longer the default."""
    resizes = [node for node in proto.graph.node if node.op_type == "Resize"]
    wanted = {node.input[2] for node in resizes if node.input[2] not in weights}
    arrays = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name in wanted
    }
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            arrays[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    for node in resizes:
        scales = arrays.get(node.input[2], np.ones(1))
        shrinks = bool((scales < 1).any())
        if shrinks and (scales > 1).any():
            raise ModelError(
                f"{path}: Resize {node.output[0]!r} makes an image both larger and smaller, "
                "which operator set 10 left open; export it with a newer one"
            )
        for name, value in (
            ("coordinate_transformation_mode", "asymmetric"),
            ("nearest_mode", "ceil" if shrinks else "floor"),
        ):
            node.attribute.append(onnx.helper.make_attribute(name, value))


def _to_ir(message: Message, path: Path) -> ir.Model:
    try:
        model = ir.from_proto(message.proto)
        for name in message.weights.keys() & model.graph.initializers.keys():
            model.graph.initializers[name].const_value = ir.Tensor(message.weights[name], name=name)
        ir.external_data.set_base_dir(model.graph, path.resolve().parent)
        # Into memory, so that a file that changes later changes nothing here, and shape inference sees shapes.
        return ir.external_data.load_to_model(model)
    except OSError as error:
        raise FileError(f"cannot read the weights of {path}: {error.strerror or error}; copy them again") from error
    except (ir.serde.SerdeError, ValueError, TypeError) as error:
        reason = first_line(error.__cause__ or error)
        raise ModelError(f"{path} is not a valid ONNX model: {reason}; export or copy it again") from error


def infer_shapes(model: ir.Model, path: Path) -> None:
    """Infers the shapes of all that a model computes, whose inputs have static ones.

    Raises:
        ModelError: they do not fit together, or a tensor fits no machine.
    """
    # The pass says only by a log record that inference failed.
    logger = logging.getLogger("onnx_ir.passes.common.shape_inference")
    records = _Records()
    logger.addFilter(records)
    try:
        common.ShapeInferencePass(check_type=True, strict_mode=True, data_prop=True)(model)
    finally:
        logger.removeFilter(records)
    for reason in records.reasons:
        raise ModelError(f"{path}: the shapes do not fit together: {reason}; check --shape or export it again")
    for value in model.graph.inputs:
        _check_size(value, path)
    for node in model.graph:
        shape = node.outputs[0].shape
        if node.op_type in _WINDOWED and shape is not None and any(isinstance(n, int) and n < 1 for n in shape[2:]):
            raise ModelError(
                f"{path}: the image is smaller than the window of {node.op_type} {node.name!r}; give a larger --shape"
            )
        for value in node.outputs:
            _check_size(value, path)


def _check_size(value: ir.Value, path: Path) -> None:
    """Tensors hold no more than a machine does, and no less than nothing."""
    if value.shape is None or not value.shape.is_static():
        return
    extents = [int(n) for n in value.shape.numpy()]
    text = "x".join(map(str, extents))
    if min(extents, default=0) < 0:
        raise ModelError(
            f"{path}: tensor {value.name!r} has the shape {text}; give a larger --shape, or export it again"
        )
    if math.prod(extents) > _MOST_ELEMENTS:
        raise ModelError(f"{path}: tensor {value.name!r} of shape {text} fits no machine; give a smaller --shape")


_MOST_ELEMENTS = 1 << 38
"""Elements of the largest tensor that is taken: a terabyte of float32."""


class _Records(logging.Filter):
    """Keeps the log records of failed shape inference to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            self.reasons.append(first_line(record.exc_info[1]))
            return False
        return True


def _check_operators(model: ir.Model, path: Path) -> None:
    """Operators that are not ONNX's own must be known to ONNX Runtime."""
    known = {("", schema.name) for schema in onnx.defs.get_all_schemas()}
    known.update((identifier[0], identifier[1]) for identifier in model.functions)
    foreign = {
        (node.domain, node.op_type)
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if ("" if node.domain == "ai.onnx" else node.domain, node.op_type) not in known
    }
    if not foreign:
        return
    names = ", ".join(f"{domain or 'ai.onnx'}.{op_type}" for domain, op_type in sorted(foreign))
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(f"{path} uses {names}, which only ONNX Runtime can run; pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except refusals() as error:
        raise ModelError(
            f"{path} uses {names}, which neither nnstretch nor ONNX Runtime knows; export it without"
        ) from error


def _weights(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol, ir.Value | None]]:
    """Names and values of all initializers and constants, and the initializers themselves."""
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value, value
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR:
                yield node.outputs[0].name or node.op_type, attribute.as_tensor(), None


def _holds_nan(array: np.ndarray[Any, Any]) -> bool:
    # The least element is NaN if any is, and to find it takes no memory.
    with np.errstate(invalid="ignore"):
        return bool(array.size and np.isnan(array.min()))


def _check_weights(model: ir.Model, path: Path) -> list[str]:
    """Weights must have as many bytes as their shapes say. Returns the names of those that hold NaN.

    Those inside the file's message are taken out of it: whoever looks at one there gets a copy every time.
    """
    damaged = []
    for name, tensor, initializer in list(_weights(model)):
        try:
            array = tensor.numpy()
        except (ValueError, TypeError, ir.serde.SerdeError) as error:
            raise ModelError(
                f"{path}: the data of {name!r} does not fit its shape {tensor.shape} ({first_line(error)}); copy it again"
            ) from error
        if initializer is not None and isinstance(tensor, ir.TensorProtoTensor) and tensor.dtype == ir.DataType.FLOAT:
            initializer.const_value = ir.Tensor(array, name=name)
        if tensor.dtype.is_floating_point() and _holds_nan(array):
            damaged.append(name)
    return damaged


def _warn_of_nan(damaged: Sequence[str], called: str) -> None:
    """Warns of weights that hold NaN in a model that is called so."""
    others = f" and {len(damaged) - 1} others" if len(damaged) > 1 else ""
    warnings.warn(
        f"{called}: weight {damaged[0]!r}{others} holds NaN, so outputs will too; train or export it again",
        ModelWarning,
        stacklevel=3,
    )
