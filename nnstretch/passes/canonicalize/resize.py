"""Resize over H and W."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from nnstretch.passes.rewriting import (
    argument,
    become,
    constant,
    float_shape,
    integer,
    integers,
    is_onnx,
    text,
)

_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
_NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def lower_resize(node: ir.Node) -> bool:
    """Nearest and linear Resize over H and W becomes canonical."""
    if not is_onnx(node, "Resize"):
        return False
    source, result = float_shape(node.inputs[0]), float_shape(node.outputs[0])
    if source is None or result is None or len(source) != 4 or source[:2] != result[:2]:
        return False
    mode, coordinates = (
        text(node, "mode", "nearest"),
        text(node, "coordinate_transformation_mode", "half_pixel"),
    )
    nearest = text(node, "nearest_mode", "round_prefer_floor") if mode == "nearest" else "floor"
    if mode not in ("nearest", "linear") or coordinates not in _COORDINATES or nearest not in _NEAREST:
        return False
    if integer(node, "antialias", 0) or integer(node, "exclude_outside", 0):
        return False
    scales = _scales(node, source, result)
    if scales is None:
        return False
    return become(
        node,
        "Resize",
        node.inputs[:1],
        {"mode": mode, "coordinates": coordinates, "nearest": nearest, "scales": scales},
    )


def _scales(node: ir.Node, source: tuple[int, ...], result: tuple[int, ...]) -> tuple[float, float] | None:
    """Scales of H and W, as stated or from the sizes; None where other axes are scaled too."""
    axes = [axis % 4 for axis in integers(node, "axes", range(4))]
    stated = constant(argument(node, 2))
    if stated is not None and stated.size:
        by_axis = dict(zip(axes, stated.astype(np.float64).tolist(), strict=True))
        if by_axis.get(0, 1.0) != 1.0 or by_axis.get(1, 1.0) != 1.0:
            return None
        return by_axis.get(2, 1.0), by_axis.get(3, 1.0)
    if argument(node, 3) is None or text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    return result[2] / source[2], result[3] / source[3]
