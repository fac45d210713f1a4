"""ONNX nodes of the operations without weights of a traced network, made by torch's exporter.

Activations, pools, sums, slices, shuffles and flattenings are exported; convolutions and dense layers are not
(`fused_plan`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import fx, nn

from nnstretch.branching.tracing.operators import Role, is_elementwise, module_of, role_of, shape_of, title_of
from nnstretch.errors import ModelError
from nnstretch.frontends.torch_module import export
from nnstretch.passes.rewriting import EachNode
from nnstretch.passes.simplify import remove_no_op

_ROLES = frozenset({Role.CHANNELWISE, Role.FLATTEN, Role.BINARY, Role.SLICE, Role.SHUFFLE, Role.PIXELS})
_MOST_CONSTANTS = 16  # elements of a module's parameters and buffers; modules with more are not exported
_ELEMENTWISE_SIZE = 2  # of all axes but the first of what exported element-wise operations read


@dataclass(frozen=True, eq=False)
class ExportedOperation:
    """The ONNX nodes of one node of a traced network.

    Attributes:
        source: the value that the nodes read.
        nodes: in topological order; their constants are initializers of their graph.
        result: the value that they write; `source` if the operation does nothing.
        elementwise: every value has the shape of the tensor that is read. The shapes recorded here are those of a
            small example then, not of the network's tensor.
    """

    source: ir.Value
    nodes: tuple[ir.Node, ...]
    result: ir.Value
    elementwise: bool


_exported: dict[str, ExportedOperation | None] = {}


def exported_operation(node: fx.Node) -> ExportedOperation | None:
    """The ONNX nodes of `node`; None if it is not exported.

    Not exported are operations that read several tensors, have larger weights, or make the exporter fail. An export
    takes half a second, whatever its size: the first call for a network exports all of its operations together, each
    kind once. Results are kept for all networks of the process.
    """
    signature = _signature(node)
    if signature is None:
        return None
    if signature not in _exported:
        signatures = {_signature(other): other for other in (*node.graph.nodes, node)}
        wanted = {name: other for name, other in signatures.items() if name is not None and name not in _exported}
        _exported.update(zip(wanted, _export(list(wanted.values())), strict=True))
    return _exported[signature]


def _source(node: fx.Node) -> fx.Node | None:
    """The one computed tensor that `node` reads, if it reads nothing else but numbers."""
    tensors = [operand for operand in node.all_input_nodes if operand.op != "get_attr"]
    return tensors[0] if len(tensors) == 1 and shape_of(tensors[0]) is not None else None


def _is_elementwise(node: fx.Node) -> bool:
    return role_of(node) is Role.BINARY or is_elementwise(node)


def _signature(node: fx.Node) -> str | None:
    """A text that is equal for nodes with the same computation; None for nodes that are not exported."""
    source = _source(node) if role_of(node) in _ROLES else None
    if source is None:
        return None
    what = _module_state(module_of(node)) if node.op == "call_module" else f"{node.op} {title_of(node)}"
    arguments = fx.map_arg((node.args, node.kwargs), lambda operand: "x" if operand is source else _number(operand))
    shape = shape_of(source)
    assert shape is not None
    size = len(shape) if _is_elementwise(node) else shape
    return None if what is None else f"{what} {arguments} {size}"


def _module_state(module: nn.Module) -> str | None:
    """Class, settings and numbers of a module as text; None if it has more than `_MOST_CONSTANTS` numbers."""
    tensors = [*module.parameters(), *module.buffers()]
    if sum(tensor.numel() for tensor in tensors) > _MOST_CONSTANTS:
        return None
    settings = {name: value for name, value in vars(module).items() if name[0] != "_" and name != "training"}
    return f"{type(module).__qualname__} {settings} {[tensor.tolist() for tensor in tensors]}"


def _number(constant: fx.Node) -> float:
    """The number that a get_attr node reads."""
    tensor = constant.meta["tensor"]
    assert isinstance(tensor, torch.Tensor)
    return float(tensor.detach().reshape(()))


def _export(nodes: Sequence[fx.Node]) -> list[ExportedOperation | None]:
    """Exports all of `nodes` together; where that fails, each half by itself."""
    try:
        return _partition(_export_together(nodes), [_is_elementwise(node) for node in nodes])
    except ModelError:
        if len(nodes) == 1:
            return [None]
        half = len(nodes) // 2
        return [*_export(nodes[:half]), *_export(nodes[half:])]


def _export_together(nodes: Sequence[fx.Node]) -> ir.Model:
    """An ONNX graph with one input and one output per node.

    Raises:
        ModelError: torch cannot export one of them.
    """
    graph, modules, examples = fx.Graph(), dict[str, nn.Module](), list[torch.Tensor]()
    inputs = [graph.placeholder(f"x{number}") for number in range(len(nodes))]
    outputs = []
    for number, (node, value) in enumerate(zip(nodes, inputs, strict=True)):
        source = _source(node)
        assert source is not None
        shape = shape_of(source)
        assert shape is not None
        if _is_elementwise(node):
            shape = (1, *[_ELEMENTWISE_SIZE] * (len(shape) - 1))
        examples.append(torch.zeros(shape))
        # Operations in place would overwrite the graph's input.
        read = {source: graph.call_method("clone", (value,))}
        result = graph.node_copy(node, partial(_operand, read))
        if node.op == "call_module":
            result.target = f"operation{number}"
            modules[result.target] = copy.deepcopy(module_of(node))
        outputs.append(result)
    graph.output(tuple(outputs))
    model = export(fx.GraphModule(modules, graph), tuple(examples))
    EachNode(remove_no_op)(model)
    return model


def _operand(copies: Mapping[fx.Node, fx.Node], operand: fx.Node) -> Any:
    return copies[operand] if operand in copies else _number(operand)


def _partition(model: ir.Model, elementwise: Sequence[bool]) -> list[ExportedOperation | None]:
    """The operation that reads each input of the graph; None if its output does not depend on that input."""
    numbers = {value: number for number, value in enumerate(model.graph.inputs)}
    nodes: list[list[ir.Node]] = [[] for _ in elementwise]
    for node in model.graph:
        for number in {numbers[value] for value in node.inputs if value in numbers}:
            nodes[number].append(node)
            numbers.update(dict.fromkeys(node.outputs, number))
    ends = zip(model.graph.inputs, model.graph.outputs, strict=True)
    return [
        ExportedOperation(source, tuple(nodes[number]), result, elementwise[number])
        if numbers.get(result) == number
        else None
        for number, (source, result) in enumerate(ends)
    ]
