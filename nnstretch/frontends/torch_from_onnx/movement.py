"""Operators that move, select and join elements."""

from __future__ import annotations

import operator

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from nnstretch.frontends.torch_from_onnx.builder import Builder, Built, Converters, UnsupportedError
from nnstretch.passes.rewriting import argument, constant, constant_integers, integers


def _reshape(build: Builder, node: ir.Node) -> Built:
    """Reshape, Flatten, Squeeze and Unsqueeze, to the shape that the file's batch gives."""
    source = node.inputs[0]
    assert source is not None
    return build.reshape(build.tensor(source), source, node.outputs[0])


def _identity(build: Builder, node: ir.Node) -> Built:
    return build.tensor(node.inputs[0])


def _transpose(build: Builder, node: ir.Node) -> Built:
    order = integers(node, "perm", tuple(reversed(range(build.axes(node.inputs[0])))))
    return build.call(torch.permute, build.tensor(node.inputs[0]), order)


def _concat(build: Builder, node: ir.Node) -> Built:
    """Concat; parts that are the same for all images, such as a class token, are repeated for each."""
    axis = node.attributes.get_int("axis", 0) % build.axes(node.outputs[0])
    varying = next((value for value in node.inputs if value is not None and build.batch_axis(value)), None)
    batch = None if varying is None else build.batch_axis(varying)
    parts = []
    for value in node.inputs:
        assert value is not None
        part = build.tensor(value)
        shape = build.shape(value)
        if varying is not None and batch is not None and build.batch_axis(value) is None and batch.axis != axis:
            if shape[batch.axis] != 1:
                raise UnsupportedError("a constant part is for a batch of one size alone")
            sizes: list[fx.Node | int] = [-1] * len(shape)
            sizes[batch.axis] = build.images(varying)
            part = build.method("expand", part, *sizes)
        parts.append(part)
    return build.call(torch.cat, parts, axis)


def _split(build: Builder, node: ir.Node) -> Built:
    source = node.inputs[0]
    axis = node.attributes.get_int("axis", 0) % build.axes(source)
    sizes = [build.shape(output)[axis] for output in node.outputs]
    return build.parts(build.call(torch.split, build.tensor(source), sizes, axis), len(sizes))


def _slice(build: Builder, node: ir.Node) -> Built:
    """Slice with constant bounds, from back to front by a reversal."""
    shape = build.shape(node.inputs[0])
    starts, ends = (constant_integers(node, name, index) for name, index in (("starts", 1), ("ends", 2)))
    axes = constant_integers(node, "axes", 3, tuple(range(len(starts or ()))))
    steps = constant_integers(node, "steps", 4, (1,) * len(starts or ()))
    if starts is None or ends is None or axes is None or steps is None:
        raise UnsupportedError("its bounds are computed in the run")
    slices, turned = [slice(None)] * len(shape), []
    for axis, start, end, step in zip((axis % len(shape) for axis in axes), starts, ends, steps, strict=True):
        taken = range(*slice(start, _end(end, step, shape[axis]), step).indices(shape[axis]))
        if step < 0:
            turned.append(axis)
            taken = taken[::-1]
        is_whole = (taken.start, taken.stop, taken.step) == (0, shape[axis], 1)
        slices[axis] = slice(None) if is_whole else _plain(taken, shape[axis])
    x = build.tensor(node.inputs[0])
    if any(one != slice(None) for one in slices):
        x = build.call(operator.getitem, x, tuple(slices))
    return build.call(torch.flip, x, turned) if turned else x


def _end(end: int, step: int, length: int) -> int | None:
    """The end of a Python slice; backwards, an end far below 0 is before the first element."""
    return None if step < 0 and end < -length else end


def _plain(taken: range, length: int) -> slice:
    stop = None if taken.stop >= length else taken.stop
    return slice(taken.start, stop, None if taken.step == 1 else taken.step)


def _expand(build: Builder, node: ir.Node) -> Built:
    """Expand to the shape that the file's batch gives; axes that stay are not named."""
    source = node.inputs[0]
    before, after = build.shape(source), build.shape(node.outputs[0])
    padded = (1,) * (len(after) - len(before)) + before
    sizes = [
        -1 if small == large and i >= len(after) - len(before) else large
        for i, (small, large) in enumerate(zip(padded, after, strict=True))
    ]
    return build.method("expand", build.tensor(source), *sizes)


def _tile(build: Builder, node: ir.Node) -> Built:
    counts = constant_integers(node, "repeats", 1)
    if counts is None:
        raise UnsupportedError("the number of repetitions is computed in the run")
    return build.method("repeat", build.tensor(node.inputs[0]), *counts)


def _gather_elements(build: Builder, node: ir.Node) -> Built:
    axis = node.attributes.get_int("axis", 0)
    indices = _whole(build, node.inputs[1], build.shape(node.inputs[0])[axis])
    return build.call(torch.gather, build.tensor(node.inputs[0]), axis, indices)


def _scatter_elements(build: Builder, node: ir.Node) -> Built:
    if node.attributes.get_string("reduction", "none") != "none":
        raise UnsupportedError("it combines elements that meet")
    axis = node.attributes.get_int("axis", 0)
    indices = _whole(build, node.inputs[1], build.shape(node.inputs[0])[axis])
    return build.call(torch.scatter, build.tensor(node.inputs[0]), axis, indices, build.tensor(node.inputs[2]))


def _whole(build: Builder, indices: ir.Value | None, length: int) -> fx.Node:
    """Indices from 0 on; those that count from the end are constants, if there are any."""
    array = constant(indices)
    if array is None:
        return build.method("to", build.tensor(indices), torch.int64)
    return build.attribute("index", np.where(array < 0, array + length, array).astype(np.int64), learnable=False)


def _gather_nd(build: Builder, node: ir.Node) -> Built:
    """GatherND with constant indices."""
    if node.attributes.get_int("batch_dims", 0):
        raise UnsupportedError("it has axes of a batch")
    indices = build.constant(argument(node, 1), "the index")
    columns = np.moveaxis(indices, -1, 0).astype(np.int64)
    picked = tuple(build.attribute("index", column, learnable=False) for column in columns)
    return build.call(operator.getitem, build.tensor(node.inputs[0]), picked)


def _trilu(build: Builder, node: ir.Node) -> Built:
    offset = constant(argument(node, 1))
    function = torch.triu if node.attributes.get_int("upper", 1) else torch.tril
    return build.call(function, build.tensor(node.inputs[0]), 0 if offset is None else int(offset))


OPERATORS: Converters = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    "Identity": _identity,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Expand": _expand,
    "Tile": _tile,
    "GatherElements": _gather_elements,
    "ScatterElements": _scatter_elements,
    "GatherND": _gather_nd,
    "Trilu": _trilu,
}
CANONICAL: Converters = {"Reshape": _reshape}
