"""ONNX graphs made simple before they become modules: shapes computed, patterns of exporters made operators again."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from nnstretch.passes.canonicalize import normalization
from nnstretch.passes.canonicalize.activations import lower_activation, lower_threshold
from nnstretch.passes.canonicalize.normalization import lower_quotient
from nnstretch.passes.constants import FoldConstants
from nnstretch.passes.rewriting import EachNode, each_operator, is_onnx
from nnstretch.passes.simplify import MergeEqualNodes, remove_no_op

_NORMALIZATIONS = {
    "GroupNormalization": (normalization.lower_group_normalization,),
    "InstanceNormalization": (normalization.lower_instance_normalization,),
    "RMSNormalization": (normalization.lower_layer_normalization,),
    "Reshape": (normalization.regroup,),
    "Mul": (normalization.fold_factor,),
    "Add": (normalization.fold_factor,),
    "Where": (lower_threshold,),
}
"""Layer and batch normalisation keep their operators, and with them the names of their weights."""


def simplified(model: ir.Model) -> ir.Model:
    """A copy in which whatever depends on shapes and constants alone is computed.

    Activations and normalisations, as operators or as exporters spell them out, are `Activation`, `LayerNorm` and
    `GroupNorm` of the domain `nnstretch` (`nnstretch.graph.layer`).
    """
    copy = model.clone()
    ir.passes.Sequential(
        common.OutputFixPass(),
        FoldConstants(),
        EachNode(_remove_no_op),
        MergeEqualNodes(),
        EachNode(lower_quotient),
        EachNode(lower_activation),
        common.RemoveUnusedNodesPass(),
        each_operator(_NORMALIZATIONS),
        common.RemoveUnusedNodesPass(),
        common.TopologicalSortPass(),
    )(copy)
    return copy


def _remove_no_op(node: ir.Node) -> bool:
    """Dropout does nothing at inference and is kept for the training."""
    return not is_onnx(node, "Dropout") and remove_no_op(node)
