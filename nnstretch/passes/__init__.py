"""The passes that turn an ONNX graph into a graph of fused layers (see `nnstretch.graph.layer`)."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from nnstretch.errors import ModelError
from nnstretch.graph.layer import DOMAIN
from nnstretch.passes import quantization
from nnstretch.passes.canonicalize import (
    activations,
    arithmetic,
    data_movement,
    normalization,
    recurrence,
    reductions,
    spatial,
    transposed,
)
from nnstretch.passes.canonicalize.activations import lower_activation
from nnstretch.passes.canonicalize.assignment import expand_assignment
from nnstretch.passes.canonicalize.contraction import expand_einsum
from nnstretch.passes.canonicalize.data_movement import lower_other_types, merge_reshapes, skip_expand
from nnstretch.passes.canonicalize.normalization import lower_quotient
from nnstretch.passes.canonicalize.spatial import crop_first, drop_taps, fold_pad, lower_pad
from nnstretch.passes.constants import FoldConstants
from nnstretch.passes.fuse import affine, attention
from nnstretch.passes.fuse.affine import fold_affine, shape_affine
from nnstretch.passes.fuse.epilogues import fuse_layer
from nnstretch.passes.fuse.hoisting import hoist, order_tiles
from nnstretch.passes.fuse.parallel import merge_parallel
from nnstretch.passes.quantization import (
    compute_floats,
    compute_in_int8,
    dequantize_constants,
    quantize_early,
    transpose_weight,
)
from nnstretch.passes.regions import EncloseUnknownShapes
from nnstretch.passes.rewriting import EachNode, Lowerings, each_operator
from nnstretch.passes.simplify import (
    KeepOutputs,
    LateConstants,
    MergeEqualNodes,
    NameValues,
    remove_no_op,
)
from nnstretch.passes.tokens.operators import TokensArePixels

__all__ = ["canonicalization", "fusion", "optimize", "pipeline"]

_OPERATORS = (
    normalization,
    recurrence,
    spatial,
    reductions,
    transposed,
    arithmetic,
    affine,
    activations,
    data_movement,
)
"""Modules whose `LOWERINGS` make ONNX operators canonical, in the order in which those of one operator are tried."""


_EXPANSIONS: Lowerings = {
    "Einsum": (expand_einsum,),
    "ScatterND": (expand_assignment,),
    "Pad": (crop_first,),
    **recurrence.EXPANSIONS,
}
"""Operators that become others of ONNX, before any of these is lowered."""


def canonicalization() -> tuple[ir.passes.PassBase, ...]:
    """The passes that turn ONNX operators into canonical ones."""
    return (
        each_operator(_EXPANSIONS),
        EachNode(remove_no_op),
        MergeEqualNodes(),
        EachNode(transpose_weight),
        EachNode(lower_quotient),
        EachNode(lower_activation),
        EachNode(skip_expand),
        common.RemoveUnusedNodesPass(),
        each_operator(normalization.LOWERINGS, data_movement.LOWERINGS),
        each_operator(attention.LOWERINGS),
        common.RemoveUnusedNodesPass(),
        TokensArePixels(),
        common.RemoveUnusedNodesPass(),
        each_operator(attention.OF_HEADS),
        common.RemoveUnusedNodesPass(),
        each_operator(*(module.LOWERINGS for module in _OPERATORS)),
        each_operator(quantization.LOWERINGS),
    )


def fusion(*, float_results: bool = True) -> tuple[ir.passes.PassBase, ...]:
    """The passes that merge canonical operators into layers; `float_results` as in `optimize`."""
    return (
        EachNode(fold_pad),
        EachNode(lower_pad),
        EachNode(drop_taps),
        EachNode(hoist),
        EachNode(lambda node: fold_affine(node) or merge_parallel(node)),
        EachNode(fuse_layer),
        EachNode(order_tiles),
        EachNode(shape_affine),
        EachNode(merge_reshapes),
        EachNode(quantize_early),
        EachNode(compute_in_int8),
        *((EachNode(compute_floats),) if float_results else ()),
        EachNode(dequantize_constants),
    )


def pipeline(*, float_results: bool = True) -> tuple[ir.passes.PassBase, ...]:
    """All passes in the order in which they run; `float_results` as in `optimize`."""
    return (
        common.OutputFixPass(),
        FoldConstants(),
        EncloseUnknownShapes(),
        *canonicalization(),
        *fusion(float_results=float_results),
        EachNode(lower_other_types),
        KeepOutputs(),
        common.RemoveUnusedNodesPass(),
        common.TopologicalSortPass(),
        LateConstants(),
        NameValues(),
    )


def optimize(model: ir.Model, *, float_results: bool = True) -> ir.Model:
    """A copy of `model` whose nodes are fused layers wherever the operator table has one for them.

    `model` stays as it is and shares its tensors. Inputs and outputs keep names, order and types. A graph that this returned is
    copied without a change.

    Args:
        model: the graph.
        float_results: convolutions and dense layers on int8 whose results are not rounded are int8 layers that make float32,
            which CPUs alone compute. Otherwise they stay float32.

    Raises:
        ModelError: an output is an input.
    """
    for value in model.graph.outputs:
        if value.is_graph_input():
            raise ModelError(f"output {value.name!r} is an input too; give it a name of its own, by an Identity")
    result = model.clone()
    ir.passes.Sequential(*pipeline(float_results=float_results))(result)
    result.graph.opset_imports[DOMAIN] = 1
    return result
