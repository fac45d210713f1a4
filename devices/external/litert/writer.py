"""Conversion of graphs to TFLite files, in float32 and int8.

TFLite's images are N,H,W,C. Every 4-D tensor has up to two forms (`tensors.py`); an operator requests the form that it
works in. 4-D inputs and outputs of the file are channels last, or N,C,H,W on request.

int8 layers become int8 operators with the quantization parameters of their tensors. Where TFLite requires equal parameters
of input and result, a QUANTIZE follows. Layers without an int8 operator run in float32 between DEQUANTIZE and QUANTIZE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.external.litert.activation import Activations
from nnstretch.devices.external.litert.flatbuffer import FlatModel
from nnstretch.devices.external.litert.int8 import in_float32, supports_int8
from nnstretch.devices.external.litert.normalization import Normalizations
from nnstretch.devices.external.litert.tensors import TO_LAST, TO_PLAIN, Form, FormedTensors, formed, natural_form
from nnstretch.errors import ModelError
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import LOWEST
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import GraphNode, graph_inputs, graph_outputs, layers
from nnstretch.passes import optimize

_LOWEST = float(np.finfo(np.float32).min)
_NEVER_NEGATIVE = (
    ActivationKind.RELU,
    ActivationKind.SIGMOID,
    ActivationKind.HARD_SIGMOID,
    ActivationKind.EXP,
    ActivationKind.SOFTPLUS,
)


def write_tflite(model: ir.Model, name: str = "model", *, channels_last: bool = True) -> bytes:
    """Converts an ONNX graph to a TFLite file.

    Args:
        model: not fused, with static shapes; inputs and outputs are float32 or quantised int8.
        name: display name of the sub-graph.
        channels_last: whether 4-D inputs and outputs of the file are N,H,W,C; else they are N,C,H,W, and the file
            transposes them.

    Returns:
        The file's bytes. Inputs and outputs are in the graph's order.

    Raises:
        ModelError: a layer, which the message names, has no counterpart in TFLite; or the weights exceed 2 GB.
        MissingExtraError: the package with the file's schema is not installed.
    """
    return _Writer(optimize(model), name).write(channels_last=channels_last)


class _Writer:
    def __init__(self, graph: ir.Model, name: str) -> None:
        self._graph = graph
        self._file = FlatModel(name)
        self._activations = Activations(self._file)
        self._tensors = FormedTensors(self._file)
        normalizations = Normalizations(self._file, self._tensors, self._activations)
        self._never_negative: set[str] = set()
        self._lowerings: Mapping[str, Callable[[GraphNode], None]] = {
            "Conv": self._conv,
            "Dense": self._dense,
            "MaxPool": self._max_pool,
            "AveragePool": self._average_pool,
            "GlobalPool": self._global_pool,
            "Activation": self._activation,
            "Add": self._arithmetic,
            "Sub": self._arithmetic,
            "Mul": self._arithmetic,
            "Affine": self._affine,
            "Concat": self._concat,
            "Softmax": self._softmax,
            "LayerNorm": normalizations.layer_norm,
            "GroupNorm": normalizations.group_norm,
            "PRelu": normalizations.prelu,
            "Resize": self._resize,
            "Reshape": self._reshape,
            "Transpose": self._transpose,
            "Slice": self._slice,
            "Quantize": self._quantize,
            "Dequantize": self._dequantize,
        }

    def write(self, *, channels_last: bool) -> bytes:
        for name, kind in graph_inputs(self._graph):
            if kind.dtype != "float32" and kind.quantization is None:
                raise ModelError(
                    f"input {name!r} is {kind.dtype}; TFLite files are written for float32 and quantised int8"
                )
        nodes = layers(self._graph)
        foreign = sorted({node.layer.op for node in nodes if node.layer.op not in self._lowerings})
        if foreign:
            raise ModelError(f"TFLite files need operators that nnstretch computes; found {', '.join(foreign)}")

        def outer(shape: Sequence[int]) -> Form:
            return natural_form(shape) if channels_last else "plain"

        inputs = [self._tensors.new(name, kind, outer(kind.shape)) for name, kind in graph_inputs(self._graph)]
        for node in nodes:
            if node.layer.is_int8 and not supports_int8(node.layer):
                self._detour(node)
            else:
                self._lowerings[node.layer.op](node)
            if self._is_never_negative(node):
                self._never_negative.update(node.outputs)
        outputs = [self._tensors.get(name, outer(kind.shape)) for name, kind in graph_outputs(self._graph)]
        return self._file.finish(inputs, outputs)

    # -- ranges --------------------------------------------------------------------------------------------------

    def _is_zero_least(self, node: GraphNode) -> bool:
        """Whether no input value of a layer is below 0, so that 0 is neutral for a maximum."""
        quantization = node.layer.type_of(0).quantization
        return node.inputs[0] in self._never_negative or (
            quantization is not None and quantization.zero_point == LOWEST
        )

    def _is_never_negative(self, node: GraphNode) -> bool:
        """Whether no output value of a layer is below 0."""
        activation = node.layer.activation
        if activation.kind in _NEVER_NEGATIVE or (activation.kind == ActivationKind.CLIP and activation.a >= 0):
            return True
        passes_on = activation == NO_ACTIVATION and node.layer.op in ("Concat", "MaxPool", "AveragePool", "Reshape")
        return passes_on and all(name in self._never_negative for name in node.inputs)

    # -- int8 ----------------------------------------------------------------------------------------------------

    def _quantize(self, node: GraphNode) -> None:
        form = self._tensors.form_of(node)
        self._file.quantize(self._tensors.read(node, 0, form), self._tensors.result(node, form))

    def _dequantize(self, node: GraphNode) -> None:
        form = self._tensors.form_of(node)
        operands = [self._tensors.read(node, 0, form)]
        self._file.operator("DEQUANTIZE", operands, [self._tensors.result(node, form)], table="DequantizeOptions")

    def _detour(self, node: GraphNode) -> None:
        """Writes an int8 layer in float32 between DEQUANTIZE and QUANTIZE."""
        before, computed, after = in_float32(node)
        for part in (*(part for part in before if part.outputs[0] not in self._tensors), computed, after):
            self._lowerings[part.layer.op](part)

    # -- layers with weights -------------------------------------------------------------------------------------

    def _weights(self, layer: Layer, order: Sequence[int]) -> tuple[int, int]:
        """Weight and bias as constants; `order` maps axes of the file's weight to axes of the graph's."""
        weight, scales = layer.constants[1], layer.constants.get(4)
        turned = weight.transpose(order)
        if scales is None:
            bias = layer.constants[2] if layer.has(2) else np.zeros(weight.shape[0], np.float32)
            return self._file.constant(turned, f"{layer.name}:weight"), self._file.constant(
                bias.reshape(-1), f"{layer.name}:bias"
            )
        quantization = layer.type_of(0).quantization
        assert quantization is not None
        scales = scales if (scales != scales[0]).any() else scales[:1]
        steps = layer.constants[2] if layer.has(2) else np.zeros(weight.shape[0], np.int32)
        return (
            self._file.constant(turned, f"{layer.name}:weight", scales, order.index(0)),
            self._file.constant(steps, f"{layer.name}:bias", scales * np.float32(quantization.scale)),
        )

    def _conv(self, node: GraphNode) -> None:
        layer = node.layer
        weight = layer.constants[1]
        window = KernelGeometry.of(layer)
        channels, groups = window.channels, window.groups
        source, padding = self._padded(self._tensors.read(node, 0, "last"), window, 0.0, node.layer.name)
        options = {
            "padding": padding,
            "strideH": window.strides[0],
            "strideW": window.strides[1],
            "dilationHFactor": window.dilations[0],
            "dilationWFactor": window.dilations[1],
        }
        if groups == channels and groups > 1:
            operands = [source, *self._weights(layer, (1, 2, 3, 0))]
            name, table = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"
            options["depthMultiplier"] = weight.shape[0] // channels
        else:
            operands = [source, *self._weights(layer, (0, 2, 3, 1))]
            name, table = "CONV_2D", "Conv2DOptions"
        self._with_residual(node, name, operands, options, table, version=6 if 1 < groups < channels else 1)

    def _dense(self, node: GraphNode) -> None:
        operands = [self._tensors.read(node, 0, "plain"), *self._weights(node.layer, (0, 1))]
        self._with_residual(node, "FULLY_CONNECTED", operands, {}, "FullyConnectedOptions", version=1)

    def _with_residual(
        self,
        node: GraphNode,
        name: str,
        operands: Sequence[int],
        options: Mapping[str, object],
        table: str,
        *,
        version: int,
    ) -> None:
        """Writes a layer with weights, its residual and its activation."""
        form = natural_form(node.layer.outputs[0].shape)
        result = self._tensors.result(node)
        shape = self._file.shape(result)
        if not node.layer.has(3):
            self._activations.emit(name, operands, result, node.layer.activation, options, table, version)
            return
        computed = self._file.tensor(shape, f"{node.layer.name}:before")
        self._activations.emit(name, operands, computed, NO_ACTIVATION, options, table, version)
        added = [computed, self._tensors.read(node, 3, form)]
        self._activations.emit("ADD", added, result, node.layer.activation, {}, "AddOptions")

    # -- windows -------------------------------------------------------------------------------------------------

    def _padded(self, source: int, window: KernelGeometry, value: float, name: str) -> tuple[int, int]:
        """The input and TFLite's padding mode of a window; pads the input explicitly if no mode fits."""
        words = self._file.schema.Padding
        if window.is_valid:
            return source, words.VALID
        if window.is_same:
            return source, words.SAME
        return self._pad(source, window, value, name), words.VALID

    def _pad(self, source: int, window: KernelGeometry, value: float, name: str) -> int:
        """Writes a PAD of the image to the extent of the window."""
        (top, left), (bottom, right) = window.pads, window.ends
        batch, height, width, channels = self._file.shape(source)
        result = self._file.like(
            source, f"{name}:padded", (batch, height + top + bottom, width + left + right, channels)
        )
        pads = np.array([[0, 0], [top, bottom], [left, right], [0, 0]], np.int32)
        operands = [source, self._file.constant(pads, f"{name}:pads")]
        if value == 0.0:
            self._file.operator("PAD", operands, [result], table="PadOptions")
        else:
            operands.append(self._file.number(value, source))
            self._file.operator("PADV2", operands, [result], table="PadV2Options")
        return result

    def _pool(
        self, name: str, source: int, result: int, window: KernelGeometry, padding: int, activation: Activation
    ) -> None:
        options = {
            "padding": padding,
            "filterHeight": window.kernel[0],
            "filterWidth": window.kernel[1],
            "strideH": window.strides[0],
            "strideW": window.strides[1],
        }
        self._activations.emit(name, [source], result, activation, options, "Pool2DOptions")

    def _max_pool(self, node: GraphNode) -> None:
        layer = node.layer
        if layer.ints("dilations") != (1, 1):
            raise ModelError(f"{layer.name} is a dilated pool, which TFLite does not have")
        window = KernelGeometry.of(layer)
        neutral = 0.0 if self._is_zero_least(node) else _LOWEST
        source, padding = self._padded(self._tensors.read(node, 0, "last"), window, neutral, layer.name)
        self._pool("MAX_POOL_2D", source, self._tensors.result(node), window, padding, layer.activation)

    def _average_pool(self, node: GraphNode) -> None:
        """TFLite's mean excludes SAME's pads and includes explicit ones; a factor per pixel corrects it."""
        layer = node.layer
        window = KernelGeometry.of(layer)
        source, result = self._tensors.read(node, 0, "last"), self._tensors.result(node)
        counts_pads = bool(layer.attributes["count_include_pad"])
        words = self._file.schema.Padding
        if window.is_valid or (window.is_same and not counts_pads):
            padding = words.VALID if window.is_valid else words.SAME
            self._mean(source, result, window, padding, layer.activation)
            return
        # SAME excludes pads from the mean, so they are explicit here.
        source, padding = self._pad(source, window, 0.0, layer.name), words.VALID
        if counts_pads:
            self._mean(source, result, window, padding, layer.activation)
            return
        mean = self._file.tensor(self._file.shape(result), f"{layer.name}:mean")
        self._pool("AVERAGE_POOL_2D", source, mean, window, padding, NO_ACTIVATION)
        area = float(window.kernel[0] * window.kernel[1])
        factors = area / np.outer(window.counted(0), window.counted(1))
        factor = self._file.constant(factors.astype(np.float32)[None, :, :, None], f"{layer.name}:factors")
        self._activations.emit("MUL", [mean, factor], result, layer.activation, {}, "MulOptions")

    def _mean(self, source: int, result: int, window: KernelGeometry, padding: int, activation: Activation) -> None:
        with self._tensors.keeping_quantization(source, result) as made:
            self._pool("AVERAGE_POOL_2D", source, made, window, padding, activation)

    def _global_pool(self, node: GraphNode) -> None:
        layer = node.layer
        source, result = self._tensors.read(node, 0, "last"), self._tensors.result(node)
        if layer.attributes["mode"] == "max":
            window = KernelGeometry.of(layer)
            padding = self._file.schema.Padding.VALID
            with self._tensors.keeping_quantization(source, result) as made:
                self._pool("MAX_POOL_2D", source, made, window, padding, layer.activation)
            return
        axes = self._file.constant(np.array([1, 2], np.int32), f"{layer.name}:axes")
        options = {"keepDims": True}
        self._activations.emit("MEAN", [source, axes], result, layer.activation, options, "ReducerOptions")

    # -- the others ----------------------------------------------------------------------------------------------

    def _activation(self, node: GraphNode) -> None:
        form = self._tensors.form_of(node)
        self._activations.apply(
            self._tensors.read(node, 0, form), self._tensors.result(node, form), node.layer.activation
        )

    def _arithmetic(self, node: GraphNode) -> None:
        layer = node.layer
        ranks = [len(layer.type_of(i).shape) for i in (0, 1)]
        images = all(rank == 4 or i in layer.constants for i, rank in enumerate(ranks)) and 4 in ranks
        form: Form = "last" if images else "plain"
        operands = [self._tensors.read(node, i, form) for i in (0, 1)]
        result = self._tensors.result(node, form)
        self._activations.emit(layer.op.upper(), operands, result, layer.activation, {}, f"{layer.op}Options")

    def _affine(self, node: GraphNode) -> None:
        layer = node.layer
        result = self._tensors.result(node)
        scaled = self._file.tensor(self._file.shape(result), f"{layer.name}:scaled")
        scale, shift = (self._file.constant(layer.constants[i].reshape(-1), f"{layer.name}:{i}") for i in (1, 2))
        self._activations.emit(
            "MUL", [self._tensors.read(node, 0, "last"), scale], scaled, NO_ACTIVATION, {}, "MulOptions"
        )
        self._activations.emit("ADD", [scaled, shift], result, layer.activation, {}, "AddOptions")

    def _concat(self, node: GraphNode) -> None:
        layer = node.layer
        form = natural_form(layer.outputs[0].shape)
        axis = layer.integer("axis")
        axis = TO_LAST.index(axis) if form == "last" else axis
        quantization = layer.outputs[0].quantization
        operands = [
            self._file.requantized(self._tensors.read(node, i, form), quantization) for i in range(len(layer.inputs))
        ]
        result = self._tensors.result(node)
        self._activations.emit(
            "CONCATENATION", operands, result, layer.activation, {"axis": axis}, "ConcatenationOptions"
        )

    def _softmax(self, node: GraphNode) -> None:
        """Writes a softmax; TFLite's works on the last axis, so another axis is transposed there and back."""
        layer = node.layer
        shape = layer.outputs[0].shape
        axis, rank = layer.integer("axis"), len(shape)
        form: Form = "last" if rank == 4 and axis == 1 else "plain"
        source = self._tensors.read(node, 0, form)
        if form == "last" or axis == rank - 1:
            self._over_last_axis(source, self._tensors.result(node, form), layer.activation)
            return
        order = [*(a for a in range(rank) if a != axis), axis]
        moved = self._tensors.transposed(source, order, f"{layer.name}:moved")
        computed = self._file.tensor(self._file.shape(moved), f"{layer.name}:softmax")
        self._over_last_axis(moved, computed, layer.activation)
        back = [order.index(a) for a in range(rank)]
        self._tensors.put(node.outputs[0], "plain", self._tensors.transposed(computed, back, node.outputs[0]))

    def _over_last_axis(self, source: int, result: int, activation: Activation) -> None:
        assert activation == NO_ACTIVATION  # only layers that compute sums have an activation
        self._activations.emit_fixed("SOFTMAX", source, result, {"beta": 1.0}, "SoftmaxOptions")

    def _resize(self, node: GraphNode) -> None:
        layer = node.layer
        coordinates, mode = str(layer.attributes["coordinates"]), str(layer.attributes["mode"])
        half = coordinates in ("half_pixel", "pytorch_half_pixel")
        known = half or coordinates in ("asymmetric", "align_corners")
        if not known or (mode == "nearest" and (coordinates, layer.attributes["nearest"]) != ("asymmetric", "floor")):
            raise ModelError(f"{layer.name} resizes with {mode}, {coordinates}, which TFLite does not support")
        name, table = ("RESIZE_BILINEAR", "ResizeBilinearOptions")
        if mode == "nearest":
            name, table = ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions")
        size = self._file.constant(np.array(layer.outputs[0].shape[2:], np.int32), f"{layer.name}:size")
        options = {"alignCorners": coordinates == "align_corners", "halfPixelCenters": half}
        source = self._tensors.read(node, 0, "last")
        with self._tensors.keeping_quantization(source, self._tensors.result(node)) as made:
            self._activations.emit(name, [source, size], made, layer.activation, options, table, version=3)

    def _reshape(self, node: GraphNode) -> None:
        self._tensors.reshaped(self._tensors.read(node, 0, "plain"), self._tensors.result(node, "plain"))

    def _transpose(self, node: GraphNode) -> None:
        """Writes a transpose; free if the result equals an existing form, as before the heads of detectors."""
        name, result = str(node.inputs[0]), node.outputs[0]
        order = node.layer.ints("perm")
        forms = self._tensors.forms(name)
        if order == TO_LAST and "last" in forms:
            self._tensors.put(result, "plain", forms["last"])
        elif order == TO_PLAIN and "plain" in forms:
            self._tensors.put(result, "last", forms["plain"])
        else:
            self._tensors.put(
                result, "plain", self._tensors.transposed(self._tensors.get(name, "plain"), order, result)
            )

    def _slice(self, node: GraphNode) -> None:
        layer = node.layer
        form = self._tensors.form_of(node)
        begins, steps = layer.ints("starts"), layer.ints("steps")
        ends = [b + (n - 1) * s + 1 for b, n, s in zip(begins, layer.outputs[0].shape, steps, strict=True)]
        where = [
            self._file.constant(np.array(formed(values, form), np.int32), f"{layer.name}:{what}")
            for what, values in (("begins", begins), ("ends", ends), ("steps", steps))
        ]
        operands = [self._tensors.read(node, 0, form), *where]
        self._file.operator("STRIDED_SLICE", operands, [self._tensors.result(node, form)], table="StridedSliceOptions")
