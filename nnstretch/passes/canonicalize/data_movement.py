"""Operators that move elements and change none: transpositions, slices, concatenations, splits, reshapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from nnstretch.graph.dtypes import CASTS, ELEMENT_TYPES
from nnstretch.graph.layer import Attribute
from nnstretch.passes.rewriting import (
    Lowerings,
    absorb,
    become,
    bypass,
    constant,
    constant_integers,
    float_shape,
    graph_of,
    insert,
    integers,
    is_canonical,
    is_onnx,
    producer_of,
    quantization_of,
    set_quantization,
    shape_of,
    sole_use,
)

_Shape = Callable[[ir.Value | None], tuple[int, ...] | None]
"""The shape of a value whose type a pass rewrites; None for other values."""


def lower_transpose(node: ir.Node, shape_of_moved: _Shape = float_shape) -> bool:
    """Transpose becomes canonical; those that only move axes of length 1 are Reshapes already."""
    shape = shape_of_moved(node.inputs[0])
    if shape is None or constant(node.inputs[0]) is not None:
        return False
    order = integers(node, "perm", tuple(reversed(range(len(shape)))))
    return become(node, "Transpose", node.inputs[:1], {"perm": order})


def lower_slice(node: ir.Node, shape_of_moved: _Shape = float_shape) -> bool:
    """Slice with constant bounds and steps forward becomes canonical."""
    shape, result = shape_of_moved(node.inputs[0]), shape_of_moved(node.outputs[0])
    if shape is None or not result or constant(node.inputs[0]) is not None or 0 in result:
        return False
    bounds = _bounds(node, len(shape))
    if bounds is None:
        return False
    starts, steps = [0] * len(shape), [1] * len(shape)
    for axis, (start, end, step) in bounds.items():
        if step < 1:
            return False
        taken = range(*slice(start, end, step).indices(shape[axis]))
        assert len(taken) == result[axis]
        starts[axis], steps[axis] = taken.start, step
    return become(node, "Slice", node.inputs[:1], {"starts": tuple(starts), "steps": tuple(steps)})


def _bounds(node: ir.Node, rank: int) -> dict[int, tuple[int, int, int]] | None:
    """Start, end and step of each axis that is sliced; None if they are not constant."""
    starts, ends = constant_integers(node, "starts", 1), constant_integers(node, "ends", 2)
    if starts is None or ends is None:
        return None
    axes = constant_integers(node, "axes", 3, range(len(starts)))
    steps = constant_integers(node, "steps", 4, (1,) * len(starts))
    if axes is None or steps is None:
        return None
    sliced = zip(axes, starts, ends, steps, strict=True)
    return {axis % rank: (start, end, step) for axis, start, end, step in sliced}


def lower_concat(node: ir.Node, shape_of_moved: _Shape = float_shape) -> bool:
    """Concat becomes canonical if it has no constants, or is of float32."""
    shape = shape_of_moved(node.outputs[0])
    if shape is None or any(shape_of_moved(value) is None for value in node.inputs):
        return False
    fixed = [constant(value) is not None for value in node.inputs]
    if all(fixed) or (any(fixed) and shape_of_moved is not float_shape):
        return False
    return become(node, "Concat", tuple(node.inputs), {"axis": node.attributes.get_int("axis", 0) % len(shape)})


_OF_OTHER_TYPES = {"Transpose": lower_transpose, "Slice": lower_slice, "Concat": lower_concat}


def lower_other_types(node: ir.Node) -> bool:
    """Transpose, Slice and Concat of other types than float32 become canonical, once quantised layers are known.

    They move integers whatever these stand for; all of a node's tensors get the quantisation parameters that one of them has.
    """
    if not is_onnx(node, *_OF_OTHER_TYPES):
        return False
    values = [
        value for value in (*node.inputs[: None if node.op_type == "Concat" else 1], *node.outputs) if value is not None
    ]
    quantizations = {quantization for value in values if (quantization := quantization_of(value)) is not None}
    lowered = len(quantizations) <= 1 and _OF_OTHER_TYPES[node.op_type](node, _shape_of_other_type)
    if lowered:
        for value, quantization in itertools.product(values, quantizations):
            set_quantization(value, quantization)
    return lowered


def _shape_of_other_type(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a value whose elements are of a type that the engine moves, but not of float32; not of an empty one."""
    shape = shape_of(value)
    if value is None or value.dtype in (None, ir.DataType.STRING, ir.DataType.FLOAT) or not shape or 0 in shape:
        return None
    row = ELEMENT_TYPES.get(value.dtype.numpy().name)
    return shape if row is not None and row.code else None


