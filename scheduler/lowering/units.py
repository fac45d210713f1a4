"""Units: what selection and scheduling work on: one layer, or consecutive layers that only the fallback engine computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from nnstretch.devices.engine.binding.library import MAX_READS, MAX_WRITES
from nnstretch.errors import ModelError
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.expand import expand_region
from nnstretch.graph.layer import MOVING_OPERATORS, Layer, TensorType, fused_layer
from nnstretch.graph.layers import GraphNode, graph_inputs, graph_outputs, layers
from nnstretch.graph.placement import PLACEMENT_KEY


@dataclass(frozen=True, eq=False)
class Unit:
    """One schedulable piece of the graph.

    Attributes:
        name: unique.
        layer: the layer; for fallback layers all of them as one.
        nodes: the graph nodes it stands for.
        inputs: names of the tensors it reads at run time (for a layer in the order of `layer.activations`).
        outputs: names of the tensors it makes.
        placement: index of the processor that a design gave it to, or None if any may run it.
        is_fallback: whether only the fallback engine computes it.
    """

    name: str
    layer: Layer
    nodes: tuple[GraphNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    placement: int | None
    is_fallback: bool = False


@dataclass(frozen=True, eq=False)
class UnitGraph:
    """All units in topological order with the types of all tensors between them."""

    units: tuple[Unit, ...]
    types: dict[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def working_set(graph: UnitGraph) -> int:
    """Bytes that a run goes through between two uses of a layer's weights.

    All weights count, and the largest tensor twice: one layer writes it, the next reads it.
    """
    weights = sum(unit.layer.weight_bytes for unit in graph.units)
    return weights + 2 * max((tensor.bytes for tensor in graph.types.values()), default=0)


def unit_graph(model: ir.Model, is_native: Callable[[Layer], bool]) -> UnitGraph:
    """Cuts an optimised model into units: consecutive layers that are not native become one fallback unit.

    A run of consecutive nodes of a topological order depends on nothing that depends on it, so calling it as
    one is legal. One that reads or makes more tensors than a step takes becomes several.

    Raises:
        ModelError: a single layer reads or makes more.
    """
    nodes = layers(model)
    inputs, outputs = graph_inputs(model), graph_outputs(model)
    types: dict[str, TensorType] = dict(inputs) | dict(outputs)
    for node in nodes:
        types.update(zip(node.outputs, node.layer.outputs, strict=True))
    wanted_later = _last_use(nodes, [name for name, _ in outputs])
    native = [is_native(node.layer) for node in nodes]
    carried = _carried(nodes, native)
    units: list[Unit] = []
    run: list[GraphNode] = []
    for position, node in enumerate(nodes):
        if native[position] and position not in carried:
            units += _fallbacks(run, position, wanted_later)
            run = []
            units.append(_native(node))
        else:
            run.append(node)
    units += _fallbacks(run, len(nodes), wanted_later)
    return UnitGraph(tuple(units), types, tuple(n for n, _ in inputs), tuple(n for n, _ in outputs))


def fallback_model(unit: Unit) -> onnx.ModelProto:
    """The ONNX model of a fallback unit, with the unit's inputs and outputs in its order."""
    return expand_region(unit.nodes, unit.inputs, unit.outputs)


def join_units(units: Sequence[Unit], outputs: Sequence[str]) -> Unit:
    """Several units as one; of what they make nobody else sees more than `outputs`."""
    nodes = tuple(node for unit in units for node in unit.nodes)
    made = {name for node in nodes for name in node.outputs}
    inputs = tuple(dict.fromkeys(name for unit in units for name in unit.inputs if name not in made))
    layer = _as_one(nodes, inputs, outputs)
    return Unit(layer.name, layer, nodes, inputs, tuple(outputs), units[0].placement)


def _placement(metadata: dict[str, str], name: str) -> int | None:
    text = metadata.get(PLACEMENT_KEY)
    if text is None:
        return None
    if not text.isdigit():
        raise ModelError(f"node {name} has {PLACEMENT_KEY}={text!r}, which is not a processor's number")
    return int(text)


def _native(node: GraphNode) -> Unit:
    inputs = tuple(str(node.inputs[i]) for i in node.layer.activations)
    placement = _placement(dict(node.metadata), node.layer.name)
    return Unit(node.layer.name, node.layer, (node,), inputs, node.outputs, placement)


