"""Dense layers on plain tensors whose products are of float16."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters, Routine
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.converted_rows import ROW_BYTES, UNITS, ConvertedRows
from nnstretch.devices.cpu.routines.convolution.base import has_native_operands, lowering
from nnstretch.devices.cpu.routines.float16.convolution import FEATURES, prepared_weights, with_terms
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.dtypes import FLOAT16, element_type
from nnstretch.graph.layer import Layer

LEAST_ROWS = 4  # of fewer rows, weights are read from memory about as fast as they are multiplied


class DenseOfFloat16(Routine):
    """x · Wᵀ + bias + residual with activation, for several rows; errors and ranges are those of `Float16Convolution`.

    Routine parameters:
        rows: rows per unit of work.
        split: shares of the outputs, each in a unit of its own.
        terms: products that are added up in float16; more take less time and have a larger error.
    """

    descriptor = Descriptor("cpu", FLOAT16, "dense")
    rounds_to = FLOAT16

    def __init__(self, isa: Isa) -> None:
        self.lanes = 2 * isa.block

    def supports(self, layer: Layer) -> bool:
        if self.features.isdisjoint(FEATURES) or layer.op != "Dense" or not has_native_operands(layer):
            return False
        shape = layer.type_of(0).shape
        return len(shape) == 2 and shape[0] >= LEAST_ROWS and self._row_bytes(shape[1]) <= ROW_BYTES

    def _row_bytes(self, inputs: int) -> int:
        """Bytes of a rounded row, in whole parts."""
        return -(-inputs // self.lanes) * self.lanes * element_type(FLOAT16).bytes

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return with_terms(self._work(layer).parameter_space(), layer.type_of(1).shape[1])

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        return with_terms(self._work(layer).search_space(), layer.type_of(1).shape[1])

    def _work(self, layer: Layer) -> ConvertedRows:
        (rows, inputs), outputs = layer.type_of(0).shape, layer.type_of(1).shape[0]
        pairs, row_bytes = -(-outputs // (2 * self.lanes)), self._row_bytes(inputs)
        return ConvertedRows(rows, 1, pairs, self.units(UNITS), lambda count: count * row_bytes)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        outputs, inputs = layer.type_of(1).shape
        return lowering(
            family("dense_float16").kernel(),
            layer,
            prepared_weights(layer.constants[1].reshape(outputs, inputs, 1, 1), 1, self.lanes),
            -(-outputs // self.lanes) * self.lanes,
            n=layer.type_of(0).shape[0],
            k=inputs,
            m=outputs,
            rows=parameters["rows"],
            split=parameters["split"],
            terms=parameters["terms"],
        )


ROUTINES = (DenseOfFloat16,)