def lower_split(node: ir.Node) -> bool:
    """Split becomes one Slice for each of its outputs that is used."""
    source, shape = node.inputs[0], float_shape(node.inputs[0])
    parts = [float_shape(output) for output in node.outputs]
    if source is None or shape is None or constant(source) is not None:
        return False
    axis, start = node.attributes.get_int("axis", 0) % len(shape), 0
    if any(part is None or 0 in part for part in parts):
        return False
    for output, part in zip(tuple(node.outputs), parts, strict=True):
        assert part is not None
        starts = tuple(start if index == axis else 0 for index in range(len(shape)))
        start += part[axis]
        if output.uses() or output.is_graph_output():
            value = insert(node, "Slice", (source,), part, {"starts": starts, "steps": (1,) * len(shape)})
            output.replace_all_uses_with(value, replace_graph_outputs=True)
            value.name, output.name = output.name, None
    graph_of(node).remove(node, safe=True)
    return True


def lower_gather(node: ir.Node) -> bool:
    """Gather of places at equal distances, along each axis of its indices, becomes Slice, Reshape, Transpose and Concat.

    One place, a range of them, a view of a dense tensor (`as_strided` as torch exports it), and windows (`unfold`).
    """
    source, shape = node.inputs[0], float_shape(node.inputs[0])
    indices, result = constant(node.inputs[1]), float_shape(node.outputs[0])
    if source is None or not shape or not result or indices is None or constant(source) is not None or 0 in result:
        return False
    axis = node.attributes.get_int("axis", 0) % len(shape)
    first, distances = _evenly(indices.astype(np.int64) % shape[axis])
    order = sorted(
        (index for index, extent in enumerate(indices.shape) if extent > 1), key=lambda index: -distances[index]
    )
    if any(distances[index] < 1 for index in order):
        return False
    sizes, steps = [indices.shape[index] for index in order], [distances[index] for index in order]
    step = steps[-1] if order else 1
    if any(far != near * size for (far, near), size in zip(itertools.pairwise(steps), sizes[1:], strict=True)):
        return len(order) == 2 and _lower_windows(node, axis, first, [*zip(order, sizes, steps, strict=True)])
    if indices.ndim == 1:
        return become(node, "Slice", (source,), _bounds_of(shape, axis, first, step))
    taken = _cut(node, axis, first, step, indices.size)
    return _reordered(node, insert(node, "Reshape", (taken,), (*shape[:axis], *sizes, *shape[axis + 1 :])), axis, order)


def _lower_windows(node: ir.Node, axis: int, first: int, axes: Sequence[tuple[int, int, int]]) -> bool:
    """Gather of windows that overlap, or have gaps between them, becomes Slices and their Concat.

    Args:
        node: the Gather.
        axis: that it takes places of.
        first: the first place.
        axes: index, extent and distance of the two axes of the indices.
    """
    (window, count, apart), (along, size, step) = sorted(axes, key=lambda one: one[1])  # the fewest pieces
    if count > _MOST_WINDOWS:
        return False
    shape = float_shape(node.inputs[0]) or ()
    outer, inner = shape[:axis], shape[axis + 1 :]
    pieces = [_cut(node, axis, first + number * apart, step, size) for number in range(count)]
    joined = insert(node, "Concat", pieces, (*outer, count * size, *inner), {"axis": axis})
    windows = insert(node, "Reshape", (joined,), (*outer, count, size, *inner))
    return _reordered(node, windows, axis, [window, along])


_MOST_WINDOWS = 16
"""Pieces that a Gather of windows that overlap becomes at most; with more, a copy of each costs more than the fallback."""


def _evenly(indices: np.ndarray) -> tuple[int, list[int]]:
    """The first index and the distance of neighbours along each axis; distances of 0 if they are not equal."""
    even = first = indices.flat[0]
    distances = []
    for axis, extent in enumerate(indices.shape):
        distances.append(int(np.take(indices, min(1, extent - 1), axis).flat[0] - first))
        even = np.add.outer(even, np.arange(extent) * distances[-1])
    return int(first), distances if np.array_equal(even, indices) else [0] * indices.ndim


def _cut(node: ir.Node, axis: int, start: int, step: int, count: int) -> ir.Value | None:
    """The places start, start + step, … of an axis of what `node` reads, in front of it; that itself if these are all."""
    source, shape = node.inputs[0], float_shape(node.inputs[0]) or ()
    if (start, step, count) == (0, 1, shape[axis]):
        return source
    result = (*shape[:axis], count, *shape[axis + 1 :])
    return insert(node, "Slice", (source,), result, _bounds_of(shape, axis, start, step))


def _bounds_of(shape: Sequence[int], axis: int, start: int, step: int) -> dict[str, Attribute]:
    """Attributes of a Slice that takes every `step`-th place of one axis, from `start` on, and all of the others."""
    starts, steps = [0] * len(shape), [1] * len(shape)
    starts[axis], steps[axis] = start, step
    return {"starts": tuple(starts), "steps": tuple(steps)}


