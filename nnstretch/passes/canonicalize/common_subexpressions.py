"""Common-subexpression elimination."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from nnstretch.graph.placement import PLACEMENT_KEY


class MergeEqualNodes(ir.passes.InPlacePass):
    """Common-subexpression elimination for graphs that no design has placed.

    Branches that begin alike (a pool, say) would become one node of one branch, and the other would have to wait for it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Merges equal nodes of `model`."""
        if any(PLACEMENT_KEY in node.metadata_props for node in model.graph):
            return ir.passes.PassResult(model, modified=False)
        return common.CommonSubexpressionEliminationPass()(model)
