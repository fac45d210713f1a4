"""The pass that computes what depends on constants and shapes alone."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants_ir

from nnstretch.errors import first_line
from nnstretch.passes.rewriting import initializer, is_onnx

log = logging.getLogger(__name__)

# Elements. Weights that are computed from other weights are folded whatever their size, within reason.
LARGEST_INPUT = 1 << 28
LARGEST_OUTPUT = 1 << 26
_TUPLES = ("BatchNormalization", "Split", "TopK", "Unique")
"""Operators that may have several outputs, whose values the library gets as a tuple and does not take."""
_MOST_ROUNDS = 8


class FoldConstants(ir.passes.InPlacePass):
    """Inlines functions, computes what depends on constants alone, and infers shapes along the way."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model` in place."""
        if model.functions:
            common.InlinePass()(model)
        for _ in range(_MOST_ROUNDS):
            _fold(model)
            if sum(map(_fold_tuple, tuple(model.graph))) == 0:
                break
        common.RemoveUnusedNodesPass()(model)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        return ir.passes.PassResult(model, True)


def _fold(model: ir.Model) -> None:
    try:
        fold_constants_ir(
            model,
            onnx_shape_inference=True,
            input_size_limit=LARGEST_INPUT,
            output_size_limit=LARGEST_OUTPUT,
            should_fold=_should_fold,
        )
    except RuntimeError as error:
        # The library does not know every form of every operator; what it folded before stays.
        log.info("constants are not folded any further: %s", first_line(error.__cause__ or error))


def _should_fold(node: ir.Node) -> bool | None:
    """Whether the library folds a node whose inputs are constants; None if it decides by itself.

    It preserves ConstantOfShape for the sake of small files, but shapes that exporters compute often begin with one.
    """
    if is_onnx(node, *_TUPLES):
        return False
    return True if is_onnx(node, "ConstantOfShape") else None


def _fold_tuple(node: ir.Node) -> bool:
    """A node of `_TUPLES` that reads constants alone becomes constants."""
    if not is_onnx(node, *_TUPLES) or not node.inputs:
        return False
    if any(value is not None and value.const_value is None for value in node.inputs):
        return False
    if any(output.is_graph_output() for output in node.outputs):
        return False
    arrays = _evaluated(node)
    if arrays is None or sum(array.size for array in arrays) > LARGEST_OUTPUT:
        return False
    for output, array in zip(tuple(node.outputs), arrays, strict=True):
        if output.uses():
            output.replace_all_uses_with(initializer(node, output.name or "constant", array))
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return True


def _evaluated(node: ir.Node) -> list[np.ndarray] | None:
    """The outputs of a node of constants; None if they cannot be computed here."""
    proto = ir.to_proto(node)
    feeds = {str(v.name): v.const_value.numpy() for v in node.inputs if v is not None and v.const_value is not None}
    graph = onnx.helper.make_graph(
        [proto],
        "folded",
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in feeds],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in proto.output],
    )
    assert isinstance(node.graph, ir.Graph)
    opset = onnx.helper.make_opsetid("", node.graph.opset_imports.get("", 1))
    try:
        evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[opset]))
        return [np.asarray(array) for array in evaluator.run(None, feeds)]
    except Exception as error:  # noqa: BLE001 (whatever the reference raises, the node stays)
        log.info("%s %s is not folded: %s", node.op_type, node.name, first_line(error))
        return None