def _reordered(node: ir.Node, value: ir.Value, axis: int, order: Sequence[int]) -> bool:
    """Makes a node of a value whose axes from `axis` on are those of the indices in `order`."""
    shape = float_shape(value) or ()
    places = [axis + order.index(index) for index in sorted(order)]
    perm = (*range(axis), *places, *range(axis + len(order), len(shape)))
    if places == sorted(places):
        return become(node, "Reshape", (value,))
    moved = insert(node, "Transpose", (value,), [shape[place] for place in perm], {"perm": perm})
    return become(node, "Reshape", (moved,))


_BROADCASTING = ("Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "Where")


def skip_expand(node: ir.Node) -> bool:
    """Operators that broadcast read what is expanded for them, if their result stays what it is."""
    source = node.inputs[0] if is_onnx(node, "Expand") else None
    shape = float_shape(source)
    if source is None or shape is None:
        return False
    modified = False
    for reader, index in tuple(node.outputs[0].uses()):
        others = [shape_of(value) for place, value in enumerate(reader.inputs) if place != index]
        if not is_onnx(reader, *_BROADCASTING) or any(other is None for other in others):
            continue
        known = [other for other in others if other is not None]
        if np.broadcast_shapes(shape, *known) == shape_of(reader.outputs[0]):
            reader.replace_input_with(index, source)
            modified = True
    return modified


def lower_expand(node: ir.Node) -> bool:
    """Expand and Tile of run-time tensors become Expand, Tile between reshapes."""
    source, shape, result = node.inputs[0], float_shape(node.inputs[0]), float_shape(node.outputs[0])
    if source is None or not shape or result is None or constant(source) is not None:
        return False
    if node.op_type == "Expand":
        return become(node, "Expand", (source,))
    repeats = [after // before for before, after in zip(shape, result, strict=True)]
    apart = insert(node, "Reshape", (source,), [n for size in shape for n in (1, size)])
    pairs = zip(repeats, shape, strict=True)
    tiled = insert(node, "Expand", (apart,), [n for pair in pairs for n in pair])
    return become(node, "Reshape", (tiled,))


def lower_tiles(node: ir.Node) -> bool:
    """DepthToSpace and SpaceToDepth become canonical."""
    if float_shape(node.inputs[0]) is None or float_shape(node.outputs[0]) is None:
        return False
    attributes: dict[str, Attribute] = {"size": node.attributes.get_int("blocksize", 1)}
    if node.op_type == "DepthToSpace":
        attributes["mode"] = node.attributes.get_string("mode", "DCR")
    return become(node, node.op_type, node.inputs[:1], attributes)


def lower_reshape(node: ir.Node) -> bool:
    """Reshape, Flatten, Squeeze, Unsqueeze, and Transpose that only moves axes of length 1, become Reshape.

    So does an Identity that is left because both of its ends have names that callers know.
    """
    source, shape = node.inputs[0], float_shape(node.inputs[0])
    if source is None or source.is_initializer() or shape is None or float_shape(node.outputs[0]) is None:
        return False
    if node.op_type == "Transpose":
        order = integers(node, "perm", tuple(reversed(range(len(shape)))))
        long_axes = [axis for axis in order if shape[axis] != 1]
        if long_axes != sorted(long_axes):
            return False
    return become(node, "Reshape", (source,))


def merge_reshapes(node: ir.Node) -> bool:
    """Of two reshapes in a row one is enough, of one to the same shape none."""
    if not is_canonical(node, "Reshape"):
        return False
    source = node.inputs[0]
    if float_shape(source) == float_shape(node.outputs[0]) and bypass(node):
        return True
    producer = producer_of(source)
    if not is_canonical(producer, "Reshape") or not sole_use(source):
        return False
    absorb(producer, node)
    if float_shape(producer.inputs[0]) == float_shape(producer.outputs[0]):
        bypass(producer)
    return True


def lower_cast(node: ir.Node) -> bool:
    """Cast between types that the engine converts."""
    source, result = node.inputs[0], node.outputs[0]
    shape = shape_of(source)
    if source is None or not shape or 0 in shape or constant(source) is not None:
        return False
    if source.dtype is None or result.dtype is None or quantization_of(source) is not None:
        return False
    types = source.dtype.numpy().name, result.dtype.numpy().name
    return types in CASTS and become(node, "Cast", (source,), {})


LOWERINGS: Lowerings = {
    "Cast": (lower_cast,),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"), (lower_reshape,)),
    "Transpose": (lower_reshape, lower_transpose),
    "Slice": (lower_slice,),
    "Split": (lower_split,),
    "Concat": (lower_concat,),
    "Gather": (lower_gather,),
    **dict.fromkeys(("Expand", "Tile"), (lower_expand,)),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), (lower_tiles,)),
}
