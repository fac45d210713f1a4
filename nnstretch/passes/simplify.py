"""Passes over any ONNX graph: equal nodes, nodes that change nothing, names, places of constants, and outputs."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.passes.rewriting import (
    argument,
    bypass,
    constant,
    has_one_result,
    integers,
    is_onnx,
    scalar,
    shape_of,
    unused_value_name,
)

# Operators that change nothing when their result has the shape of their input.
_SHAPE_ONLY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand")
_VARIADIC = ("Concat", "Sum", "Mean", "Max", "Min")


def remove_no_op(node: ir.Node) -> bool:
    """Identity, Dropout, and casts, reshapes, transpositions, pads, slices and factors of 1 that change nothing."""
    return bool(node.inputs) and node.inputs[0] is not None and _changes_nothing(node) and bypass(node)


def _changes_nothing(node: ir.Node) -> bool:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    if not has_one_result(node):
        return False
    if is_onnx(node, "Identity"):
        return True
    if is_onnx(node, "Dropout"):
        training = argument(node, 2)
        return training is None or scalar(training) == 0.0
    if is_onnx(node, "Cast", "CastLike"):
        return source.dtype is not None and source.dtype == result.dtype
    if is_onnx(node, *_VARIADIC):
        return len(node.inputs) == 1
    shape = shape_of(source)
    return shape is not None and shape == shape_of(result) and _moves_nothing(node, len(shape))


def _moves_nothing(node: ir.Node, rank: int) -> bool:
    """Whether a node whose result has the shape of its input leaves all elements as and where they were."""
    if is_onnx(node, "Transpose"):
        order = integers(node, "perm", tuple(reversed(range(rank))))
        return order == tuple(range(rank))
    if is_onnx(node, "Pad"):
        pads = constant(argument(node, 1))
        return pads is not None and not pads.any()
    if is_onnx(node, "Slice"):
        steps = constant(argument(node, 4))
        return argument(node, 4) is None or (steps is not None and bool((steps > 0).all()))
    if is_onnx(node, "AveragePool", "MaxPool"):
        # Adaptive pooling to the size that is there already.
        return set(integers(node, "kernel_shape", ())) == {1} and not any(integers(node, "pads", ()))
    if is_onnx(node, "Mul", "Div"):
        return scalar(argument(node, 1)) == 1.0
    return is_onnx(node, *_SHAPE_ONLY)


class MergeEqualNodes(ir.passes.InPlacePass):
    """Common-subexpression elimination for graphs that no design has placed.

    Branches that begin alike (a pool, say) would become one node of one branch, and the other would have to wait for it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Merges equal nodes of `model`."""
        if any(PLACEMENT_KEY in node.metadata_props for node in model.graph):
            return ir.passes.PassResult(model, modified=False)
        return common.CommonSubexpressionEliminationPass()(model)


class NameValues(ir.passes.InPlacePass):
    """Names all nodes and values, except the optional outputs that a node leaves out."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model` in place."""
        omitted = [value for node in model.graph for value in node.outputs if value.name == "" and not value.uses()]
        result = common.NameFixPass()(model)
        for value in omitted:
            value.name = ""
        return result


class LateConstants(ir.passes.InPlacePass):
    """Moves each such node before its first reader, so that groups of fallback layers contain it."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model`, which is in topological order, in place."""
        graph, modified = model.graph, False
        order = {node: position for position, node in enumerate(graph)}
        for node in reversed(tuple(graph)):
            if not all(value is None or value.is_initializer() for value in node.inputs):
                continue
            readers = [reader for output in node.outputs for reader in output.consumers() if reader in order]
            if readers and not any(output.is_graph_output() for output in node.outputs):
                first = min(readers, key=order.__getitem__)
                graph.remove(node)
                graph.insert_before(first, node)
                order[node] = order[first]
                modified = True
        return ir.passes.PassResult(model, modified)


class KeepOutputs(ir.passes.InPlacePass):
    """An output that is a constant gets an Identity, so that every output is computed by a node."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model` in place."""
        graph, modified = model.graph, False
        for index, value in enumerate(tuple(graph.outputs)):
            if not value.is_initializer():
                continue
            name = value.name
            assert name is not None
            del graph.initializers[name]
            value.name = unused_value_name(graph, f"{name}/constant")
            graph.register_initializer(value)
            result = ir.Value(name=name, shape=value.shape, type=value.type)
            graph.append(ir.Node("", "Identity", (value,), outputs=[result], name=f"{name}/Identity"))
            graph.outputs[index] = result
            modified = True
        return ir.passes.PassResult(model, modified)
