"""The passes that turn an ONNX graph into a graph of fused layers (see `nnstretch.graph.layer`)."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from nnstretch.graph.layer import DOMAIN
from nnstretch.passes.canonicalize.activations import lower_activation
from nnstretch.passes.canonicalize.common_subexpressions import MergeEqualNodes
from nnstretch.passes.canonicalize.constant_folding import FoldConstants
from nnstretch.passes.canonicalize.convolution import lower_convolution
from nnstretch.passes.canonicalize.data_movement import (
    lower_concat,
    lower_other_types,
    lower_slice,
    lower_split,
    lower_transpose,
)
from nnstretch.passes.canonicalize.dense import lower_dense
from nnstretch.passes.canonicalize.elementwise import lower_elementwise
from nnstretch.passes.canonicalize.late_constants import LateConstants
from nnstretch.passes.canonicalize.no_ops import remove_no_op
from nnstretch.passes.canonicalize.outputs import KeepOutputs
from nnstretch.passes.canonicalize.pooling import lower_pooling
from nnstretch.passes.canonicalize.reshape import lower_reshape, merge_reshapes
from nnstretch.passes.canonicalize.resize import lower_resize
from nnstretch.passes.canonicalize.softmax import lower_softmax
from nnstretch.passes.fuse.affine import fold_affine, lower_batch_normalization, shape_affine
from nnstretch.passes.fuse.epilogues import fuse_layer
from nnstretch.passes.fuse.padding import fold_pad
from nnstretch.passes.quantize.qdq import (
    compute_in_int8,
    dequantize_constants,
    lower_quantization,
    quantize_early,
    transpose_weight,
)
from nnstretch.passes.rewriting import EachNode

__all__ = ["canonicalization", "fusion", "optimize", "pipeline"]


def canonicalization() -> tuple[ir.passes.PassBase, ...]:
    """The passes that turn ONNX operators into canonical ones."""
    return (
        EachNode(remove_no_op),
        MergeEqualNodes(),
        EachNode(transpose_weight),
        EachNode(lower_activation),
        common.RemoveUnusedNodesPass(),
        EachNode(lower_convolution),
        EachNode(lower_dense),
        EachNode(lower_pooling),
        EachNode(lower_batch_normalization),
        EachNode(lower_elementwise),
        EachNode(lower_concat),
        EachNode(lower_softmax),
        EachNode(lower_resize),
        EachNode(lower_reshape),
        EachNode(lower_transpose),
        EachNode(lower_slice),
        EachNode(lower_split),
        EachNode(lower_quantization),
    )


def fusion() -> tuple[ir.passes.PassBase, ...]:
    """The passes that merge canonical operators into layers."""
    return (
        EachNode(fold_pad),
        EachNode(fold_affine),
        EachNode(fuse_layer),
        EachNode(shape_affine),
        EachNode(merge_reshapes),
        EachNode(quantize_early),
        EachNode(compute_in_int8),
        EachNode(dequantize_constants),
    )


def pipeline() -> tuple[ir.passes.PassBase, ...]:
    """All passes in the order in which they run."""
    return (
        common.OutputFixPass(),
        FoldConstants(),
        *canonicalization(),
        *fusion(),
        EachNode(lower_other_types),
        KeepOutputs(),
        common.RemoveUnusedNodesPass(),
        common.TopologicalSortPass(),
        LateConstants(),
        common.NameFixPass(),
    )


def optimize(model: ir.Model) -> ir.Model:
    """A copy of `model` whose nodes are fused layers wherever the operator table has one for them.

    `model` stays as it is and shares its tensors. Inputs and outputs keep names, order and types.
    """
    result = model.clone()
    ir.passes.Sequential(*pipeline())(result)
    result.graph.opset_imports[DOMAIN] = 1
    return result