def _carried(nodes: Sequence[GraphNode], native: Sequence[bool]) -> set[int]:
    """Native layers that fallback units carry: those that only move elements, and have none but fallback layers around them.

    By themselves they would cut a run of fallback layers in two. Layers on float32 stay native, as their
    neighbours may be.
    """
    neighbours = _neighbours(nodes)
    movers = {i for i, node in enumerate(nodes) if native[i] and _moves_other_types(node.layer)}
    carried: set[int] = set()
    while movers:
        group, around, rest = set[int](), set[int](), [min(movers)]
        while rest:
            number = rest.pop()
            if number not in movers:
                around.add(number)
            elif number not in group:
                group.add(number)
                rest += neighbours[number]
        movers -= group
        around -= group
        if around and not any(native[number] for number in around):
            carried |= group
    return carried


def _moves_other_types(layer: Layer) -> bool:
    return layer.op in MOVING_OPERATORS and layer.outputs[0].dtype != DEFAULT_DTYPE


def _neighbours(nodes: Sequence[GraphNode]) -> list[set[int]]:
    """For each node those that make what it reads, and those that read what it makes."""
    maker = {name: number for number, node in enumerate(nodes) for name in node.outputs}
    found: list[set[int]] = [set() for _ in nodes]
    for number, node in enumerate(nodes):
        for name in node.inputs:
            if name in maker:
                found[number].add(maker[name])
                found[maker[name]].add(number)
    return found


def _last_use(nodes: Sequence[GraphNode], outputs: Sequence[str]) -> dict[str, int]:
    last = {name: i for i, node in enumerate(nodes) for name in node.inputs if name is not None}
    return last | {name: len(nodes) for name in outputs}


def _fallbacks(run: Sequence[GraphNode], end: int, last_use: dict[str, int]) -> list[Unit]:
    """A run of nodes that ends before position `end` as few units, none of which reads or makes more than a step may."""
    units = []
    first = end - len(run)
    while first < end:
        rest = run[len(run) - (end - first) :]
        length = _longest(rest, first, last_use)
        units.append(_fallback(rest[:length], first + length, last_use))
        first += length
    return units


def _longest(run: Sequence[GraphNode], first: int, last_use: dict[str, int]) -> int:
    """How many nodes from the begin of a run, which lies at position `first`, one step can compute."""
    reads: set[str] = set()
    made: set[str] = set()
    wanted: set[str] = set()
    longest = 0
    for position, node in enumerate(run, first):
        reads |= {str(node.inputs[index]) for index in node.layer.activations} - made
        made |= set(node.outputs)
        wanted |= set(node.outputs)
        wanted = {name for name in wanted if last_use.get(name, -1) > position}
        if len(reads) > MAX_READS:
            break
        if len(wanted) <= MAX_WRITES:
            longest = position - first + 1
    if not longest:
        name, layer = run[0].layer.name, run[0].layer
        raise ModelError(
            f"layer {name} ({layer.op}) reads {len(layer.activations)} tensors and makes {len(layer.outputs)}; a step of the "
            f"engine takes {MAX_READS} and {MAX_WRITES}: split it into several before export"
        )
    return longest


def _fallback(run: Sequence[GraphNode], end: int, last_use: dict[str, int]) -> Unit:
    made = {name for node in run for name in node.outputs}
    inputs: dict[str, None] = {}
    for node in run:
        for index in node.layer.activations:
            name = node.inputs[index]
            if name is not None and name not in made:
                inputs[name] = None
    outputs = tuple(n for node in run for n in node.outputs if last_use.get(n, -1) >= end)
    layer = _as_one(run, list(inputs), outputs)
    placement = _placement(dict(run[0].metadata), layer.name)
    return Unit(layer.name, layer, tuple(run), tuple(inputs), outputs, placement, is_fallback=True)


def _as_one(run: Sequence[GraphNode], inputs: Sequence[str], outputs: Sequence[str]) -> Layer:
    made = [name for node in run for name in node.outputs]
    source = {name: number for number, name in enumerate(inputs)} | {name: -1 - i for i, name in enumerate(made)}
    wiring = [[source[str(node.inputs[i])] for i in node.layer.activations] for node in run]
    return fused_layer([node.layer for node in run], wiring, [made.index(name) for name in outputs])
