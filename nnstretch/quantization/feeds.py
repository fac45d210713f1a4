"""Examples by which a network is calibrated."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import onnx_ir as ir

from nnstretch.errors import FileError, ModelError, UsageError
from nnstretch.quantization.constant_data import warn_of_constant_data

Feeds = Mapping[str, np.ndarray]
"""Inputs of one run by name."""


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
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}; give a .npz file of arrays") from error
    except (ValueError, EOFError, TypeError, BadZipFile, zlib.error) as error:
        raise FileError(f"{path} is not a .npz file of numbers; write it with numpy.savez") from error
    batch, wanted = 1, {}
    for value in model.graph.inputs:
        name, shape = str(value.name), _shape(value)
        if not shape:
            raise ModelError(f"input {name!r} is a single number; a .npz file has examples along the first axis")
        array = arrays.get(name)
        if array is None or not array.ndim or array.shape[1:] != shape[1:] or array.dtype != np.float32:
            found = "nothing" if array is None else f"{array.dtype}[{','.join(map(str, array.shape))}]"
            rest = ",".join(map(str, shape[1:]))
            raise UsageError(f"{path} has {found} for input {name!r}; store float32[N,{rest}] under that name")
        batch, wanted[name] = shape[0], array[:count]
    examples = min(map(len, wanted.values()))
    if examples < batch:
        raise UsageError(f"{path} has {examples} examples, fewer than the batch of {batch}; store more")
    return _batches(wanted, batch, examples)


def checked_feeds(feeds: Iterable[Feeds], model: ir.Model) -> list[dict[str, np.ndarray]]:
    """All feeds, each an array of the right shape and type for every input of the model.

    Raises:
        UsageError: there are none, or one lacks an input, has another shape or element type, or holds NaN or infinite
            numbers.

    Warns:
        CalibrationWarning: an input, or a channel of images, has one value only.
    """
    wanted = {str(value.name): (_shape(value), _dtype(value)) for value in model.graph.inputs}
    found = [_checked(feed, wanted) for feed in feeds]
    if not found:
        raise UsageError("there is nothing to calibrate with; give at least one example")
    warn_of_constant_data(found)
    return found


def _checked(feed: Feeds, wanted: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> dict[str, np.ndarray]:
    if not isinstance(feed, Mapping):
        raise UsageError("calibration data are mappings, one per run: [{input name: array}, …]")
    if foreign := sorted(feed.keys() - wanted.keys()):
        raise UsageError(f"an example has {foreign[0]!r}, which is no input; the inputs are {', '.join(wanted)}")
    for name, (shape, dtype) in wanted.items():
        array = feed.get(name)
        if array is None or array.shape != shape or array.dtype != dtype:
            given = "nothing" if array is None else f"{array.dtype}[{','.join(map(str, array.shape))}]"
            text = ",".join(map(str, shape))
            raise UsageError(f"an example has {given} for input {name!r}; calibrate with {dtype}[{text}]")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(f"an example for input {name!r} holds NaN or infinite numbers; calibrate with finite ones")
    return dict(feed)


def _batches(arrays: Feeds, batch: int, examples: int) -> Iterator[Feeds]:
    for start in range(0, examples - batch + 1, batch):
        yield {name: array[start : start + batch] for name, array in arrays.items()}


def _shape(value: ir.Value) -> tuple[int, ...]:
    if value.shape is None or not value.shape.is_static():
        raise ModelError(f"input {value.name!r} has the shape {value.shape}; fix it with --shape")
    return value.shape.numpy()


def _dtype(value: ir.Value) -> np.dtype:
    assert value.dtype is not None
    return np.dtype(value.dtype.numpy())
