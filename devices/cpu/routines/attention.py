"""Attention on tokens that are pixels of blocked tensors, or rows of channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.algorithms.attention import (
    OF_SCORES,
    attention_extents,
    attention_fits,
    attention_numbers,
    bias_strides,
    factor_strides,
)
from nnstretch.devices.base.routine import (
    PLAIN,
    Descriptor,
    Layout,
    Lowering,
    Operand,
    Parameters,
    Routine,
)
from nnstretch.devices.cpu.manifest import family, kernel_call
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.activation import NO_ACTIVATION, float_bits
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import Layer


class Attention(Routine):
    """Softmax of scores and the sum of values that it weighs, without scores in memory.

    Routine parameters:
        queries, vectors: the register tile, which names the kernel.
    """

    descriptor = Descriptor("cpu", "float32", "attention")
    family = "attention"
    """Of the kernels."""

    def __init__(self, isa: Isa) -> None:
        self.block = isa.block
        self.tiles = family(self.family).tiles(isa, "queries", "vectors")

    def supports(self, layer: Layer) -> bool:
        if layer.op != "Attention" or layer.activation != NO_ACTIVATION:
            return False
        types = [t for t in (*layer.inputs, *layer.outputs) if t is not None]
        if not all(t.dtype == DEFAULT_DTYPE and t.elements for t in types) or not attention_fits(layer):
            return False
        return family(self.family).takes(attention_extents(layer) | bias_strides(layer) | factor_strides(layer))

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return tuple({"queries": queries, "vectors": vectors} for queries, vectors in self.tiles)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Tensors of rank 4 are blocked; rows of channels and biases are plain."""
        layout = Layout(self.block) if len(layer.outputs[0].shape) == 4 else PLAIN
        return tuple(PLAIN if index in OF_SCORES else layout for index in layer.activations), (layout,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        reads: list[Operand | None] = [Operand("input", index) for index in range(3)]
        constants: list[np.ndarray] = []
        for index in OF_SCORES:
            if index in layer.constants:
                reads.append(Operand("constant", len(constants)))
                constants.append(layer.constants[index].astype(np.float32))
            else:
                reads.append(Operand("input", index) if layer.has(index) else None)
        scale, epsilon = map(float_bits, attention_numbers(layer))
        strides = bias_strides(layer) | factor_strides(layer)
        kernel = family(self.family).kernel(**parameters)
        call = kernel_call(kernel, tuple(reads), **attention_extents(layer), scale=scale, epsilon=epsilon, **strides)
        return Lowering((call,), tuple(constants))


ROUTINES = (Attention,)
