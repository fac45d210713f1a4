"""Canonicalisation of traced graphs: one form for each computation that modules express in several ways.

The passes run in this order; each keeps the graph equivalent:

1. *Sizes*. Numbers derived from shapes become constants. Sizes that scale with the batch are derived from the
   tensor that their consumer reads, so that no node refers to a distant tensor for its shape.
2. *In-place operations* become out-of-place ones, because several branches may read the tensor.
3. *Constant folding*. Whatever depends on parameters alone is computed once.
4. *Functional to module*. Functions called with parameters become modules; so do channel slices and shuffles.
5. *Channels first*. Parts whose channels come last, such as tokens and windows, are rewritten to have channels
   second (`channels_first`).
"""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from nnstretch.branching.tracing.channels_first import channels_first
from nnstretch.branching.tracing.functional_to_module import functional_to_module, unused_name
from nnstretch.branching.tracing.operators import nodes_behind

_PLAIN = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


def canonicalize(network: fx.GraphModule, example_input: Tensor) -> fx.GraphModule:
    """Canonicalises `network` in place and returns it as a new module with the `meta` entries of `capture`.

    Args:
        network: in evaluation mode; reads one tensor.
        example_input: `N,C,H,W`; the network runs on it.
    """
    _note(network, example_input)
    _without_sizes(network, example_input)
    _one_reader_per_attribute(network.graph)
    _without_in_place(network)
    _with_constants(network.graph)
    functional_to_module(network.graph)
    remove_unused(network.graph)
    network = _observed(network.graph, example_input)
    before = _structure(network.graph)
    channels_first(network.graph, _shapes(network, example_input))
    remove_unused(network.graph)
    return network if _structure(network.graph) == before else _observed(network.graph, example_input)


def _structure(graph: fx.Graph) -> list[tuple[object, ...]]:
    """All nodes and what they compute from what."""
    return [(node, node.op, node.target, node.args, node.kwargs) for node in graph.nodes]


def _shapes(network: fx.GraphModule, example_input: Tensor) -> dict[fx.Node, tuple[int, ...]]:
    """Shapes of all tensors, for a doubled batch if the network takes one."""
    twice = _of_twice_the_batch(network, example_input)
    tensors = {node: node.meta["value"] for node in network.graph.nodes if isinstance(node.meta["value"], Tensor)}
    return {node: twice.get(node, tuple(value.shape)) for node, value in tensors.items()}


def remove_unused(graph: fx.Graph) -> None:
    """Removes nodes without users, whatever they call."""
    for node in reversed(graph.nodes):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)


def _note(network: fx.GraphModule, example_input: Tensor) -> None:
    """Stores value, owner, and module or parameter of every node in its `meta`."""

    def note(node: fx.Node, value: Any) -> None:
        # An in-place operation may overwrite the value later.
        kept = value.clone() if isinstance(value, Tensor) and node.op != "get_attr" else value
        node.meta = {"value": kept, "owner": _owner(node)}
        if node.op == "call_module":
            node.meta["module"] = network.get_submodule(str(node.target))
        elif node.op == "get_attr":
            node.meta["tensor"] = operator.attrgetter(str(node.target))(network)

    run_with_hook(network, example_input, note)


