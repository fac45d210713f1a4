"""Concatenation, softmax and changes of layout."""

from __future__ import annotations

import math

from nnstretch.devices.opencl.routines.base import INPUT, OpenCLRoutine, ceil_div, is_image
from nnstretch.devices.routine import PLAIN, REORDER, KernelCall, Layout, Lowering, Operand, Parameters
from nnstretch.graph.layer import Layer


class ConcatBlocked(OpenCLRoutine):
    """Blocked tensors behind one another along their channels, of which there may be any number."""

    algorithm = "concat_blocked"
    source = "concat.cl"
    ops = ("Concat",)

    def _supports(self, layer: Layer) -> bool:
        return not layer.constants and is_image(layer.outputs[0]) and layer.attributes["axis"] == 1

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `concat_blocked` per input, in the order that the kernel asks for."""
        del parameters
        b = self.traits.block
        n, out_channels, h, w = layer.outputs[0].shape
        calls: list[KernelCall] = []
        to = 0
        for index in layer.activations:
            channels = layer.type_of(index).shape[1]
            touched = ceil_div(to % b + channels, b)
            each = self.plane_per_item(h * w, touched * n)
            words = (self.blocks(channels), self.blocks(out_channels), h * w, to, each, *layer.activation.words())
            size = (ceil_div(h * w, each), touched, n)
            calls.append(self.call("concat_blocked", (Operand("input", index),), words, size))
            to += channels
        return Lowering(tuple(calls))


class ConcatPlain(OpenCLRoutine):
    """Plain tensors of any rank behind one another along any axis."""

    algorithm = "concat_plain"
    source = "concat.cl"
    ops = ("Concat",)

    def _supports(self, layer: Layer) -> bool:
        return not layer.constants

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Plain everywhere."""
        del parameters
        return (PLAIN,) * len(layer.activations), (PLAIN,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `concat_plain` per input."""
        del parameters
        axis = layer.attributes["axis"]
        assert isinstance(axis, int)
        shape = layer.outputs[0].shape
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        calls: list[KernelCall] = []
        to = 0
        for index in layer.activations:
            row = layer.type_of(index).shape[axis] * inner
            words = (row, shape[axis] * inner, to, *layer.activation.words())
            calls.append(self.call("concat_plain", (Operand("input", index),), words, (outer,)))
            to += row
        return Lowering(tuple(calls))


class Softmax(OpenCLRoutine):
    """Softmax of a plain tensor along any axis."""

    algorithm = "softmax"
    source = "softmax.cl"
    ops = ("Softmax",)

    def _supports(self, layer: Layer) -> bool:
        del layer
        return True

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Plain in and out."""
        del layer, parameters
        return (PLAIN,), (PLAIN,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `softmax`."""
        del parameters
        axis = layer.attributes["axis"]
        assert isinstance(axis, int)
        shape = layer.outputs[0].shape
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        words = (shape[axis], inner, *layer.activation.words())
        return Lowering((self.call("softmax", (INPUT,), words, (inner, outer)),))


class Reorder(OpenCLRoutine):
    """Between the plain layout and the device's blocked one, or a copy (of the pseudo-layer `Reorder`)."""

    algorithm = "reorder"
    source = "reorder.cl"
    ops = (REORDER,)

    def _supports(self, layer: Layer) -> bool:
        source, target = self._pair(layer)
        known = (0, self.traits.block)
        return source in known and target in known and (source == target or is_image(layer.type_of(0)))

    def _pair(self, layer: Layer) -> tuple[int, int]:
        source, target = layer.attributes["source"], layer.attributes["target"]
        assert isinstance(source, int)
        assert isinstance(target, int)
        return source, target

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """What the layer's attributes say."""
        del parameters
        source, target = self._pair(layer)
        return (Layout(source),), (Layout(target),)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `to_blocked` or `to_plain`, or of `copy` where nothing changes."""
        del parameters
        source, target = self._pair(layer)
        if source == target:
            count = Layout(source).bytes(layer.outputs[0]) // 4
            each = self.flat_per_item(count)
            return Lowering((self.call("copy", (INPUT,), (count, each), (ceil_div(count, each),)),))
        n, c, h, w = layer.type_of(0).shape
        blocks = self.blocks(c)
        each = self.plane_per_item(h * w, blocks * n)
        kernel = "to_blocked" if target else "to_plain"
        return Lowering((self.call(kernel, (INPUT,), (c, h * w, each), (ceil_div(h * w, each), blocks, n)),))
