"""Dense layers on plain tensors whose products are of bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters, Routine
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.bfloat16.convolution import FEATURES, prepared_weights, rounded_bytes
from nnstretch.devices.cpu.routines.converted_rows import ROW_BYTES, UNITS, ConvertedRows
from nnstretch.devices.cpu.routines.convolution.base import has_native_operands, lowering
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.dtypes import BFLOAT16
from nnstretch.graph.layer import Layer

LEAST_ROWS = 4  # of fewer rows, weights are read from memory about as fast as they are multiplied


class DenseOfBfloat16(Routine):
    """x · Wᵀ + bias + residual with activation, for several rows.

    Routine parameters:
        rows: rows per unit of work.
        split: shares of the outputs, each in a unit of its own.
    """

    descriptor = Descriptor("cpu", BFLOAT16, "dense")
    rounds_to = BFLOAT16

    def __init__(self, isa: Isa) -> None:
        self.block = isa.block

    def supports(self, layer: Layer) -> bool:
        if self.features.isdisjoint(FEATURES) or layer.op != "Dense" or not has_native_operands(layer):
            return False
        shape = layer.type_of(0).shape
        return len(shape) == 2 and shape[0] >= LEAST_ROWS and rounded_bytes(shape[1]) <= ROW_BYTES

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._work(layer).parameter_space()

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._work(layer).search_space()

    def _work(self, layer: Layer) -> ConvertedRows:
        (rows, inputs), outputs = layer.type_of(0).shape, layer.type_of(1).shape[0]
        pairs, row_bytes = -(-outputs // (2 * self.block)), rounded_bytes(inputs)
        return ConvertedRows(rows, 1, pairs, self.units(UNITS), lambda count: count * row_bytes)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        outputs, inputs = layer.type_of(1).shape
        return lowering(
            family("dense_bfloat16").kernel(),
            layer,
            prepared_weights(layer.constants[1].reshape(outputs, inputs, 1, 1), 1, self.block),
            -(-outputs // self.block) * self.block,
            n=layer.type_of(0).shape[0],
            k=inputs,
            m=outputs,
            rows=parameters["rows"],
            split=parameters["split"],
        )


ROUTINES = (DenseOfBfloat16,)
