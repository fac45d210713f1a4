"""Pooling and resizing."""

from __future__ import annotations

import numpy as np

from nnstretch.devices.base.routine import Lowering, Parameters
from nnstretch.devices.opencl.routines.base import INPUT, OpenCLRoutine, ceil_div, constant, is_image
from nnstretch.graph.layer import Layer

_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
_NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


class Pool(OpenCLRoutine):
    """Maximum and average over windows, blocked in and out."""

    algorithm = "pool"
    source = "pool.cl"
    ops = ("MaxPool", "AveragePool")
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return is_image(layer.type_of(0))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `max_pool` or `average_pool`."""
        del parameters
        n, c, h, w = layer.type_of(0).shape
        oh, ow = layer.outputs[0].shape[2:]
        blocks = self.blocks(c)
        rows = self.per_item(oh, blocks * n)
        top, left, bottom, right = layer.ints("pads")
        window = (blocks, h, w, oh, ow, *layer.ints("kernel"), *layer.ints("strides"))
        if layer.op == "MaxPool":
            kernel = "max_pool"
            words = (*window, *layer.ints("dilations"), top, left, rows)
        else:
            include = layer.attributes["count_include_pad"]
            assert isinstance(include, int)
            kernel = "average_pool"
            words = (*window, top, left, bottom, right, include, rows)
        call = self.call(kernel, (INPUT,), (*words, *layer.activation.words()), (ceil_div(oh, rows), blocks, n))
        return Lowering((call,))


class GlobalPool(OpenCLRoutine):
    """Maximum or average over whole planes, blocked in and out."""

    algorithm = "global_pool"
    source = "pool.cl"
    ops = ("GlobalPool",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return is_image(layer.type_of(0)) and layer.attributes["mode"] in ("average", "max")

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `global_pool`."""
        del parameters
        n, c, h, w = layer.type_of(0).shape
        blocks = self.blocks(c)
        words = (blocks, h * w, int(layer.attributes["mode"] == "max"), *layer.activation.words())
        return Lowering((self.call("global_pool", (INPUT,), words, (blocks, n)),))


class Resize(OpenCLRoutine):
    """Nearest and linear interpolation along height and width, blocked in and out."""

    algorithm = "resize"
    source = "resize.cl"
    ops = ("Resize",)

    def _supports(self, layer: Layer) -> bool:
        mode, nearest = layer.attributes["mode"], layer.attributes["nearest"]
        return (
            is_image(layer.type_of(0))
            and layer.type_of(0).shape[:2] == layer.outputs[0].shape[:2]
            and layer.attributes["coordinates"] in _COORDINATES
            and (mode == "linear" or (mode == "nearest" and nearest in _NEAREST))
        )

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `resize`, with tables of input positions for rows and columns."""
        del parameters
        n, c, h, w = layer.type_of(0).shape
        oh, ow = layer.outputs[0].shape[2:]
        scales = layer.attributes["scales"]
        assert isinstance(scales, tuple)
        tables = tuple(
            _table(layer, size, out_size, np.float32(scale))
            for size, out_size, scale in zip((h, w), (oh, ow), scales, strict=True)
        )
        blocks = self.blocks(c)
        rows = self.per_item(oh, blocks * n)
        linear = int(layer.attributes["mode"] == "linear")
        words = (blocks, h, w, oh, ow, rows, linear, *layer.activation.words())
        call = self.call("resize", (INPUT, constant(0), constant(1)), words, (ceil_div(oh, rows), blocks, n))
        return Lowering((call,), tables)


def _table(layer: Layer, size: int, out_size: int, scale: np.float32) -> np.ndarray:
    """Per output position of one axis: first and second input index (bits of int32), weight of the second."""
    position = _positions(str(layer.attributes["coordinates"]), size, out_size, scale)
    table = np.zeros((out_size, 3), np.float32)
    indices = table.view(np.int32)
    if layer.attributes["mode"] == "linear":
        position = np.clip(position, 0, size - 1)
        first = np.minimum(position.astype(np.int32), size - 1)
        indices[:, 0] = first
        indices[:, 1] = np.minimum(first + 1, size - 1)
        table[:, 2] = position - first.astype(np.float32)
    else:
        chosen = _rounded(str(layer.attributes["nearest"]), position)
        indices[:, 0] = indices[:, 1] = np.clip(chosen, 0, size - 1).astype(np.int32)
    return table.ravel()


def _positions(coordinates: str, size: int, out_size: int, scale: np.float32) -> np.ndarray:
    """Input coordinates of output positions, computed in float32 like ONNX Runtime."""
    x = np.arange(out_size, dtype=np.float32)
    half = np.float32(0.5)
    if coordinates == "asymmetric":
        return x / scale
    if coordinates == "align_corners":
        return x * np.float32(size - 1) / np.float32(out_size - 1) if out_size > 1 else np.zeros_like(x)
    if coordinates == "pytorch_half_pixel" and out_size == 1:
        return np.zeros_like(x)
    return (x + half) / scale - half


def _rounded(nearest: str, position: np.ndarray) -> np.ndarray:
    half = np.float32(0.5)
    shift = {"round_prefer_floor": -half, "round_prefer_ceil": half}.get(nearest, np.float32(0.0))
    up = nearest in ("ceil", "round_prefer_floor")
    return np.asarray(np.ceil(position + shift) if up else np.floor(position + shift))
