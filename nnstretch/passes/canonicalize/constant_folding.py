"""Constant folding, on the machinery of onnxscript and onnx_ir."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants_ir

# Elements. Weights that are computed from other weights are folded whatever their size, within reason.
LARGEST_INPUT = 1 << 28
LARGEST_OUTPUT = 1 << 26


class FoldConstants(ir.passes.InPlacePass):
    """Inlines functions, computes what depends on constants alone, and infers shapes along the way."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model` in place."""
        if model.functions:
            common.InlinePass()(model)
        fold_constants_ir(
            model,
            onnx_shape_inference=True,
            input_size_limit=LARGEST_INPUT,
            output_size_limit=LARGEST_OUTPUT,
        )
        common.RemoveUnusedNodesPass()(model)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        return ir.passes.PassResult(model, True)
