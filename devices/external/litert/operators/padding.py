"""Padding in TFLite: of windows, and as a layer of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.external.litert.flatbuffer import FlatModel
from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.devices.external.litert.tensors import formed
from nnstretch.errors import ModelError
from nnstretch.graph.layers import GraphNode

_MOST_AXES = 5
"""Axes of PAD's input at most."""


def padded_window(file: FlatModel, source: int, window: KernelGeometry, value: float, name: str) -> tuple[int, int]:
    """The input and TFLite's padding mode of a window; pads the input explicitly if no mode fits."""
    modes = file.schema.Padding
    if window.is_valid:
        return source, modes.VALID
    if window.is_same:
        return source, modes.SAME
    return pad_window(file, source, window, value, name), modes.VALID


def pad_window(file: FlatModel, source: int, window: KernelGeometry, value: float, name: str) -> int:
    """Writes a pad of the image N,H,W,C to the extent of a window; returns the padded image."""
    (top, left), (bottom, right) = window.pads, window.ends
    batch, height, width, channels = file.shape(source)
    extents = (batch, height + top + bottom, width + left + right, channels)
    result = file.like(source, f"{name}:padded", extents)
    _write_pad(file, source, result, [(0, 0), (top, bottom), (left, right), (0, 0)], value)
    return result


def _write_pad(file: FlatModel, source: int, result: int, pads: Sequence[tuple[int, int]], value: float) -> None:
    operands = [source, file.constant(np.array(pads, np.int32), f"pads:{result}")]
    if value == 0.0:
        file.operator("PAD", operands, [result], table="PadOptions")
    else:
        file.operator("PADV2", [*operands, file.number(value, source)], [result], table="PadV2Options")


class Paddings(OperatorFamily):
    """Pads of all modes; TFLite has no operators for "edge" and "wrap", which gather the pads' elements."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {"Pad": self._pad}

    def _pad(self, node: GraphNode) -> None:
        """Writes a pad.

        Raises:
            ModelError: it pads more separate axes than TFLite does.
        """
        layer = node.layer
        form = self._stored_form(node)
        given, rank = layer.ints("pads"), len(layer.outputs[0].shape)
        pads = list(zip(formed(given[:rank], form), formed(given[rank:], form), strict=True))
        source, mode = self._tensors.read(node, 0, form), str(layer.attributes["mode"])
        with self._before_activation(node, form) as result:
            if mode == "constant":
                self._constant(source, result, pads, float(layer.attributes["value"]), layer.name)  # type: ignore[arg-type]
            elif mode == "reflect":
                operands = [source, self._integers(pads, f"{layer.name}:pads")]
                self._file.operator(
                    "MIRROR_PAD",
                    operands,
                    [result],
                    {"mode": self._file.schema.MirrorPadMode.REFLECT},
                    table="MirrorPadOptions",
                )
            elif mode in ("edge", "wrap"):
                self._gathered(source, result, pads, mode)
            else:
                raise ModelError(f"layer {layer.name} pads by {mode!r}, which TFLite does not have")

    def _constant(self, source: int, result: int, pads: Sequence[tuple[int, int]], value: float, name: str) -> None:
        """Writes a pad; unpadded neighbours are one axis if there are too many."""
        shape = self._file.shape(source)
        if len(shape) <= _MOST_AXES:
            _write_pad(self._file, source, result, pads, value)
            return
        extents, merged = zip(*_merged(shape, pads), strict=True)
        if len(extents) > _MOST_AXES:
            raise ModelError(f"layer {name} pads a tensor with {len(shape)} axes; TFLite pads {_MOST_AXES}")
        target = [extent + before + after for extent, (before, after) in zip(extents, merged, strict=True)]
        padded = self._file.like(source, f"{name}:merged", target)
        _write_pad(self._file, self._reshaped(source, extents), padded, merged, value)
        self._tensors.reshaped(padded, result)

    def _gathered(self, source: int, result: int, pads: Sequence[tuple[int, int]], mode: str) -> None:
        """Writes a gather along every padded axis."""
        padded = [axis for axis, pair in enumerate(pads) if any(pair)]
        if not padded:
            self._tensors.reshaped(source, result)
        for axis in padded:
            shape = list(self._file.shape(source))
            before, after = pads[axis]
            positions = np.arange(-before, shape[axis] + after)
            indices = positions % shape[axis] if mode == "wrap" else positions.clip(0, shape[axis] - 1)
            shape[axis] = len(indices)
            made = result if axis == padded[-1] else self._file.like(source, f"gathered:{source}", shape)
            operands = [source, self._integers(indices, f"indices:{made}")]
            self._file.operator("GATHER", operands, [made], {"axis": axis}, table="GatherOptions")
            source = made


def _merged(shape: Sequence[int], pads: Sequence[tuple[int, int]]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Extents and pads of the axes, with neighbours that are not padded as one."""
    unpadded = 1
    for extent, pair in zip(shape, pads, strict=True):
        if not any(pair):
            unpadded *= extent
            continue
        if unpadded > 1:
            yield unpadded, (0, 0)
        yield extent, pair
        unpadded = 1
    if unpadded > 1:
        yield unpadded, (0, 0)
