"""Parts of a graph whose tensors have shapes that are known only in the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from nnstretch.passes.rewriting import unused_value_name


class EncloseUnknownShapes(ir.passes.InPlacePass):
    """Nodes that pass on tensors of unknown shape become the body of one If, which the fallback runs whole.

    What leaves such a region has a known shape. A graph whose outputs have unknown shapes stays as it is.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model` in place."""
        graph = model.graph
        unknown = [value for node in graph for value in node.outputs if _is_unknown(value)]
        if not unknown or any(value.is_graph_output() for value in unknown):
            return ir.passes.PassResult(model, modified=False)
        readers = _Readers(graph)
        regions = _regions(readers, unknown)
        if not all(map(_can_leave, (value for region in regions for value in _leaving(readers, region)))):
            return ir.passes.PassResult(model, modified=False)
        for region in regions:
            _enclose(readers, [node for node in graph if node in region])
        graph.sort()
        return ir.passes.PassResult(model, modified=True)


class _Readers:
    """Which nodes of a graph read a value, by themselves or in the bodies of control-flow operators."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._owners: dict[ir.Node, ir.Node] = {}
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                    bodies = (
                        [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()
                    )
                    inner = (part for body in bodies for part in ir.traversal.RecursiveGraphIterator(body))
                    self._owners.update(dict.fromkeys(inner, node))

    def owner(self, node: ir.Node) -> ir.Node:
        """The node of the graph that `node` is, or lies in."""
        return self._owners.get(node, node)

    def of(self, value: ir.Value) -> set[ir.Node]:
        """The nodes of the graph that read a value."""
        return {self.owner(reader) for reader in value.consumers()}

    def read(self, node: ir.Node) -> Iterator[ir.Node]:
        """The nodes of the graph that a node depends on."""
        bodies = (inner for inner, owner in self._owners.items() if owner is node)
        for reader in (node, *bodies):
            for value in reader.inputs:
                producer = None if value is None else value.producer()
                if producer is not None and producer.graph is self.graph:
                    yield producer


def _is_unknown(value: ir.Value) -> bool:
    """Whether plans cannot pass `value` on: its type is no tensor, or its shape is not known."""
    if not value.name or not (value.uses() or value.is_graph_output()):
        return False
    return not isinstance(value.type, ir.TensorType) or value.shape is None or not value.shape.is_static()


def _can_leave(value: ir.Value) -> bool:
    return not _is_unknown(value) and value.dtype not in (None, ir.DataType.STRING)


def _regions(readers: _Readers, unknown: Iterable[ir.Value]) -> list[set[ir.Node]]:
    """The nodes that unknown values join, and those on paths between them; no two regions depend on each other."""
    regions: list[set[ir.Node]] = []
    for value in unknown:
        producer = value.producer()
        assert producer is not None
        _add(regions, {producer, *readers.of(value)})
    while True:
        closed: list[set[ir.Node]] = []
        for region in regions:
            _add(closed, region | (_reached(readers, region) & _needed(readers, region)))
        if closed == regions:
            return regions
        regions = closed


def _add(regions: list[set[ir.Node]], nodes: set[ir.Node]) -> None:
    """Adds a region, joined with those that it shares nodes with."""
    joined = set(nodes)
    for region in [region for region in regions if region & nodes]:
        regions.remove(region)
        joined |= region
    regions.append(joined)


def _reached(readers: _Readers, region: set[ir.Node]) -> set[ir.Node]:
    """Nodes that depend on a region."""
    found: set[ir.Node] = set()
    waiting = list(region)
    while waiting:
        for value in waiting.pop().outputs:
            new = readers.of(value) - found
            found |= new
            waiting += new
    return found


def _needed(readers: _Readers, region: set[ir.Node]) -> set[ir.Node]:
    """Nodes that a region depends on."""
    found: set[ir.Node] = set()
    waiting = list(region)
    while waiting:
        new = set(readers.read(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def _leaving(readers: _Readers, region: set[ir.Node]) -> list[ir.Value]:
    """Values that nodes outside of a region read, and outputs of the graph."""
    return [
        value for node in region for value in node.outputs if value.is_graph_output() or not readers.of(value) <= region
    ]


def _enclose(readers: _Readers, nodes: list[ir.Node]) -> None:
    """Moves nodes, which are in topological order, into the first branch of an If."""
    graph, region = readers.graph, set(nodes)
    leaving = set(_leaving(readers, region))
    inner = [value for node in nodes for value in node.outputs if value in leaving]
    outer = [ir.Value(name=value.name, shape=value.shape, type=value.type) for value in inner]
    for value, replacement in zip(inner, outer, strict=True):
        value.name = unused_value_name(graph, f"{replacement.name}/inner")
        for reader, index in tuple(value.uses()):
            if readers.owner(reader) not in region:
                reader.replace_input_with(index, replacement)
        for position, output in enumerate(tuple(graph.outputs)):
            if output is value:
                graph.outputs[position] = replacement
    graph.remove(nodes)
    body = ir.Graph((), inner, nodes=nodes, name=f"{outer[0].name}/body", opset_imports=graph.opset_imports)
    name = unused_value_name(graph, f"{outer[0].name}/condition")
    condition = ir.Value(
        name=name,
        shape=ir.Shape(()),
        type=ir.TensorType(ir.DataType.BOOL),
        const_value=ir.Tensor(np.array(True), name=name),
    )
    graph.register_initializer(condition)
    attributes = {"then_branch": body, "else_branch": _zeros(graph, inner)}
    graph.append(ir.node("If", (condition,), attributes, outputs=outer, name=f"{nodes[0].name}…{nodes[-1].name}"))


def _zeros(graph: ir.Graph, values: list[ir.Value]) -> ir.Graph:
    """The branch that is never taken: tensors of the same types."""
    nodes = []
    for value in values:
        assert value.shape is not None
        assert value.dtype is not None
        zeros = np.zeros(value.shape.numpy(), value.dtype.numpy())
        result = ir.Value(name=f"{value.name}/none", shape=value.shape, type=value.type)
        nodes.append(ir.node("Constant", (), {"value": ir.Tensor(zeros)}, outputs=[result], name=f"{value.name}/none"))
    outputs = [node.outputs[0] for node in nodes]
    return ir.Graph((), outputs, nodes=nodes, name=f"{outputs[0].name}/none", opset_imports=graph.opset_imports)