def _owner(node: fx.Node) -> str:
    """Path of the module in whose `forward` a node was traced; empty for the network itself, or if unknown."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    # torch.export also records entries without a module; their paths start with an underscore.
    return "" if path.startswith("_") else path


def _observed(graph: fx.Graph, example_input: Tensor) -> fx.GraphModule:
    """Wraps `graph` in a module and stores the value of every node in its `meta`."""
    parts = {
        str(node.target): node.meta["module" if node.op == "call_module" else "tensor"]
        for node in graph.nodes
        if node.op in ("call_module", "get_attr")
    }
    network = fx.GraphModule(parts, graph)

    def note(node: fx.Node, value: Any) -> None:
        node.meta["value"] = value

    run_with_hook(network, example_input, note)
    return network


NodeHook = Callable[[fx.Node, Any], None]
"""Called with a node and its value."""


def run_with_hook(network: fx.GraphModule, images: Tensor, hook: NodeHook) -> None:
    """Runs a traced graph without gradients and calls `hook` for every node in graph order.

    Args:
        network: a traced graph.
        images: `N,C,H,W`; a copy is passed, since the graph may write in place.
        hook: receives each node and its value.
    """
    with torch.no_grad():
        _HookedInterpreter(network, hook).run(images.clone())


class _HookedInterpreter(fx.Interpreter):
    def __init__(self, network: fx.GraphModule, hook: NodeHook) -> None:
        super().__init__(network)
        self._hook = hook

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        self._hook(n, value)
        return value


# -- sizes --------------------------------------------------------------------------------------------------------


def _without_sizes(network: fx.GraphModule, example_input: Tensor) -> None:
    graph = network.graph
    plain = [
        node for node in graph.nodes if node.op in ("call_function", "call_method") and _is_plain(node.meta["value"])
    ]
    if not plain:
        return
    twice = _of_twice_the_batch(network, example_input)
    for node in plain:
        for user in list(node.users):
            if user not in plain:
                user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), _Constants(graph, node, user, twice))
    remove_unused(graph)


def _is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, strings, dtypes and the like, without tensors."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, slice):
        return True
    return isinstance(value, _PLAIN)


def _of_twice_the_batch(network: fx.GraphModule, example_input: Tensor) -> dict[fx.Node, Any]:
    """Value of every node for a doubled batch, tensors as shapes; empty if the network fixes its batch size."""
    values: dict[fx.Node, Any] = {}

    def note(node: fx.Node, value: Any) -> None:
        values[node] = tuple(value.shape) if isinstance(value, Tensor) else value

    try:
        run_with_hook(network, torch.cat([example_input, example_input]), note)
    except Exception:  # noqa: BLE001  the caller's code may fail in any way on another batch size
        return {}
    return values


class _Constants:
    """Replaces one node by its value in the arguments of one user."""

    def __init__(self, graph: fx.Graph, node: fx.Node, user: fx.Node, twice: dict[fx.Node, Any]) -> None:
        self._graph, self._node, self._user, self._twice = graph, node, user, twice

    def __call__(self, operand: fx.Node) -> Any:
        if operand is not self._node:
            return operand
        once = operand.meta["value"]
        return self._value(once, self._twice.get(operand, once))

    def _value(self, once: Any, twice: Any) -> Any:
        if isinstance(once, (tuple, list)):
            return tuple(itertools.starmap(self._value, zip(once, twice, strict=True)))
        if isinstance(once, slice):
            return slice(*(self._value(getattr(once, n), getattr(twice, n)) for n in ("start", "stop", "step")))
        if once == twice or not isinstance(once, int):
            return once
        return self._scaled(once) if twice == 2 * once else self._node

    def _scaled(self, number: int) -> Any:
        """A number proportional to the batch, derived from dimension 0 of a tensor that the user reads."""
        for tensor in self._user.all_input_nodes:
            value = tensor.meta["value"]
            shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
            double = self._twice.get(tensor, ())
            if shape and tensor.op != "get_attr" and tuple(double) == (2 * shape[0], *shape[1:]):
                return self._of_rows(tensor, number, shape[0])
        return self._node

    def _of_rows(self, tensor: fx.Node, number: int, rows: int) -> Any:
        """`number` derived from the `rows` of a tensor."""
        if number % rows and rows % number:
            return self._node
        with self._graph.inserting_before(self._user):
            size = self._graph.call_method("size", (tensor, 0))
            size.meta = {"value": rows}
            if number == rows:
                return size
            whole, part = (operator.mul, number // rows) if number > rows else (operator.floordiv, rows // number)
            scaled = self._graph.call_function(whole, (size, part))
            scaled.meta = {"value": number}
            return scaled


def _one_reader_per_attribute(graph: fx.Graph) -> None:
    """Gives every user of a parameter a `get_attr` node of its own, directly before it."""
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        for user in list(node.users):
            with graph.inserting_before(user):
                own = graph.create_node("get_attr", str(node.target))
            own.meta = dict(node.meta)
            user.replace_input_with(node, own)
        graph.erase_node(node)


# -- operations in place ------------------------------------------------------------------------------------------


def _without_in_place(network: fx.GraphModule) -> None:
    for node in list(network.graph.nodes):
        written = node.all_input_nodes[0] if node.all_input_nodes and _written_over(node) else None
        if written is None:
            continue
        # Later users read the written value.
        for user in list(written.users):
            if user is not node and node < user:
                user.replace_input_with(written, node)


def _written_over(node: fx.Node) -> bool:
    """Makes an in-place node out-of-place; returns whether it was in place."""
    if node.op == "call_module":
        module = node.meta["module"]
        was = bool(getattr(module, "inplace", False))
        if was:
            module.inplace = False
        return was
    if node.op == "call_method":
        name = str(node.target)
        if name.endswith("_") and not name.endswith("__") and hasattr(Tensor, name[:-1]):
            node.target = name[:-1]
            return True
        return False
    return node.op == "call_function" and _function_wrote(node)


def _function_wrote(node: fx.Node) -> bool:
    """As `_written_over`, for functions and ATen operators."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        packet = target.overloadpacket
        if not packet.__name__.endswith("_") or packet.__name__.startswith("_"):
            return False
        node.target = getattr(getattr(torch.ops.aten, packet.__name__[:-1]), target._overloadname)
        return True
    if node.kwargs.get("inplace"):
        node.kwargs = {**node.kwargs, "inplace": False}
        return True
    name = str(getattr(target, "__name__", ""))
    if target in (operator.iadd, operator.isub, operator.imul, operator.itruediv):
        node.target = getattr(operator, name[1:])
        return True
    # Some activations exist in `torch.nn.functional` alone.
    plain = (getattr(torch, name[:-1], None) or getattr(functional, name[:-1], None)) if name.endswith("_") else None
    if callable(plain):
        node.target = plain
        return True
    return _placed_in_place(node)


