"""Post-training quantisation of ONNX graphs, by ONNX Runtime's tools: int8 as QuantizeLinear and DequantizeLinear say it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import onnx_ir as ir

from nnstretch.errors import FileError, ModelError, UsageError, first_line

Method = Literal["minmax", "entropy", "percentile"]
METHODS: Sequence[str] = get_args(Method)
Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Counts:
    """What became of a network's layers.

    Attributes:
        int8: layers that compute in int8.
        others: layers that do not.
    """

    int8: int
    others: int


def quantize(model: ir.Model, feeds: Iterable[Feeds], path: str | Path, method: Method = "minmax") -> Counts:
    """Writes a network in int8 as an ONNX file: weights with a scale per channel, activations with one per tensor.

    Args:
        model: float32, not fused, with static shapes.
        feeds: inputs by name, from which the ranges of the activations are learned; one run each.
        path: of the file, which is there complete or not at all.
        method: what of a range counts: all of it, what keeps most information, or all but the most extreme values.

    Raises:
        UsageError: there are no feeds, one holds NaN or infinite numbers, or there is no such method.
        ModelError: the network is quantised already, or ONNX Runtime cannot quantise it.
        FileError: the file cannot be written.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from nnstretch.frontends.onnx_file import load, save
    from nnstretch.support.onnxruntime_errors import refusals

    methods = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    if method not in methods:
        raise UsageError(f"there is no method {method!r}; choose one of {', '.join(methods)}")
    if any(node.op_type == "QuantizeLinear" for node in model.graph.all_nodes()):
        raise ModelError("the model is quantised already; give the one in float32")
    reader = _Reader(feeds)
    failures: tuple[type[Exception], ...] = (ValueError, AssertionError, *refusals())
    with TemporaryDirectory(prefix="nnstretch-quantize-") as folder:
        files = [Path(folder) / name for name in ("float.onnx", "folded.onnx", "int8.onnx")]
        save(model, files[0])
        try:
            quant_pre_process(files[0], files[1], skip_symbolic_shape=True)
            quantize_static(
                files[1],
                files[2],
                reader,
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod[methods[method]],
            )
        except failures as error:
            raise ModelError(f"ONNX Runtime cannot quantise the model: {first_line(error)}") from error
        made = load(files[2])
        made.metadata_props.update(model.metadata_props)
        save(made, path)
    return _counts(made)


def read_feeds(path: str | Path, model: ir.Model, count: int) -> Iterator[Feeds]:
    """Feeds from a .npz file: an array for every input of the model, the examples along its first axis.

    Args:
        path: of the file.
        model: with static shapes, whose first axis is the batch: the number of examples of each feed.
        count: examples at most.

    Raises:
        FileError: the file cannot be read.
        UsageError: an input has no array, one of another shape or element type, or too few examples.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read {path}: {str(error).splitlines()[0]}; give a .npz file of arrays") from error
    batch, wanted = 1, {}
    for value in model.graph.inputs:
        name, shape = str(value.name), _shape(value)
        array = arrays.get(name)
        if array is None or array.shape[1:] != shape[1:] or array.dtype != np.float32:
            found = "nothing" if array is None else f"{array.dtype}[{','.join(map(str, array.shape))}]"
            rest = ",".join(map(str, shape[1:]))
            raise UsageError(f"{path} has {found} for input {name!r}; store float32[N,{rest}] under that name")
        batch, wanted[name] = shape[0], array[:count]
    examples = min(map(len, wanted.values()))
    if examples < batch:
        raise UsageError(f"{path} has {examples} examples, fewer than the batch of {batch}; store more")
    return _batches(wanted, batch, examples)


def _batches(arrays: Feeds, batch: int, examples: int) -> Iterator[Feeds]:
    for start in range(0, examples - batch + 1, batch):
        yield {name: array[start : start + batch] for name, array in arrays.items()}


def _shape(value: ir.Value) -> tuple[int, ...]:
    if value.shape is None or not value.shape.is_static() or not len(value.shape):
        raise ModelError(f"input {value.name!r} has the shape {value.shape}; fix it with --shape")
    return value.shape.numpy()


def _counts(model: ir.Model) -> Counts:
    from nnstretch.graph.layers import layers
    from nnstretch.passes import optimize

    found = [n.layer for n in layers(optimize(model)) if n.layer.op not in ("Quantize", "Dequantize")]
    quantized = sum(layer.is_int8 for layer in found)
    return Counts(quantized, len(found) - quantized)


def _finite(feed: Feeds) -> dict[str, np.ndarray]:
    for name, array in feed.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(f"an example for input {name!r} holds NaN or infinite numbers; calibrate with finite ones")
    return dict(feed)


class _Reader:
    """Feeds as ONNX Runtime's calibration asks for them.

    Raises:
        UsageError: there are none, or one holds NaN or infinite numbers.
    """

    def __init__(self, feeds: Iterable[Feeds]) -> None:
        rest = iter(feeds)
        first = next(rest, None)
        if first is None:
            raise UsageError("there is nothing to calibrate with; give at least one example")
        self._feeds = map(_finite, chain((first,), rest))

    def get_next(self) -> dict[str, Any] | None:
        """The next feed; None after the last."""
        return next(self._feeds, None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._feeds
