"""What the routines for convolutions share: supported layers, geometry, operands and base classes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from nnstretch.devices.base.constants import Constant, padded_rows
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, Layout, Lowering, Operand, Parameters, Routine, has_constant_weights
from nnstretch.devices.cpu.manifest import Values, activation_parameters, family, kernel_call
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Attribute, Layer, TensorType


def geometry_parameters(geometry: KernelGeometry) -> Mapping[str, int]:
    """The kernels' parameter group `kernel_geometry`."""
    return {
        "n": geometry.batch,
        "c": geometry.channels,
        "h": geometry.height,
        "w": geometry.width,
        "o": geometry.out_channels,
        "oh": geometry.out_height,
        "ow": geometry.out_width,
        "kh": geometry.kernel[0],
        "kw": geometry.kernel[1],
        "sh": geometry.strides[0],
        "sw": geometry.strides[1],
        "pt": geometry.pads[0],
        "pl": geometry.pads[1],
        "dh": geometry.dilations[0],
        "dw": geometry.dilations[1],
    }


def is_convolution(layer: Layer) -> bool:
    """Whether `layer` is a 2-D float32 convolution with constant weights, within the limits of the kernels."""
    if layer.op != "Conv" or not has_native_operands(layer) or len(layer.type_of(0).shape) != 4:
        return False
    if min(layer.ints("pads")) < 0:
        return False
    return family("conv_direct").takes(geometry_parameters(KernelGeometry.of(layer)), "geometry")


def has_native_operands(layer: Layer) -> bool:
    """Whether a Conv or Dense layer is float32 with a run-time input, constant weights and constant bias."""
    floats = all(t.dtype == "float32" for t in (*layer.inputs, *layer.outputs) if t is not None)
    return floats and has_constant_weights(layer) and 0 not in layer.constants and 3 not in layer.constants


def pointwise(layer: Layer, source: tuple[int, ...], result: TensorType) -> Layer:
    """A Conv or Dense layer, without its residual, as a 1 × 1 convolution.

    Args:
        layer: each of its weights multiplies one channel of `source`, in order.
        source: shape of the images N,C,H,W that it reads then.
        result: N,O,H,W.
    """
    weight = layer.constants[1].reshape(result.shape[1], source[1], 1, 1)
    attributes: dict[str, Attribute] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    types = (TensorType(source), TensorType(weight.shape), *layer.inputs[2:3])
    constants = MappingProxyType({**layer.constants, 1: weight})
    return Layer(layer.name, "Conv", types, (result,), MappingProxyType(attributes), layer.activation, constants)


def as_convolution(layer: Layer) -> Layer:
    """A dense layer N,K -> N,M, without its residual, as the convolution 1,K,N,1 -> 1,M,N,1."""
    rows, channels = layer.type_of(0).shape
    return pointwise(layer, (1, channels, rows, 1), TensorType((1, layer.type_of(1).shape[0], rows, 1)))


def has_rows_of_pixels(layer: Layer) -> bool:
    """Whether `as_convolution` computes a layer with native operands: a dense layer of two rows or more.

    With one row, `Dense` reads every weight once and nothing is faster.
    """
    if layer.op != "Dense" or not has_native_operands(layer) or len(layer.type_of(0).shape) != 2:
        return False
    return layer.type_of(0).shape[0] > 1 and is_convolution(as_convolution(layer))


def operands(layer: Layer) -> tuple[Operand | None, ...]:
    """Operands that the kernels read: input, weights (constant 0), bias (constant 1), residual."""
    return (
        INPUT,
        Operand("constant", 0),
        Operand("constant", 1) if layer.has(2) else None,
        Operand("input", 3) if layer.has(3) else None,
    )


def lowering(kernel: str, layer: Layer, weights: Constant, lanes: int, **parameters: Values) -> Lowering:
    """One call of `kernel` with prepared weights and the bias with zeros to `lanes` floats.

    Args:
        kernel: a kernel that reads input, weights, bias and residual.
        layer: a Conv or Dense layer.
        weights: weights in the layout that the kernel reads.
        lanes: length of the padded bias.
        parameters: the kernel's parameters except the activation.
    """
    made = np.ascontiguousarray(weights, dtype=np.float32) if isinstance(weights, np.ndarray) else weights
    constants: list[Constant] = [made]
    if layer.has(2):
        constants.append(padded_rows(layer.constants[2].reshape(-1), lanes))
    call = kernel_call(
        kernel,
        operands(layer),
        in_place=3 if layer.has(3) else None,
        **parameters,
        activation=activation_parameters(layer.activation),
    )
    return Lowering((call,), tuple(constants))


def channel_ranges(inputs: int, outputs: int, groups: int, lanes: int, unit: int) -> list[tuple[int, int]]:
    """For each output vector the units of channels [begin, end) that it reads: those of the groups of its lanes.

    Args:
        inputs: channels of all groups.
        outputs: the same.
        groups: number of groups.
        lanes: outputs of a vector.
        unit: input channels of a unit.
    """
    found = []
    for first in range(0, outputs, lanes):
        last = min(first + lanes, outputs) - 1
        begin, end = first * groups // outputs, last * groups // outputs + 1
        found.append((begin * inputs // groups // unit, -(-end * inputs // groups // unit)))
    return found


def weights_of_vectors(weight: np.ndarray, groups: int, lanes: int, firsts: Sequence[int], channels: int) -> np.ndarray:
    """Weights O,C/g,KH,KW as [output vector][lane][input channel][row][column], with zeros for channels of other groups.

    Args:
        weight: of all groups.
        groups: number of groups.
        lanes: outputs of a vector.
        firsts: for each vector the first input channel that it has, counted in all groups.
        channels: input channels of a vector.
    """
    outputs, inputs, *taps = weight.shape
    group_out = outputs // groups
    made = np.zeros((len(firsts), lanes, channels, *taps), np.float32)
    for number, begin in enumerate(firsts):
        first, last = number * lanes, min((number + 1) * lanes, outputs)
        for group in range(first // group_out, (last - 1) // group_out + 1):
            low, high = max(first, group * group_out), min(last, (group + 1) * group_out)
            channel = group * inputs - begin
            made[number, low - first : high - first, channel : channel + inputs] = weight[low:high]
    return made


class BlockedConvolution(Routine):
    """A convolution that reads and writes the engine's blocked layout."""

    def __init__(self, isa: Isa) -> None:
        self.layout = Layout(isa.block)

    def supports(self, layer: Layer) -> bool:
        return is_convolution(layer) and self.covers(KernelGeometry.of(layer))

    @abstractmethod
    def covers(self, geometry: KernelGeometry) -> bool:
        """Whether the kernels compute a convolution of this geometry."""

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.layout,) * len(layer.activations), (self.layout,)
