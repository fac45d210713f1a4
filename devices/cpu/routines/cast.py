"""Cast: elements of one type become elements of another."""

from __future__ import annotations

from nnstretch.devices.base.routine import INPUT, PLAIN, Descriptor, Layout, Lowering, Parameters, Routine
from nnstretch.devices.cpu.manifest import kernel_call
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.dtypes import CASTS, DEFAULT_DTYPE
from nnstretch.graph.layer import Layer


class CastRoutine(Routine):
    """Cast of plain tensors."""

    descriptor = Descriptor("cpu", "float32", "cast")

    def __init__(self, isa: Isa) -> None:
        """Makes the routine, which is the same for every instruction set."""

    def supports(self, layer: Layer) -> bool:
        if layer.op != "Cast" or layer.constants or layer.activation != NO_ACTIVATION or not layer.outputs[0].elements:
            return False
        return _types(layer) in CASTS and layer.type_of(0).quantization is None

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (PLAIN,), (PLAIN,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        source, result = _types(layer)
        stored = "uint8" if source == "bool" else source
        kernel = f"cast/from_{stored}" if result == DEFAULT_DTYPE else f"cast/to_{result}"
        return Lowering((kernel_call(kernel, (INPUT,), count=layer.outputs[0].elements),))


def _types(layer: Layer) -> tuple[str, str]:
    return layer.type_of(0).dtype, layer.outputs[0].dtype


ROUTINES = (CastRoutine,)
