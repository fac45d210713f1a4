"""Dense layers of int8 on plain tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from nnstretch.devices.algorithms.quantized_products import QUAD, corrected_bias, has_int8_operands
from nnstretch.devices.base.constants import Piece, Prepared, Source
from nnstretch.devices.base.routine import NO_PARAMETERS, Descriptor, Lowering, Parameters, Routine
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.int8.weighted import kernel_for, lowering
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Layer


class Int8Dense(Routine):
    """x · Wᵀ + bias + residual in int8; each weight is read once, at memory speed for small batches."""

    descriptor = Descriptor("cpu", "int8", "dense")

    def __init__(self, isa: Isa) -> None:
        self.block = isa.block
        ((self.rows, self.vectors),) = family("dense_int8").tiles(isa, "rows", "vectors")

    def supports(self, layer: Layer) -> bool:
        return (
            layer.op == "Dense"
            and len(layer.type_of(0).shape) == 2
            and layer.outputs[0].elements > 0
            and has_int8_operands(layer)
        )

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return (NO_PARAMETERS,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        outputs, inputs = layer.type_of(1).shape
        width, quads = self.vectors * self.block, -(-inputs // QUAD)
        lanes = -(-outputs // width) * width
        weight, size = layer.constants[1], width * quads * QUAD
        pieces = [
            Piece(first * quads * QUAD, size, partial(_write_panel, weight[first : first + width], width))
            for first in range(0, lanes, width)
        ]
        weights = Prepared(lanes * quads * QUAD, pieces, "int8", ("int8 dense", Source(weight), width))
        kernel = kernel_for(layer, self.block, "dense_int8", rows=self.rows, vectors=self.vectors)
        batch = layer.type_of(0).shape[0]
        return lowering(kernel, layer, weights, corrected_bias(layer, lanes), n=batch, k=inputs, m=outputs)


def _write_panel(rows: np.ndarray, width: int, place: np.ndarray) -> None:
    """Writes weights of up to `width` outputs, O,K, as K/4,width,4; the rest keeps its zeros."""
    outputs, inputs = rows.shape
    panel, whole = place.reshape(-1, width, QUAD), inputs // QUAD
    panel[:whole, :outputs] = rows[:, : whole * QUAD].reshape(outputs, whole, QUAD).transpose(1, 0, 2)
    if inputs % QUAD:
        panel[whole, :outputs, : inputs % QUAD] = rows[:, whole * QUAD :]


ROUTINES = (Int8Dense,)
