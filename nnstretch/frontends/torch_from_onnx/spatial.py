"""Resizing, padding and moving elements between channels and the map."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch import fx, nn
from torch.nn import functional

from nnstretch.frontends.torch_from_onnx.builder import Builder, Built, Converters, UnsupportedError
from nnstretch.frontends.torch_from_onnx.resizing import ResizedMap
from nnstretch.passes.rewriting import argument, constant, constant_integers, integers

_RESIZE_ATTRIBUTES = (
    "antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode"
)  # fmt: skip
"""Attributes that say what a Resize computes, beside its sizes or scales."""
_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _resize(build: Builder, node: ir.Node) -> Built:
    """Resize of a map by torch's own layer where that has the mode."""
    before, after = build.shape(node.inputs[0]), build.shape(node.outputs[0])
    axes, scales = len(before) - 2, _stated_scales(node, len(before))
    if before[:2] != after[:2]:
        raise UnsupportedError("it resizes other axes than those of the map")
    x, mode = build.tensor(node.inputs[0]), _mode(node, axes, before[2:], after[2:])
    if mode is None:
        return build.layer(node, _resized_map(node, before[2:], after[2:], scales), x)
    kind, is_aligned = mode
    size: dict[str, Any] = {"size": after[2:]}
    if scales is not None:
        size = {"scale_factor": scales}
    elif all(large % small == 0 for small, large in zip(before[2:], after[2:], strict=True)):
        size = {"scale_factor": tuple(large / small for small, large in zip(before[2:], after[2:], strict=True))}
    upsample = nn.Upsample(mode=kind, align_corners=is_aligned, **({"size": after[2:]} if is_aligned else size))
    return build.layer(node, upsample, x)


def _stated_scales(node: ir.Node, axes: int) -> tuple[float, ...] | None:
    """The scales of the map's axes, if the node states scales and not sizes.

    Args:
        node: a Resize.
        axes: of the tensor that it reads.
    """
    stated = constant(argument(node, 2))
    if stated is None or not stated.size:
        return None
    by_axis = dict(zip((axis % axes for axis in integers(node, "axes", range(axes))), stated.tolist(), strict=True))
    return tuple(float(by_axis.get(axis, 1.0)) for axis in range(2, axes))


def _mode(node: ir.Node, axes: int, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[str, bool | None] | None:
    """The mode of torch's resizing and its `align_corners`; None if torch has none."""
    mode = node.attributes.get_string("mode", "nearest")
    place = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounding = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    if node.attributes.get_int("antialias", 0) or node.attributes.get_int("exclude_outside", 0):
        return None
    grows = all(large % small == 0 for small, large in zip(before, after, strict=True))
    if mode == "nearest":
        is_floor = place == "asymmetric" and rounding == "floor"
        # Where the scale is whole, every element is repeated; only ties could be rounded otherwise, and there are none.
        is_repeated = grows and place in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
        if is_floor or (is_repeated and rounding in ("round_prefer_floor", "round_prefer_ceil")):
            return "nearest", None
        if place in ("half_pixel", "pytorch_half_pixel") and rounding == "round_prefer_ceil":
            return "nearest-exact", None
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}.get(axes)
    kind = linear if mode == "linear" else "bicubic" if mode == "cubic" and axes == 2 else None
    if kind is not None and not (mode == "cubic" and node.attributes.get_float("cubic_coeff_a", -0.75) != -0.75):
        if place in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"):
            return kind, False
        if place == "align_corners":
            return kind, True
    return None


def _resized_map(
    node: ir.Node, before: tuple[int, ...], after: tuple[int, ...], scales: tuple[float, ...] | None
) -> ResizedMap:
    """The module for a mode that torch does not have."""
    place = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if len(before) != 2 or place == "tf_crop_and_resize":
        raise UnsupportedError(f"torch has no resizing of {len(before)} axes by {place}")
    attributes = {
        name: attribute.as_string() if attribute.type == ir.AttributeType.STRING else attribute.value
        for name, attribute in node.attributes.items()
        if name in _RESIZE_ATTRIBUTES
    }
    return ResizedMap(before, after, scales, attributes)


def _pad(build: Builder, node: ir.Node) -> Built:
    """Pad with constant pads; a map padded with zeros as a module."""
    axes = build.axes(node.inputs[0])
    pads, named = constant_integers(node, "pads", 1), constant_integers(node, "axes", 3, tuple(range(axes)))
    if pads is None or named is None:
        raise UnsupportedError("its pads are computed in the run")
    value = constant(argument(node, 2))
    number = node.attributes.get_float("value", 0.0) if value is None else value.reshape(()).item()
    mode = node.attributes.get_string("mode", "constant")
    ends = {axis % axes: (pads[i], pads[len(named) + i]) for i, axis in enumerate(named)}
    first = min((axis for axis, pair in ends.items() if any(pair)), default=axes)
    if mode != "constant" and first < 2:
        raise UnsupportedError(f"it pads axis {first} by {mode}")
    first = 2 if mode != "constant" else first
    around = tuple(n for axis in reversed(range(first, axes)) for n in ends.get(axis, (0, 0)))
    x = build.tensor(node.inputs[0])
    if mode == "constant" and number == 0 and axes == 4 and first >= 2 and min(around, default=0) >= 0:
        left, right, top, bottom = (*around, 0, 0, 0, 0)[:4]
        return build.layer(node, nn.ZeroPad2d((left, right, top, bottom)), x)
    if mode == "constant":
        return build.call(functional.pad, x, around, value=number)
    if mode not in _PAD_MODES:
        raise UnsupportedError(f"it pads by {mode}")
    return build.call(functional.pad, x, around, mode=_PAD_MODES[mode])


def _depth_to_space(build: Builder, node: ir.Node) -> Built:
    """DepthToSpace in both orders of channels."""
    block, x = node.attributes.get_int("blocksize", 1), build.tensor(node.inputs[0])
    if node.attributes.get_string("mode", "DCR") == "CRD":
        return build.layer(node, nn.PixelShuffle(block), x)
    _, channels, height, width = build.shape(node.inputs[0])
    blocks = build.call(torch.reshape, x, (-1, block, block, channels // block**2, height, width))
    mixed = build.call(torch.permute, blocks, (0, 3, 4, 1, 5, 2))
    return build.call(torch.reshape, mixed, (-1, channels // block**2, height * block, width * block))


def _space_to_depth(build: Builder, node: ir.Node) -> Built:
    block, x = node.attributes.get_int("blocksize", 1), build.tensor(node.inputs[0])
    _, channels, height, width = build.shape(node.inputs[0])
    blocks: fx.Node = build.call(torch.reshape, x, (-1, channels, height // block, block, width // block, block))
    mixed = build.call(torch.permute, blocks, (0, 3, 5, 1, 2, 4))
    return build.call(torch.reshape, mixed, (-1, channels * block**2, height // block, width // block))


def _grid_sample(build: Builder, node: ir.Node) -> Built:
    mode = node.attributes.get_string("mode", "linear")
    return build.call(
        functional.grid_sample,
        build.tensor(node.inputs[0]),
        build.tensor(node.inputs[1]),
        mode={"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode),
        padding_mode=node.attributes.get_string("padding_mode", "zeros"),
        align_corners=bool(node.attributes.get_int("align_corners", 0)),
    )


OPERATORS: Converters = {
    "Resize": _resize,
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "GridSample": _grid_sample,
}
