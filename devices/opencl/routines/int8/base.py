"""Base class of OpenCL routines for int8 layers, and what routines for layers with weights share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.algorithms.quantized_products import corrected_bias, multipliers, rounding_parameters
from nnstretch.devices.base.constants import Constant, Prepared
from nnstretch.devices.base.routine import INPUT, Descriptor, KernelCall, Lowering, Operand
from nnstretch.devices.opencl.routines.base import DTYPE, INT8, OpenCLRoutine, Traits, constant
from nnstretch.graph.layer import Layer

_ROUNDING = ("zero", "low", "high", "residual_scale", "residual_zero", "sum_scale", "sum_zero")
"""Rounding parameters in the order of the kernels."""
_MOST = 1 << 31
"""Elements of a tensor that kernels' counts do not reach."""


class Int8Routine(OpenCLRoutine):
    """A routine of kernels on int8 tensors; constants that are not int8 are among the `types` of a call.

    Subclasses define `_supports`, which sees layers of any type with at least one element.
    """

    def __init__(self, traits: Traits) -> None:
        super().__init__(traits)
        self.dtype = INT8
        self.descriptor = Descriptor("opencl", INT8, self.algorithm)

    def supports(self, layer: Layer) -> bool:
        tensors = [tensor for tensor in (*layer.inputs, *layer.outputs) if tensor is not None]
        return layer.op in self.ops and all(0 < tensor.elements < _MOST for tensor in tensors) and self._supports(layer)

    def weighted(
        self,
        kernel: str,
        layer: Layer,
        weights: Prepared,
        lanes: int,
        words: Sequence[int],
        global_size: tuple[int, ...],
        defines: Sequence[tuple[str, int]],
        outside: np.ndarray | None = None,
        local_size: tuple[int, ...] | None = None,
    ) -> Lowering:
        """One call for a layer with weights.

        It reads input, weights, biases, multipliers, `outside` unless that is None, and the residual.

        Args:
            kernel: its name.
            layer: has int8 operands.
            weights: as the kernel reads them.
            lanes: number of biases and multipliers.
            words: the kernel's parameters except those of the rounding.
            global_size: work items.
            defines: macros.
            outside: another constant, of int8.
            local_size: work items of a group.
        """
        more = () if outside is None else (outside,)
        constants: tuple[Constant, ...] = (weights, corrected_bias(layer, lanes)[0], multipliers(layer, lanes), *more)
        residual = Operand("input", 3) if layer.has(3) else None
        reads = (INPUT, *map(constant, range(len(constants))), residual)
        rounding = rounding_parameters(layer)
        parameters = (*words, *(rounding[name] for name in _ROUNDING), int(layer.has(3)))
        types = {constant(1): "int32", constant(2): DTYPE}
        call = self.call(kernel, reads, parameters, global_size, defines, types=types, local_size=local_size)
        return Lowering((call,), constants)

    def flat(
        self, kernel: str, count: int, words: Sequence[int], types: dict[Operand, str] | None = None
    ) -> KernelCall:
        """A call that computes `count` numbers one by one, with `words` after their number and that of an item."""
        each = self.flat_per_item(count)
        return self.call(kernel, (INPUT,), (count, each, *words), (-(-count // each),), types=types or {})
