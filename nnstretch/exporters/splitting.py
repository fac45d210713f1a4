"""A branched graph as parts: one per branch, and the head.

Nodes that merge branches at a meeting point belong to no part. Every part that reads a meeting point merges it by itself, so
that parts exchange what branches compute and nothing else is computed between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from nnstretch.graph.metadata import PLACEMENT_KEY, branch_of, module_path

HEAD = "head"
_MERGE = re.compile(r"segments\.(\d+)")


@dataclass(frozen=True)
class Join:
    """A meeting point: tensors of branches that are merged.

    Attributes:
        segment: whose branches meet.
        operator: "concat" along the channels, or "add".
        tensors: names, in the order in which they are merged.
        result: name of the merged tensor.
    """

    segment: int
    operator: str
    tensors: tuple[str, ...]
    result: str


@dataclass
class Part:
    """Nodes that run on one processor without waiting in between.

    Attributes:
        name: "segment0-branch1" or "head".
        segment, branch: numbers of the branch; None for the head.
        processor: number of the processor in the design; None: any.
        nodes: of the graph, in topological order, without merges.
        inputs: names of the tensors it reads, from other parts or the graph's inputs.
        outputs: names of the tensors that other parts read, or that are outputs of the graph.
        joins: names of the merged tensors that it computes of its inputs.
    """

    name: str
    segment: int | None
    branch: int | None
    processor: int | None
    nodes: list[ir.Node] = field(default_factory=list)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()


@dataclass(frozen=True)
class SplitGraph:
    """The parts of a branched graph.

    Attributes:
        parts: in topological order.
        joins: in the order of the segments.
    """

    parts: tuple[Part, ...]
    joins: tuple[Join, ...]


def split(model: ir.Model) -> SplitGraph:
    """The parts of a branched graph, which keeps its nodes; one part, the head, if it has no branches."""
    outputs = set(model.graph.outputs)
    parts: dict[str, Part] = {}
    owners: dict[ir.Node, Part] = {}
    merges: list[ir.Node] = []
    for node in model.graph:
        place = branch_of(module_path(node))
        if place is None and _MERGE.fullmatch(module_path(node)) and not outputs & set(node.outputs):
            merges.append(node)
            continue
        owners[node] = part = parts.setdefault(_name(place), _part(place, node))
        part.nodes.append(node)
    for part in parts.values():
        _connect(part, owners, outputs)
    ordered = sorted(parts.values(), key=lambda part: (part.segment is None, part.segment or 0, part.branch or 0))
    return SplitGraph(tuple(ordered), tuple(_joins(merges)))


def part_model(model: ir.Model, part: Part) -> ir.Model:
    """A part as a model of its own, with the merges of its meeting points; it shares weights with `model`."""
    graph = ir.convenience.extract(model.graph, part.inputs, part.outputs)
    graph.name = part.name
    made = ir.Model(graph, ir_version=model.ir_version, producer_name=model.producer_name)
    if set(part.inputs) & {str(value.name) for value in model.graph.inputs}:
        made.metadata_props.update(model.metadata_props)
    return made


def _name(place: tuple[int, int] | None) -> str:
    return HEAD if place is None else f"segment{place[0]}-branch{place[1]}"


def _part(place: tuple[int, int] | None, node: ir.Node) -> Part:
    segment, branch = place or (None, None)
    stated = node.metadata_props.get(PLACEMENT_KEY, "")
    return Part(_name(place), segment, branch, int(stated) if stated.isdigit() else None)


def _connect(part: Part, owners: Mapping[ir.Node, Part], outputs: set[ir.Value]) -> None:
    """Fills in inputs, outputs and joins of a part."""
    inputs: dict[str, None] = {}
    joins: dict[str, None] = {}
    for node in part.nodes:
        for value in node.inputs:
            _trace(value, part, owners, inputs, joins)
    made = [value for node in part.nodes for value in node.outputs]
    read = (v for v in made if v in outputs or any(owners.get(user) is not part for user in v.consumers()))
    part.inputs, part.joins = tuple(inputs), tuple(joins)
    part.outputs = tuple(str(value.name) for value in read)


def _trace(
    value: ir.Value | None, part: Part, owners: Mapping[ir.Node, Part], inputs: dict[str, None], joins: dict[str, None]
) -> None:
    """Follows a value through merges to tensors of other parts and inputs of the graph."""
    producer = None if value is None else value.producer()
    if value is None or value.is_initializer() or (producer is not None and owners.get(producer) is part):
        return
    if producer is None or producer in owners:
        inputs[str(value.name)] = None
        return
    for source in producer.inputs:
        _trace(source, part, owners, inputs, joins)
    joins[str(value.name)] = None


def _joins(merges: list[ir.Node]) -> Iterator[Join]:
    """The meeting points; a sum of several branches is a chain of additions."""
    inner = set(merges)
    for node in merges:
        found = _MERGE.fullmatch(module_path(node))
        assert found is not None
        if any(user in inner and module_path(user) == module_path(node) for user in node.outputs[0].consumers()):
            continue
        operator = "concat" if node.op_type == "Concat" else "add"
        tensors = tuple(_sources(node, inner))
        yield Join(int(found[1]), operator, tensors, str(node.outputs[0].name))


def _sources(node: ir.Node, merges: set[ir.Node]) -> Iterator[str]:
    for value in node.inputs:
        if value is None or value.is_initializer():
            continue
        producer = value.producer()
        if producer in merges:
            assert producer is not None
            yield from _sources(producer, merges)
        else:
            yield str(value.name)
