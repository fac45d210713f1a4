"""Dense layers on plain tensors."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.constants import padded_rows
from nnstretch.devices.base.routine import Lowering, Parameters, has_constant_weights
from nnstretch.devices.opencl.routines.base import SUM_BYTES, OpenCLRoutine, Traits, ceil_div
from nnstretch.devices.opencl.routines.demand import ADDRESS_REGISTERS, Demand
from nnstretch.devices.opencl.routines.images import image_macros, with_storages
from nnstretch.graph.layer import Layer

ROWS = 4  # rows of x that share each load of a weight
_SUMS = 8  # partial sums that hide the latency of a multiply-add
_DENSE_GROUP = 64  # work items that share a sum, at least
_UNDER_WAY = 8  # weights that dense.cl loads at a time


class Dense(OpenCLRoutine):
    """x (N, K) times weight (M, K) plus bias and residual, all plain.

    Parameters: on GPUs with images, the `storage` of weights.
    """

    algorithm = "dense"
    source = "dense.cl"
    ops = ("Dense",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return has_constant_weights(layer) and len(layer.type_of(0).shape) == 2

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The only setting, or one for each storage."""
        k, m = layer.type_of(0).shape[1], layer.outputs[0].shape[1]
        weights = self.blocks(m) * self.traits.block * k
        return with_storages(self.traits, super().parameter_space(layer), lambda _: weights)

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        """Sums of all rows; shared ones add weights under way, and the sums of all items in local memory."""
        b, group, rows = self.traits.block, dense_group(self.traits), min(layer.type_of(0).shape[0], ROWS)
        if group == 1:
            return Demand(b * (rows * (_SUMS // rows) + 1) + ADDRESS_REGISTERS)
        return Demand(b * (rows + _UNDER_WAY) + ADDRESS_REGISTERS, rows * group * b * SUM_BYTES, group)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `dense` with weights [output block][K][lane]."""
        b, group = self.traits.block, dense_group(self.traits)
        n, k = layer.type_of(0).shape
        m = layer.outputs[0].shape[1]
        blocks = self.blocks(m)
        rows = min(n, ROWS)
        packed = self.stored(padded_rows(layer.constants[1], blocks * b).reshape(blocks, b, k).transpose(0, 2, 1))
        bias = self.bias(layer, blocks * b)
        call = self.call(
            "dense",
            self.reads(layer),
            (n, k, m, *self.epilogue(layer)),
            (blocks * group, ceil_div(n, rows)),
            (("ROWS", rows), ("PARTS", _SUMS // rows), ("GROUP", group), *image_macros(parameters)),
            local_size=(group, 1) if group > 1 else None,
        )
        return Lowering((call,), (packed, bias))


def dense_group(traits: Traits) -> int:
    """Work items that share a sum: a power of 2, as all waves are."""
    return traits.whole_waves(_DENSE_GROUP) if traits.works_in_groups else 1


ROUTINES = (Dense,)
