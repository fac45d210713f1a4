"""Dense layers."""

from __future__ import annotations

import numpy as np

from nnstretch.devices.base.routine import Lowering, Operand, Parameters, has_constant_weights
from nnstretch.devices.opencl.routines.base import INPUT, OpenCLRoutine, ceil_div, constant, padded
from nnstretch.graph.layer import Layer

_ROWS = 4  # rows of x that share each load of a weight
_SUMS = 8  # partial sums that hide the latency of a multiply-add


class Dense(OpenCLRoutine):
    """x (N, K) times weight (M, K) plus bias and residual, all plain."""

    algorithm = "dense"
    source = "dense.cl"
    ops = ("Dense",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return has_constant_weights(layer) and len(layer.type_of(0).shape) == 2

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `dense` with weights [output block][K][lane]."""
        del parameters
        b = self.traits.block
        n, k = layer.type_of(0).shape
        m = layer.outputs[0].shape[1]
        blocks = self.blocks(m)
        rows = min(n, _ROWS)
        weight = np.zeros((blocks * b, k), np.float32)
        weight[:m] = layer.constants[1]
        packed = self.stored(weight.reshape(blocks, b, k).transpose(0, 2, 1))
        bias = self.stored(padded(layer.constants[2] if layer.has(2) else np.zeros(0), blocks * b))
        residual = Operand("input", 3) if layer.has(3) else None
        call = self.call(
            "dense",
            (INPUT, constant(0), constant(1), residual),
            (n, k, m, int(layer.has(3)), *layer.activation.words()),
            (blocks, ceil_div(n, rows)),
            (("ROWS", rows), ("PARTS", _SUMS // rows)),
        )
        return Lowering((call,), (packed, bias))