def _placed_in_place(node: fx.Node) -> bool:
    """Clears an `inplace` argument that is passed by position; returns whether it was true."""
    try:
        names = list(inspect.signature(node.target).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    place = names.index("inplace") if "inplace" in names else len(node.args)
    if place >= len(node.args) or not node.args[place]:
        return False
    node.args = (*node.args[:place], False, *node.args[place + 1 :])
    return True


# -- constants ----------------------------------------------------------------------------------------------------


def _with_constants(graph: fx.Graph) -> None:
    """Folds tensors that do not depend on the input into parameters, or into buffers where no parameter is involved."""
    known = set(_constants(graph))
    taken = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
    for node in [node for node in graph.nodes if node in known and node.op != "get_attr"]:
        if not isinstance(node.meta["value"], Tensor) or all(user in known for user in node.users):
            continue
        behind = nodes_behind(node)
        sources = [other for other in graph.nodes if other.op == "get_attr" and other in behind]
        learned = any(isinstance(s.meta["tensor"], nn.Parameter) and s.meta["tensor"].requires_grad for s in sources)
        value = node.meta["value"].detach().clone()
        tensor = nn.Parameter(value) if learned and value.is_floating_point() else value
        owner = str(sources[-1].target).rpartition(".")[0] if sources else ""
        name = unused_name(taken, owner, node.name)
        for user in list(node.users):
            with graph.inserting_before(user):
                constant = graph.create_node("get_attr", name)
            constant.meta = {"value": tensor, "tensor": tensor, "owner": owner}
            user.replace_input_with(node, constant)
    remove_unused(graph)


def _constants(graph: fx.Graph) -> Iterator[fx.Node]:
    """Yields the nodes that do not depend on the input."""
    depending: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or depending.intersection(node.all_input_nodes):
            depending.add(node)
        else:
            yield node
