"""Products of matrices that are computed at run time, on plain tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.algorithms.matrices import matrix_images
from nnstretch.devices.base.routine import Descriptor, Lowering, Operand, Parameters, Routine
from nnstretch.devices.cpu.manifest import activation_parameters, family, kernel_call
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import Layer


class MatMul(Routine):
    """x · y for every image; transposed operands are read where they lie.

    Routine parameters:
        rows, vectors: the register tile, which names the kernel.
    """

    descriptor = Descriptor("cpu", "float32", "matmul")

    def __init__(self, isa: Isa) -> None:
        self.tiles = family("matmul").tiles(isa, "rows", "vectors")

    def supports(self, layer: Layer) -> bool:
        """Operands of two axes or more, and images in at most two dimensions after merging."""
        if layer.op != "MatMul" or (0 in layer.constants and 1 in layer.constants):
            return False
        types = (layer.type_of(0), layer.type_of(1), layer.outputs[0])
        if not all(t.dtype == DEFAULT_DTYPE and t.elements for t in types) or len(matrix_images(layer)) > 2:
            return False
        return family("matmul").takes(_extents(layer))

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return tuple({"rows": rows, "vectors": vectors} for rows, vectors in self.tiles)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        constants: list[np.ndarray] = []
        reads = []
        for index in (0, 1):
            if index in layer.constants:
                reads.append(Operand("constant", len(constants)))
                constants.append(np.ascontiguousarray(layer.constants[index], np.float32))
            else:
                reads.append(Operand("input", index))
        activation = activation_parameters(layer.activation)
        kernel = family("matmul").kernel(**parameters)
        call = kernel_call(kernel, tuple(reads), **_extents(layer), activation=activation)
        return Lowering((call,), tuple(constants))


def _extents(layer: Layer) -> dict[str, int]:
    """Sizes and steps as the kernels' parameters."""
    images = [(1, 0, 0)] * 2 + matrix_images(layer)
    (outer, x_outer, y_outer), (inner, x_inner, y_inner) = images[-2:]
    m, n = layer.outputs[0].shape[-2:]
    k = layer.type_of(0).shape[-2 if layer.integer("transpose_x") else -1]
    return {
        "outer": outer,
        "inner": inner,
        "m": m,
        "k": k,
        "n": n,
        "x_outer": x_outer,
        "x_inner": x_inner,
        "m_step": 1 if layer.integer("transpose_x") else k,
        "xk_step": m if layer.integer("transpose_x") else 1,
        "y_outer": y_outer,
        "y_inner": y_inner,
        "yk_step": 1 if layer.integer("transpose_y") else n,
        "n_step": k if layer.integer("transpose_y") else 1,
    }


ROUTINES = (MatMul,)
