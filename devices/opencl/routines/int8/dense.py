"""Dense layers of int8 on plain tensors."""

from __future__ import annotations

from functools import partial

import numpy as np

from nnstretch.devices.algorithms.quantized import is_quantized
from nnstretch.devices.algorithms.quantized_products import QUAD, has_int8_operands
from nnstretch.devices.base.constants import Source, whole
from nnstretch.devices.base.routine import Lowering, Parameters
from nnstretch.devices.opencl.routines.base import INT8, SUM_BYTES, ceil_div
from nnstretch.devices.opencl.routines.demand import ADDRESS_REGISTERS, Demand
from nnstretch.devices.opencl.routines.dense import ROWS, dense_group
from nnstretch.devices.opencl.routines.int8.base import Int8Routine
from nnstretch.graph.layer import Layer


class DenseInt8(Int8Routine):
    """x (N, K) times weight (M, K) plus bias and residual, all plain."""

    algorithm = "dense"
    source = "dense_int8.cl"
    ops = ("Dense",)

    def _supports(self, layer: Layer) -> bool:
        return len(layer.type_of(0).shape) == 2 and has_int8_operands(layer) and is_quantized(layer.outputs[0])

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        """Sums of all rows, a quad of each and one of weights; shared ones add the sums of all items in local memory."""
        block, group, rows = self.traits.block, dense_group(self.traits), min(layer.type_of(0).shape[0], ROWS)
        shared = rows * group * block * SUM_BYTES if group > 1 else 0
        return Demand(block * (rows + 2) + rows + ADDRESS_REGISTERS, shared, group if group > 1 else 0)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `dense_int8`."""
        block, weight = self.traits.block, layer.constants[1]
        group = dense_group(self.traits)
        n, k = layer.type_of(0).shape
        m = layer.outputs[0].shape[1]
        blocks, rows = self.blocks(m), min(n, ROWS)
        return self.weighted(
            "dense_int8",
            layer,
            whole(
                blocks * block * ceil_div(k, QUAD) * QUAD,
                partial(_by_quad, weight, block),
                INT8,
                ("opencl int8 dense", Source(weight), block),
            ),
            blocks * block,
            (n, k, m),
            (blocks * group, ceil_div(n, rows)),
            (("ROWS", rows), ("GROUP", group)),
            local_size=(group, 1) if group > 1 else None,
        )


def _by_quad(weight: np.ndarray, block: int) -> np.ndarray:
    """Weights M,K as [output block][quad][output][4], zero where there is none."""
    outputs, inputs = weight.shape
    filled = np.pad(weight, ((0, -outputs % block), (0, -inputs % QUAD)))
    return filled.reshape(-1, block, filled.shape[1] // QUAD, QUAD).transpose(0, 2, 1, 3)


ROUTINES = (DenseInt8,)
