"""Dense layers on plain tensors whose products are of bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters, Routine, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.bfloat16.convolution import (
    FAR_BYTES,
    FEATURES,
    MOST_CHUNKS,
    NEAR_BYTES,
    PAIRS,
    ROW_BYTES,
    UNITS,
    prepared_weights,
)
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
        return len(shape) == 2 and shape[0] >= LEAST_ROWS and self._bytes(layer, MOST_CHUNKS) <= ROW_BYTES

    def _bytes(self, layer: Layer, rows: int) -> int:
        """Bytes of some rounded rows."""
        return -(-layer.type_of(0).shape[1] // (2 * PAIRS)) * 2 * PAIRS * self.element.bytes * rows

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """Rows that stay in the second-level and in the first-level cache."""
        return distinct(self._setting(layer, most) for most in (FAR_BYTES, NEAR_BYTES))

    def _setting(self, layer: Layer, most: int) -> Parameters:
        """As many rows as fit into `most` bytes, with units that several threads share evenly."""
        count = layer.type_of(0).shape[0]
        rows = next((rows for rows in shares(count, count) if self._bytes(layer, rows) <= most), 1)
        pairs = -(-layer.type_of(1).shape[0] // (2 * self.block))
        return {"rows": rows, "split": max(1, min(-(-self.units(UNITS) // -(-count // rows)), pairs))}

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        counts = shares(layer.type_of(0).shape[0], MOST_CHUNKS)
        settings = (
            {"rows": rows, "split": split}
            for rows in counts
            if self._bytes(layer, rows) <= ROW_BYTES
            for split in (1, 2, 4)
        )
        return distinct(self.parameter_space(layer), settings)

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
