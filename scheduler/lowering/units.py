"""Units of selection and scheduling: one layer, or consecutive layers that only the fallback engine computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from nnstretch.devices.engine.binding.library import MAX_READS, MAX_WRITES
from nnstretch.errors import ModelError
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.expand import expand_region
from nnstretch.graph.float_form import float_form
from nnstretch.graph.layer import OPERATORS, Layer, TensorType, fused_layer
from nnstretch.graph.layers import GraphNode, graph_inputs, graph_outputs, layers
from nnstretch.graph.metadata import PLACEMENT_KEY


@dataclass(frozen=True, eq=False)
class Unit:
    """One schedulable piece of the graph.

    Attributes:
        name: unique.
        layer: the layer; several fallback layers are fused into one.
        nodes: its graph nodes.
        inputs: names of its run-time inputs, for a layer in the order of `layer.activations`.
        outputs: names of its outputs.
        placement: index of the processor in the design; None if any may run it.
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
    """All units in topological order with the types of all tensors between them.

    Attributes:
        units: the units.
        types: of all tensors by name.
        inputs: names of the network's inputs.
        outputs: names of its outputs.
        in_float32: whether int8 layers are computed in float32, so that their weights take four times the bytes.
        repeated_macs: multiply-accumulates in rows that several bands compute, beyond those of the network.
    """

    units: tuple[Unit, ...]
    types: dict[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_float32: bool = False
    repeated_macs: int = 0


def working_set(graph: UnitGraph) -> int:
    """Bytes that a run touches between two uses of a layer's weights.

    All weights count, and the largest tensor twice: one layer writes it, the next reads it.
    """
    computed = [(float_form(unit.layer) if graph.in_float32 else None) or unit.layer for unit in graph.units]
    weights = sum(layer.weight_bytes for layer in computed)
    tensors = (*graph.types.values(), *(tensor for layer in computed for tensor in layer.outputs))
    return weights + 2 * max((tensor.bytes for tensor in tensors), default=0)


def unit_graph(model: ir.Model, is_native: Callable[[Layer], bool]) -> UnitGraph:
    """Cuts an optimised model into units: consecutive layers that are not native become one fallback unit.

    Consecutive nodes of a topological order form no cycle with the others, so they can be one unit. Nodes that read or write
    more tensors than a step can become several units.

    Raises:
        ModelError: a single layer reads or writes more tensors than a step can, or texts lie between units.
    """
    nodes = layers(model)
    inputs, outputs = graph_inputs(model), graph_outputs(model)
    types: dict[str, TensorType] = dict(inputs) | dict(outputs)
    for node in nodes:
        types.update(zip(node.outputs, node.layer.outputs, strict=True))
    wanted_later = _last_use(nodes, [name for name, _ in outputs])
    native = [is_native(node.layer) for node in nodes]
    absorbed = _absorbed(nodes, native)
    units: list[Unit] = []
    pending: list[GraphNode] = []
    for position, node in enumerate(nodes):
        if native[position] and position not in absorbed:
            units += _fallbacks(pending, position, wanted_later)
            pending = []
            units.append(_native(node))
        else:
            pending.append(node)
    units += _fallbacks(pending, len(nodes), wanted_later)
    _check_no_texts([*dict(inputs), *dict(outputs), *(name for unit in units for name in unit.inputs)], types)
    return UnitGraph(tuple(units), types, tuple(n for n, _ in inputs), tuple(n for n, _ in outputs))


def _check_no_texts(names: Iterable[str], types: Mapping[str, TensorType]) -> None:
    """Refuses tensors of texts between units, inputs and outputs: their memory cannot be planned."""
    for name in names:
        if types[name].dtype == "string":
            raise ModelError(f"tensor {name!r} holds texts, which plans cannot pass on; compute with these outside")


def fallback_model(unit: Unit) -> onnx.ModelProto:
    """The ONNX model of a fallback unit, with the unit's inputs and outputs in its order."""
    return expand_region(unit.nodes, unit.inputs, unit.outputs)


def join_units(units: Sequence[Unit], outputs: Sequence[str]) -> Unit:
    """Fuses several units into one with these outputs."""
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
        raise ModelError(f"node {name} has {PLACEMENT_KEY}={text!r}; give the index of a processor")
    return int(text)


def _native(node: GraphNode) -> Unit:
    inputs = tuple(str(node.inputs[i]) for i in node.layer.activations)
    placement = _placement(dict(node.metadata), node.layer.name)
    return Unit(node.layer.name, node.layer, (node,), inputs, node.outputs, placement)


def _absorbed(nodes: Sequence[GraphNode], native: Sequence[bool]) -> set[int]:
    """Indices of native layers that become part of fallback units: memory-bound ones with only fallback layers around them.

    These are data movement and int8 layers without multiply-adds. As units of their own they would split a fallback unit.
    Layers on float32 stay native, since their neighbours may be.
    """
    neighbours = _neighbours(nodes)
    movers = {i for i, node in enumerate(nodes) if native[i] and _joins_fallbacks(node.layer)}
    absorbed: set[int] = set()
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
            absorbed |= group
    return absorbed


def _joins_fallbacks(layer: Layer) -> bool:
    moves = OPERATORS.get(layer.op) == "move" and layer.outputs[0].dtype != DEFAULT_DTYPE
    return moves or (layer.is_int8 and not layer.macs)


def _neighbours(nodes: Sequence[GraphNode]) -> list[set[int]]:
    """For each node its producers and consumers."""
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


def _fallbacks(nodes: Sequence[GraphNode], end: int, last_use: dict[str, int]) -> list[Unit]:
    """Fewest units for consecutive nodes before position `end`, each within the tensors of a step."""
    units = []
    first = end - len(nodes)
    while first < end:
        rest = nodes[len(nodes) - (end - first) :]
        length = _longest(rest, first, last_use)
        units.append(_fallback(rest[:length], first + length, last_use))
        first += length
    return units


def _longest(nodes: Sequence[GraphNode], first: int, last_use: dict[str, int]) -> int:
    """The number of leading nodes, from position `first`, that one step can compute."""
    reads: set[str] = set()
    made: set[str] = set()
    wanted: set[str] = set()
    longest = 0
    for position, node in enumerate(nodes, first):
        reads |= {str(node.inputs[index]) for index in node.layer.activations} - made
        made |= set(node.outputs)
        wanted |= set(node.outputs)
        wanted = {name for name in wanted if last_use.get(name, -1) > position}
        if len(reads) > MAX_READS:
            break
        if len(wanted) <= MAX_WRITES:
            longest = position - first + 1
    if not longest:
        name, layer = nodes[0].layer.name, nodes[0].layer
        raise ModelError(
            f"layer {name} ({layer.op}) reads {len(layer.activations)} tensors and writes {len(layer.outputs)}; a step of the "
            f"engine takes {MAX_READS} and {MAX_WRITES}: split it into several before export"
        )
    return longest


def _fallback(nodes: Sequence[GraphNode], end: int, last_use: dict[str, int]) -> Unit:
    made = {name for node in nodes for name in node.outputs}
    inputs: dict[str, None] = {}
    for node in nodes:
        for index in node.layer.activations:
            name = node.inputs[index]
            if name is not None and name not in made:
                inputs[name] = None
    outputs = tuple(n for node in nodes for n in node.outputs if last_use.get(n, -1) >= end)
    layer = _as_one(nodes, list(inputs), outputs)
    placement = _placement(dict(nodes[0].metadata), layer.name)
    return Unit(layer.name, layer, tuple(nodes), tuple(inputs), outputs, placement, is_fallback=True)


def _as_one(nodes: Sequence[GraphNode], inputs: Sequence[str], outputs: Sequence[str]) -> Layer:
    made = [name for node in nodes for name in node.outputs]
    source = {name: number for number, name in enumerate(inputs)} | {name: -1 - i for i, name in enumerate(made)}
    wiring = [[source[str(node.inputs[i])] for i in node.layer.activations] for node in nodes]
    return fused_layer([node.layer for node in nodes], wiring, [made.index(name) for name in outputs])
