"""int8 layers that are computed in float32 between two calls that convert."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.devices.algorithms.quantized import is_quantized, parameters_of
from nnstretch.devices.base.routine import Descriptor, KernelCall, Layout, Lowering, Operand, Parameters, Routine
from nnstretch.devices.cpu.routines.convolution.winograd import WinogradConvolution
from nnstretch.devices.cpu.routines.int8.quantize import dequantize_call, quantize_call
from nnstretch.devices.cpu.routines.int8.weighted import QUAD_PRODUCTS
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.float_form import float_form
from nnstretch.graph.layer import Layer, TensorType

INT8_PRODUCTS = QUAD_PRODUCTS | {"asimddp", "i8mm"}
"""Features of CPUs that multiply int8 at several times the rate of float32."""


def converted(lowered: Lowering, layer: Layer, before: Layout, after: Layout) -> Lowering:
    """The calls that compute a layer in float32, between one that makes floats of its input and one that rounds its result.

    Args:
        lowered: reads input 0 and writes output 0 as float32.
        layer: the int8 layer, with one input and one output.
        before: layout of the floats that are read.
        after: layout of the floats that are written.
    """
    first, last = len(lowered.workspaces), len(lowered.workspaces) + 1
    places = {("input", 0): Operand("workspace", first), ("output", 0): Operand("workspace", last)}

    def placed(call: KernelCall) -> KernelCall:
        reads = tuple(None if o is None else places.get((o.kind, o.index), o) for o in call.reads)
        writes = tuple(places.get((o.kind, o.index), o) for o in call.writes)
        return replace(call, reads=reads, writes=writes, in_place=None)

    source, result = layer.type_of(0), layer.outputs[0]
    calls = (
        replace(dequantize_call(parameters_of(source), _count(before, source)), writes=(places["input", 0],)),
        *map(placed, lowered.calls),
        replace(quantize_call(parameters_of(result), _count(after, result)), reads=(places["output", 0],)),
    )
    sizes = tuple(4 * _count(layout, tensor) for layout, tensor in ((before, source), (after, result)))
    return Lowering(calls, lowered.constants, (*lowered.workspaces, *sizes))


def _count(layout: Layout, tensor: TensorType) -> int:
    """Elements of a tensor as stored."""
    return layout.bytes(tensor) // tensor.element.bytes


class WinogradOfInt8(Routine):
    """Winograd's algorithm in float32 for int8 convolutions without a residual, where the CPU multiplies int8 no faster.

    It saves more than half of a 3 × 3 convolution's multiplications. It saves none in int8, since transformed numbers have more
    bits.

    Routine parameters: those of the routine for float32.
    """

    descriptor = Descriptor("cpu", "int8", "winograd")

    def __init__(self, isa: Isa) -> None:
        self._floating = WinogradConvolution(isa)

    @property
    def _inner(self) -> WinogradConvolution:
        """The routine for float32, for as many threads."""
        self._floating.threads = self.threads
        return self._floating

    def supports(self, layer: Layer) -> bool:
        if not self.features.isdisjoint(INT8_PRODUCTS) or layer.op != "Conv" or layer.has(3):
            return False
        if not (is_quantized(layer.type_of(0)) and is_quantized(layer.outputs[0])):
            return False
        form = float_form(layer)
        return form is not None and self._inner.supports(form)

    def parameter_space(self, layer: Layer) -> tuple[Parameters, ...]:
        return tuple(self._inner.parameter_space(_form(layer)))

    def search_space(self, layer: Layer) -> tuple[Parameters, ...]:
        return tuple(self._inner.search_space(_form(layer)))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return self._inner.layouts(_form(layer), parameters)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        (before,), (after,) = self.layouts(layer, parameters)
        return converted(self._inner.lower(_form(layer), parameters), layer, before, after)


def _form(layer: Layer) -> Layer:
    form = float_form(layer)
    assert form is not None
    return form


ROUTINES = (WinogradOfInt8,)
