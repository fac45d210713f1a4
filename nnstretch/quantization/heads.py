"""Heads of a network, and whether they are a detector's.

A *weighted layer* has constant weights: a convolution or a dense layer. The *heads* are the weighted layers behind which
there is no other on the way to an output, and all that is computed behind them. A detector of several scales joins rows
of boxes from maps of different sizes in one tensor; its heads begin before that *join*, since a decoding of boxes may hold
convolutions of its own (the expectation over distances of YOLOv8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from nnstretch.vision.detection import detector_form

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_DENSE = frozenset({"Gemm", "MatMul"})
_ROWS = 3
"""Rank of a tensor with a row per box of an image."""


def is_weighted(node: ir.Node) -> bool:
    """Whether a node multiplies with constant weights."""
    constant = len(node.inputs) > 1 and node.inputs[1] is not None and node.inputs[1].is_initializer()
    return constant and node.op_type in _CONVOLUTIONS | _DENSE


def head_nodes(model: ir.Model) -> list[ir.Node]:
    """Nodes of the heads, in topological order."""
    order, joins = list(model.graph), _joins(model)
    found = _without_weights_behind(order).union(
        joins, _reached(joins, _consumers), _reached(joins, _producers_up_to_weights)
    )
    return [node for node in order if node in found]


def is_detector(model: ir.Model) -> bool:
    """Whether the outputs are boxes: by their shapes, or as rows of maps of several sizes are joined, or returned as maps."""
    shapes = {str(value.name): shape for value in model.graph.outputs if (shape := _shape(value)) is not None}
    images = [size for value in model.graph.inputs if (size := _shape(value)) is not None and len(size) == 4]
    if _joins(model) or _returns_levels(shapes.values()):
        return True
    return any(detector_form(shapes, (size[2], size[3]), None) is not None for size in images)


def _returns_levels(shapes: Iterable[Sequence[int]]) -> bool:
    """Whether there are maps of several sizes with as many channels among outputs, as detectors return them in training."""
    sizes: dict[int, set[tuple[int, ...]]] = {}
    for shape in shapes:
        if len(shape) == 4:
            sizes.setdefault(shape[1], set()).add(tuple(shape[2:]))
    return any(len(some) > 1 for some in sizes.values())


def _shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape, if it is static."""
    return value.shape.numpy() if value.shape is not None and value.shape.is_static() else None


def _joins(model: ir.Model) -> list[ir.Node]:
    """Concatenations of rows that come from convolutions whose maps differ in size.

    Tokens of several maps that a transformer reads are joined as well: with more weighted layers behind a concatenation than
    it joins, it is none.
    """
    found = []
    for node in model.graph:
        joined = _shape(node.outputs[0])
        if node.op_type != "Concat" or joined is None or len(joined) != _ROWS:
            continue
        sources = [source for source in _reached([node], _producers_up_to_weights) if source.op_type in _CONVOLUTIONS]
        sizes = {shape[2:] for source in sources if (shape := _shape(source.outputs[0])) is not None}
        behind = [reader for reader in _reached([node], _consumers) if is_weighted(reader)]
        if len(sizes) > 1 and len(behind) <= len(sources):
            found.append(node)
    return found


def _without_weights_behind(order: Sequence[ir.Node]) -> set[ir.Node]:
    """Nodes behind which there is no weighted layer; such a layer itself may be one."""
    found: set[ir.Node] = set()
    for node in reversed(order):
        if all(reader in found and not is_weighted(reader) for reader in _consumers(node)):
            found.add(node)
    return found


def _reached(starts: Iterable[ir.Node], steps: Callable[[ir.Node], Iterable[ir.Node]]) -> list[ir.Node]:
    """Nodes that repeated steps from some nodes lead to."""
    found: dict[ir.Node, None] = {}
    waiting = list(starts)
    while waiting:
        for node in steps(waiting.pop()):
            if node not in found:
                found[node] = None
                waiting.append(node)
    return list(found)


def _consumers(node: ir.Node) -> list[ir.Node]:
    return [reader for value in node.outputs for reader in value.consumers()]


def _producers_up_to_weights(node: ir.Node) -> list[ir.Node]:
    """Producers of a node's inputs; none of those of a weighted layer."""
    if is_weighted(node):
        return []
    producers = (value.producer() for value in node.inputs if value is not None)
    return [producer for producer in producers if producer is not None]
