"""Operators of TFLite that move, select and join elements, as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from nnstretch.frontends.tflite_file.elementwise import one, set_result
from nnstretch.frontends.tflite_file.flat import FlatOperator
from nnstretch.frontends.tflite_file.importer import FIRST_AXIS, TO_FIRST, Importer, UnsupportedError
from nnstretch.frontends.tflite_file.layers import Lowering, activated, axis_in_first, numbers_of, rows_of


def _reshape(build: Importer, operator: FlatOperator) -> None:
    """RESHAPE, SQUEEZE and EXPAND_DIMS: to the shape of the result."""
    number = operator.outputs[0]
    shape = build.tensor(number).shape
    build.set_plain(number, rows_of(build, operator.inputs[0], shape))


def _transpose(build: Importer, operator: FlatOperator) -> None:
    order, source = numbers_of(build.array(operator.inputs[1])), operator.inputs[0]
    rank = len(build.tensor(source).shape)
    if sorted(order) != list(range(rank)):
        raise UnsupportedError(f"it orders {rank} axes as {order}")
    x, is_first = one(build, source)
    composed = [FIRST_AXIS[axis] for axis in order] if is_first else order
    if rank == 4 and is_first:
        # To the form with channels second at once: the two transpositions are one.
        composed = [composed[axis] for axis in TO_FIRST]
    y = x if composed == list(range(rank)) else build.add("Transpose", [x], {"perm": tuple(composed)})
    if y is x:
        y = build.add("Identity", [x])
    set_result(build, operator.outputs[0], y, is_first=rank == 4 and is_first)


def _concat(build: Importer, operator: FlatOperator) -> None:
    number, options = operator.outputs[0], operator.options
    rank = len(build.tensor(number).shape)
    is_first = rank == 4 and any(map(build.is_map, operator.inputs))
    parts = [build.first(part) if is_first else build.plain(part) for part in operator.inputs]
    axis = options.axis % rank
    y = build.add("Concat", parts, {"axis": axis_in_first(axis) if is_first else axis})
    set_result(build, number, activated(build, y, options.fusedActivationFunction), is_first=is_first)


def _split(build: Importer, operator: FlatOperator) -> None:
    """SPLIT and SPLIT_V."""
    source, place = operator.inputs[:2] if operator.name == "SPLIT_V" else operator.inputs[1::-1]
    if operator.name == "SPLIT_V":
        place = operator.inputs[2]
    x, is_first = one(build, source)
    (axis,) = numbers_of(build.array(place))
    axis %= len(build.tensor(source).shape)
    lengths = [build.tensor(number).shape[axis] for number in operator.outputs]
    attributes = {"axis": axis_in_first(axis) if is_first else axis}
    parts = build.add_several("Split", [x, build.integers(lengths, "lengths")], attributes, len(lengths))
    for number, part in zip(operator.outputs, parts, strict=True):
        set_result(build, number, part, is_first=is_first)


def _pad(build: Importer, operator: FlatOperator) -> None:
    """PAD, PADV2 and MIRROR_PAD."""
    x, is_first = one(build, operator.inputs[0])
    pads = build.array(operator.inputs[1]).reshape(-1, 2)
    if is_first:
        pads = pads[list(TO_FIRST)]
    mode = "constant"
    if operator.name == "MIRROR_PAD":
        if operator.options.mode != 0:
            raise UnsupportedError("it mirrors the edge, too")
        mode = "reflect"
    inputs: list[ir.Value | None] = [x, build.integers(numbers_of(pads.T), "pads")]
    if operator.name == "PADV2":
        inputs.append(
            build.constant(build.array(operator.inputs[2]).reshape(()), build.tensor(operator.inputs[2]).name)
        )
    set_result(build, operator.outputs[0], build.add("Pad", inputs, {"mode": mode}), is_first=is_first)


def _slice(build: Importer, operator: FlatOperator) -> None:
    begins = numbers_of(build.array(operator.inputs[1]))
    lengths = numbers_of(build.array(operator.inputs[2]))
    shape = build.tensor(operator.inputs[0]).shape
    ends = [size if length < 0 else begin + length for begin, length, size in zip(begins, lengths, shape, strict=True)]
    _add_slice(build, operator, begins, ends, [1] * len(shape))


def _strided_slice(build: Importer, operator: FlatOperator) -> None:
    options, shape = operator.options, build.tensor(operator.inputs[0]).shape
    begins, ends, steps = (numbers_of(build.array(number)) for number in operator.inputs[1:4])
    if options.ellipsisMask or options.newAxisMask or len(begins) > len(shape):
        raise UnsupportedError("it names axes by an ellipsis, or adds some")
    taken = []
    for axis, size in enumerate(shape):
        if axis >= len(begins):
            taken.append(range(size))
            continue
        begin = None if options.beginMask >> axis & 1 else begins[axis]
        end = None if options.endMask >> axis & 1 else ends[axis]
        if options.shrinkAxisMask >> axis & 1:
            begin = begins[axis] % size
            taken.append(range(begin, begin + 1))
        else:
            taken.append(range(*slice(begin, end, steps[axis]).indices(size)))
    if any(one_axis.step < 0 for one_axis in taken):
        raise UnsupportedError("it goes backwards")
    _add_slice(build, operator, [r.start for r in taken], [r.stop for r in taken], [r.step for r in taken])


def _add_slice(
    build: Importer, operator: FlatOperator, begins: Sequence[int], ends: Sequence[int], steps: Sequence[int]
) -> None:
    """Adds a slice; where the result has fewer axes than the source, those of length 1 are dropped."""
    source, number = operator.inputs[0], operator.outputs[0]
    rank, shape = len(build.tensor(source).shape), build.tensor(number).shape
    is_first = build.is_map(source) and len(shape) == 4
    x = build.first(source) if is_first else build.plain(source)
    order = TO_FIRST if is_first else range(rank)
    bounds = [
        build.integers([values[axis] for axis in order], name)
        for values, name in ((begins, "begins"), (ends, "ends"), (steps, "steps"))
    ]
    bounds.insert(2, build.integers(range(rank), "axes"))
    y = build.add("Slice", [x, *bounds])
    if len(shape) != rank:
        y = build.add("Reshape", [y, build.integers(shape, "shape")])
    set_result(build, number, y, is_first=is_first)


def _gather(build: Importer, operator: FlatOperator) -> None:
    options = operator.options
    if options.batchDims:
        raise UnsupportedError("it has axes of a batch")
    axis = options.axis % max(1, len(build.tensor(operator.inputs[0]).shape))
    y = build.add("Gather", [build.plain(operator.inputs[0]), build.plain(operator.inputs[1])], {"axis": axis})
    build.set_plain(operator.outputs[0], y)


def _tile(build: Importer, operator: FlatOperator) -> None:
    counts = build.integers(numbers_of(build.array(operator.inputs[1])), "counts")
    build.set_plain(operator.outputs[0], build.add("Tile", [build.plain(operator.inputs[0]), counts]))


def _broadcast(build: Importer, operator: FlatOperator) -> None:
    shape = build.integers(build.tensor(operator.outputs[0]).shape, "shape")
    build.set_plain(operator.outputs[0], build.add("Expand", [build.plain(operator.inputs[0]), shape]))


def _pack(build: Importer, operator: FlatOperator) -> None:
    """PACK: joins tensors along a new axis."""
    number = operator.outputs[0]
    shape = build.tensor(number).shape
    axis = operator.options.axis % len(shape)
    each = build.integers((*shape[:axis], 1, *shape[axis + 1 :]), "shape")
    parts = [build.add("Reshape", [build.plain(part), each]) for part in operator.inputs]
    build.set_plain(number, build.add("Concat", parts, {"axis": axis}))


def _unpack(build: Importer, operator: FlatOperator) -> None:
    """UNPACK: the parts of a tensor along an axis, without it."""
    source = operator.inputs[0]
    axis = operator.options.axis % len(build.tensor(source).shape)
    for index, number in enumerate(operator.outputs):
        place = build.constant(np.array(index, np.int64), "index")
        build.set_plain(number, build.add("Gather", [build.plain(source), place], {"axis": axis}))


def _shape(build: Importer, operator: FlatOperator) -> None:
    """SHAPE: known, since TFLite's shapes are."""
    number = operator.outputs[0]
    shape = np.array(build.tensor(operator.inputs[0]).shape, build.tensor(number).dtype)
    build.set_plain(number, build.add("Identity", [build.constant(shape, build.tensor(number).name)]))


LOWERINGS: Mapping[str, Lowering] = {
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), _reshape),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _pad),
    **dict.fromkeys(("SPLIT", "SPLIT_V"), _split),
    "BROADCAST_TO": _broadcast,
    "CONCATENATION": _concat,
    "GATHER": _gather,
    "PACK": _pack,
    "SHAPE": _shape,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided_slice,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
}
