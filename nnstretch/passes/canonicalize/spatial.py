"""Operators over N,C,H,W images: convolutions, pools and resizes, and the pads that these absorb."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import ActivationKind
from nnstretch.graph.layer import Attribute
from nnstretch.graph.resizing import COORDINATES, INTERPOLATED_COORDINATES
from nnstretch.passes.rewriting import (
    Lowerings,
    Rewrite,
    activation_of,
    argument,
    become,
    constant,
    constant_integers,
    float_initializer,
    float_shape,
    graph_of,
    has_one_result,
    initializer,
    insert,
    integers,
    is_canonical,
    is_onnx,
    producer_of,
    scalar,
    set_attributes,
    set_inputs,
    sole_use,
    unused_value_name,
)

_GLOBAL_MODES = {"GlobalAveragePool": "average", "GlobalMaxPool": "max", "ReduceMean": "average", "ReduceMax": "max"}


@dataclass(frozen=True)
class _Window:
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, int, int, int]


def lower_pool(node: ir.Node) -> bool:
    """MaxPool and AveragePool over H and W become canonical, or GlobalPool where one window is the whole image.

    One over N,C,L is one over N,C,1,L between reshapes.

    Ceil mode becomes larger pads at the bottom and right, which give the shape and do not change the values.
    """
    source, result = float_shape(node.inputs[0]), float_shape(node.outputs[0])
    if source is None or result is None or len(source) not in (3, 4):
        return False
    if not has_one_result(node):
        return False
    if len(source) == 3:
        return _lower_line(node, source, lower_pool)
    kernel = integers(node, "kernel_shape", ())
    strides, dilations = integers(node, "strides", (1, 1)), integers(node, "dilations", (1, 1))
    stated = explicit_pads(node, source[2:], kernel, strides, dilations)
    pads = _pads_for(source[2:], result[2:], _Window(kernel, strides, dilations, stated))
    if pads is None:
        return False
    maximum, counts_pads = node.op_type == "MaxPool", node.attributes.get_int("count_include_pad", 0)
    if not any(pads) and kernel == source[2:] and result[2:] == (1, 1):
        return become(node, "GlobalPool", node.inputs[:1], {"mode": "max" if maximum else "average"})
    window: dict[str, Attribute] = {"kernel": kernel, "strides": strides, "pads": pads}
    if maximum:
        return become(node, "MaxPool", node.inputs[:1], {**window, "dilations": dilations})
    # What ceil mode adds beyond the pads is never counted in a mean, which pads cannot say.
    if dilations != (1, 1) or (counts_pads and pads != stated):
        return False
    # Without pads both ways of counting are the same, and a layer should have one name.
    counted = {"count_include_pad": counts_pads if any(pads) else 0}
    return become(node, "AveragePool", node.inputs[:1], {**window, **counted})


def _pads_for(size: Sequence[int], result: Sequence[int], window: _Window) -> tuple[int, int, int, int] | None:
    """The pads of `window`, those at bottom and right made large enough for `result`; None if none are sound.

    Every window must hold at least one pixel of the image, or a mean would divide by zero.
    """
    begins, ends = window.pads[:2], list(window.pads[2:])
    for axis in range(2):
        span = extent(window.kernel[axis], window.dilations[axis])
        last = (result[axis] - 1) * window.strides[axis] - begins[axis]
        ends[axis] = max(ends[axis], last + span - size[axis])
        steps = (size[axis] + begins[axis] + ends[axis] - span) // window.strides[axis] + 1
        if steps != result[axis] or begins[axis] >= span or last >= size[axis] or min(begins[axis], ends[axis]) < 0:
            return None
        # Taps of a dilated window can all miss the image although its extent covers it.
        if window.dilations[axis] > 1 and (begins[axis] or ends[axis]) and span > size[axis]:
            return None
    return begins[0], begins[1], ends[0], ends[1]


def lower_global_pool(node: ir.Node) -> bool:
    """Global pools, and means and maxima over H and W, become GlobalPool and, where they keep no axes, Reshape.

    A global pool over N,C,L is one over N,C,1,L.
    """
    source, result = float_shape(node.inputs[0]), float_shape(node.outputs[0])
    if source is None or result is None:
        return False
    if len(source) == 3 and node.op_type.startswith("Global"):
        image = (insert(node, "Reshape", node.inputs[:1], (*source[:2], 1, source[2])),)
        pool = insert(node, "GlobalPool", image, (*source[:2], 1, 1), {"mode": _GLOBAL_MODES[node.op_type]})
        return become(node, "Reshape", (pool,))
    if len(source) != 4:
        return False
    if node.op_type.startswith("Reduce"):
        axes = constant_integers(node, "axes", 1)
        if axes is None or {axis % 4 for axis in axes} != {2, 3}:
            return False
    attributes = {"mode": _GLOBAL_MODES[node.op_type]}
    pooled = (*source[:2], 1, 1)
    if result == pooled:
        return become(node, "GlobalPool", node.inputs[:1], attributes)
    value = insert(node, "GlobalPool", node.inputs[:1], pooled, attributes)
    return become(node, "Reshape", (value,))


def lower_convolution(node: ir.Node) -> bool:
    """Conv over N,C,H,W with constant weights becomes canonical; `auto_pad` becomes explicit pads.

    One over N,C,L is one over N,C,1,L between reshapes.
    """
    source, weight, bias = node.inputs[0], constant(argument(node, 1)), constant(argument(node, 2))
    shape, result = float_shape(source), float_shape(node.outputs[0])
    if shape is None or result is None or len(shape) not in (3, 4) or weight is None:
        return False
    if argument(node, 2) is not None and bias is None:
        return False
    if len(shape) == 3:
        image_weight = float_initializer(node, "weight", weight[:, :, None])
        return _lower_line(node, shape, lower_convolution, image_weight, argument(node, 2))
    strides, dilations = integers(node, "strides", (1, 1)), integers(node, "dilations", (1, 1))
    pads = explicit_pads(node, shape[2:], weight.shape[2:], strides, dilations)
    if min(pads) < 0:
        return False
    groups = node.attributes.get_int("group", 1)
    attributes: dict[str, Attribute] = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    # Exporters write a bias of zeros where there was none.
    bias_value = argument(node, 2) if bias is not None and bias.any() else None
    return become(node, "Conv", (source, argument(node, 1), bias_value, None), attributes)


def _lower_line(node: ir.Node, shape: tuple[int, ...], lower: Rewrite, *constants: ir.Value | None) -> bool:
    """A Conv or pool over N,C,L becomes Reshape, what `lower` makes of one over N,C,1,L, and Reshape."""
    graph, result = graph_of(node), float_shape(node.outputs[0])
    assert result is not None
    attributes = {name: value for name, value in node.attributes.items() if name not in ("pads", "kernel_shape")}
    stated = [name for name in ("strides", "dilations") if name in node.attributes]  # not all versions have all
    lists: dict[str, tuple[int, ...]] = {name: (1, *integers(node, name, ())) for name in stated}
    if "pads" in node.attributes:
        lists["pads"] = tuple(n for pad in integers(node, "pads", ()) for n in (0, pad))
    if "kernel_shape" in node.attributes:
        lists["kernel_shape"] = (1, *integers(node, "kernel_shape", ()))
    inner = ir.node(
        node.op_type,
        (insert(node, "Reshape", node.inputs[:1], (*shape[:2], 1, shape[2])), *constants),
        {**attributes, **lists},
        outputs=[
            ir.Value(
                name=unused_value_name(graph, f"{node.outputs[0].name}/image"),
                shape=ir.Shape((*result[:2], 1, result[2])),
                type=ir.TensorType(ir.DataType.FLOAT),
            )
        ],
        name=f"{node.name}/image",
        metadata_props=dict(node.metadata_props),
    )
    graph.insert_before(node, inner)
    lower(inner)
    return become(node, "Reshape", inner.outputs)


def explicit_pads(
    node: ir.Node, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, int, int, int]:
    """Pads (top, left, bottom, right) of a convolution or pooling node over images of `size` (h, w)."""
    mode = node.attributes.get_string("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        top, left, bottom, right = integers(node, "pads", (0, 0, 0, 0))
        return top, left, bottom, right
    if mode == "VALID":
        return 0, 0, 0, 0
    begins, ends = [], []
    for length, taps, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
        steps = -(-length // stride)
        total = max((steps - 1) * stride + extent(taps, dilation) - length, 0)
        begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
        begins.append(begin)
        ends.append(total - begin)
    return begins[0], begins[1], ends[0], ends[1]


def extent(taps: int, dilation: int) -> int:
    """Pixels from the first to the last tap of a window, both counted."""
    return (taps - 1) * dilation + 1


_NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def lower_resize(node: ir.Node) -> bool:
    """Resize over H and W becomes canonical, unless it crops."""
    source, result = float_shape(node.inputs[0]), float_shape(node.outputs[0])
    if source is None or result is None or len(source) != 4 or source[:2] != result[:2]:
        return False
    mode, coordinates = (
        node.attributes.get_string("mode", "nearest"),
        node.attributes.get_string("coordinate_transformation_mode", "half_pixel"),
    )
    nearest = node.attributes.get_string("nearest_mode", "round_prefer_floor") if mode == "nearest" else "floor"
    known = COORDINATES if mode == "nearest" else INTERPOLATED_COORDINATES
    if mode not in ("nearest", "linear", "cubic") or coordinates not in known or nearest not in _NEAREST:
        return False
    scales = _scales(node, source, result)
    if scales is None:
        return False
    attributes: dict[str, Attribute] = {"mode": mode, "coordinates": coordinates, "nearest": nearest, "scales": scales}
    # Antialiasing widens the filter of an axis that shrinks, and does nothing to others.
    antialias = mode != "nearest" and bool(node.attributes.get_int("antialias", 0)) and min(scales) < 1
    if antialias:
        attributes["mode"] = f"{mode}_antialias"
    if mode == "cubic":
        attributes["cubic_coefficient"] = node.attributes.get_float("cubic_coeff_a", -0.75)
        attributes["exclude_outside"] = node.attributes.get_int("exclude_outside", 0)
    elif node.attributes.get_int("exclude_outside", 0):
        return False
    return become(node, "Resize", node.inputs[:1], attributes)


def _scales(node: ir.Node, source: tuple[int, ...], result: tuple[int, ...]) -> tuple[float, float] | None:
    """Scales of H and W, as stated or from the sizes; None where other axes are scaled too."""
    if source == result:  # engines copy such an image, whatever scale its size was rounded from
        return 1.0, 1.0
    axes = [axis % 4 for axis in integers(node, "axes", range(4))]
    stated = constant(argument(node, 2))
    if stated is not None and stated.size:
        by_axis = dict(zip(axes, stated.astype(np.float64).tolist(), strict=True))
        if by_axis.get(0, 1.0) != 1.0 or by_axis.get(1, 1.0) != 1.0:
            return None
        return by_axis.get(2, 1.0), by_axis.get(3, 1.0)
    if argument(node, 3) is None or node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    return result[2] / source[2], result[3] / source[3]


_NEVER_NEGATIVE = (
    ActivationKind.RELU,
    ActivationKind.SIGMOID,
    ActivationKind.HARD_SIGMOID,
    ActivationKind.EXP,
    ActivationKind.SOFTPLUS,
)


def drop_taps(node: ir.Node) -> bool:
    """Taps of a dilated Conv that read nothing but pads go, with the pads that they needed.

    A dilation as large as the image leaves the middle tap alone: 3 × 3 becomes 1 × 1.
    """
    if not is_canonical(node, "Conv"):
        return False
    shape, result, weight = float_shape(node.inputs[0]), float_shape(node.outputs[0]), constant(node.inputs[1])
    is_dequantized = producer_of(node.inputs[1]) is not None  # and computed in int8 later
    if shape is None or result is None or weight is None or is_dequantized:
        return False
    strides, pads, dilations = (integers(node, name, ()) for name in ("strides", "pads", "dilations"))
    if max(dilations) == 1:  # of other kernels only those on images of a few pixels have such taps
        return False
    begins, ends, kept = [], [], []
    for axis, (size, steps, taps) in enumerate(zip(shape[2:], result[2:], weight.shape[2:], strict=True)):
        reach = (steps - 1) * strides[axis]
        firsts = [tap * dilations[axis] - pads[axis] for tap in range(taps)]
        inside = [tap for tap, first in enumerate(firsts) if first < size and first + reach >= 0]
        if not inside or firsts[inside[0]] > 0:
            return False
        kept.append(slice(inside[0], inside[-1] + 1))
        begins.append(-firsts[inside[0]])
        ends.append(max(0, reach + firsts[inside[-1]] + 1 - size))
    cropped = weight[:, :, kept[0], kept[1]]
    if cropped.shape == weight.shape:
        return False
    node.replace_input_with(1, float_initializer(node, "weight", np.ascontiguousarray(cropped)))
    spread = tuple(d if taps > 1 else 1 for d, taps in zip(dilations, cropped.shape[2:], strict=True))
    set_attributes(node, {"pads": (*begins, *ends), "dilations": spread})
    return True


def fold_pad(node: ir.Node) -> bool:
    """A constant Pad over H and W goes into the Conv or pool that alone reads it, if that pads likewise."""
    if not is_onnx(node, "Pad") or node.attributes.get_string("mode", "constant") != "constant":
        return False
    pads = _image_pads(node)
    if pads is None or not sole_use(node.outputs[0]):
        return False
    value = 0.0 if argument(node, 2) is None else scalar(argument(node, 2))
    ((reader, index),) = node.outputs[0].uses()
    if value is None or index != 0 or not _accepts(reader, pads, value, node.inputs[0]):
        return False
    total = tuple(own + more for own, more in zip(integers(reader, "pads", ()), pads, strict=True))
    reader.replace_input_with(0, node.inputs[0])
    set_attributes(reader, {"pads": total})
    if is_canonical(reader, "AveragePool"):
        set_attributes(reader, {"count_include_pad": 1})
    graph_of(node).remove(node, safe=True)
    return True


def _image_pads(node: ir.Node) -> tuple[int, int, int, int] | None:
    """Pads (top, left, bottom, right) of a Pad that pads nothing but H and W of a float32 image."""
    shape = float_shape(node.inputs[0])
    pads = _pads_by_axis(node, 4) if shape is not None and len(shape) == 4 else None
    if pads is None or any(any(pad) for pad in pads[:2]):
        return None
    (top, bottom), (left, right) = pads[2:]
    return (top, left, bottom, right) if min(top, left, bottom, right) >= 0 else None


def crop_first(node: ir.Node) -> bool:
    """A constant Pad some of whose pads are negative becomes a Slice and a Pad with the others."""
    if node.attributes.get_string("mode", "constant") != "constant":
        return False
    source, shape = node.inputs[0], float_shape(node.inputs[0])
    pads = _pads_by_axis(node, len(shape)) if shape else None
    if source is None or shape is None or pads is None or min(map(min, pads)) >= 0:
        return False
    starts = np.array([max(-before, 0) for before, _ in pads])
    ends = np.array([size - max(-after, 0) for size, (_, after) in zip(shape, pads, strict=True)])
    if (starts >= ends).any():
        return False
    bounds = [initializer(node, role, array) for role, array in (("starts", starts), ("ends", ends))]
    cropped = insert(node, "Slice", (source, *bounds), tuple(ends - starts), domain="")
    remaining = np.maximum(np.array(pads), 0).T.reshape(-1)
    set_inputs(node, (cropped, initializer(node, "pads", remaining), argument(node, 2)))
    return True


def lower_pad(node: ir.Node) -> bool:
    """A Pad that no layer takes becomes Pad layers of one axis, or of two neighbours."""
    source, shape = (node.inputs[0], float_shape(node.inputs[0])) if is_onnx(node, "Pad") else (None, None)
    pads = _pads_by_axis(node, len(shape)) if shape else None
    value = 0.0 if argument(node, 2) is None else scalar(argument(node, 2))
    if source is None or shape is None or pads is None or value is None or constant(source) is not None:
        return False
    mode = node.attributes.get_string("mode", "constant")
    if min(map(min, pads)) < 0 or float_shape(node.outputs[0]) is None:
        return False
    groups: list[list[int]] = []
    for axis in (axis for axis in range(len(shape)) if any(pads[axis])):
        is_plane = mode == "constant" or axis == len(shape) - 1
        if groups and groups[-1] == [axis - 1] and is_plane:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    current, extents = source, list(shape)
    for number, group in enumerate(groups):
        own = [pads[axis] if axis in group else (0, 0) for axis in range(len(shape))]
        extents = [size + sum(pad) for size, pad in zip(extents, own, strict=True)]
        attributes: dict[str, Attribute] = {
            "pads": tuple(p[i] for i in (0, 1) for p in own),
            "mode": mode,
            "value": value,
        }
        if number == len(groups) - 1:
            return become(node, "Pad", (current,), attributes)
        current = insert(node, "Pad", (current,), extents, attributes)
    return False


def _pads_by_axis(node: ir.Node, rank: int) -> list[tuple[int, int]] | None:
    """Pads before and after each axis of a Pad; None if they are not constant."""
    pads, axes = constant(argument(node, 1)), constant(argument(node, 3))
    if pads is None or (axes is None and argument(node, 3) is not None):
        return None
    order = list(range(rank)) if axes is None else [int(axis) % rank for axis in axes]
    begins, ends = (dict(zip(order, half.tolist(), strict=True)) for half in (pads[: len(order)], pads[len(order) :]))
    return [(begins.get(axis, 0), ends.get(axis, 0)) for axis in range(rank)]


def _accepts(reader: ir.Node, pads: tuple[int, ...], value: float, source: ir.Value | None) -> bool:
    """Whether `reader` pads with `value`, as far as its result can tell."""
    if is_canonical(reader, "Conv"):
        return value == 0.0
    if not is_canonical(reader, "AveragePool", "MaxPool"):
        return False
    own = integers(reader, "pads", ())
    kernel, dilations = integers(reader, "kernel", ()), integers(reader, "dilations", (1, 1))
    # A window that lies in the pads altogether has no maximum, and no engine takes it.
    if any(dilations[axis % 2] != 1 or own[axis] + pads[axis] >= kernel[axis % 2] for axis in range(4)):
        return False
    if is_canonical(reader, "AveragePool"):
        return value == 0.0 and (not any(own) or reader.attributes.get_int("count_include_pad", 0) == 1)
    lowest = float(np.finfo(np.float32).min)
    return value <= lowest or (value == 0.0 and not any(own) and _never_negative(source))


def _never_negative(value: ir.Value | None) -> bool:
    producer = producer_of(value)
    if not is_canonical(producer, "Activation"):
        return False
    activation = activation_of(producer)
    return activation.kind in _NEVER_NEGATIVE or (activation.kind is ActivationKind.CLIP and activation.a >= 0.0)


LOWERINGS: Lowerings = {
    "Conv": (lower_convolution,),
    **dict.fromkeys(("MaxPool", "AveragePool"), (lower_pool,)),
    **dict.fromkeys(_GLOBAL_MODES, (lower_global_pool,)),
    "Resize": (lower_resize,),
}
