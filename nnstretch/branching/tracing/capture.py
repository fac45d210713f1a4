"""Captures a module's computation as one graph of layers, with torch.fx or, where that fails, torch.export.

torch.fx keeps the called modules but follows no control flow. torch.export follows control flow on shapes and
Python values; `canonicalize` turns its operators back into layers. Users of the graph cannot tell which
tracer made it.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from nnstretch.branching.tracing.canonicalize import canonicalize
from nnstretch.branching.tracing.modules import DROPPING
from nnstretch.errors import DesignError, first_line
from nnstretch.frontends.modes import run_once
from nnstretch.frontends.silence import quiet
from nnstretch.frontends.torch_from_onnx.resizing import ResizedMap

# Relative to the largest element. Reordered sums of many terms differ by less.
_TOLERANCE = 1e-3


def capture(module: nn.Module, example_input: Tensor) -> fx.GraphModule:
    """The computation of `module` in evaluation mode, as a graph whose layers are private copies.

    Every node carries `meta["value"]`, its value for the example input. Nodes that call a module or read a
    parameter carry it as `meta["module"]` or `meta["tensor"]`.

    Args:
        module: reads one tensor; returns tensors, possibly in tuples, lists and dicts.
        example_input: `N,C,H,W`. Map sizes derived from it become constants, the batch size does not.

    Returns:
        The canonical graph.

    Raises:
        ModelError: the module does not run on the example input.
        DesignError: neither torch.fx nor torch.export can trace it.
    """
    expected = run_once(module, example_input)
    reasons = []
    for name, trace in (("torch.fx", _by_fx), ("torch.export", _by_export)):
        try:
            graph = canonicalize(trace(copy.deepcopy(module).eval(), example_input), example_input)
        except Exception as error:  # noqa: BLE001  tracing runs the caller's code on proxies, which may fail in any way
            reasons.append(f"{name}: {first_line(error)}")
            continue
        (output,) = graph.graph.find_nodes(op="output")
        if _agree(output.meta["value"], expected):
            return graph
        reasons.append(f"{name}: the traced graph computes something else")
    raise DesignError(
        f"{type(module).__name__} cannot be traced ({'; '.join(reasons)}); "
        "make its forward free of control flow that depends on tensor values"
    )


class _Tracer(fx.Tracer):
    """Treats stochastic-depth modules and resizing as leaves, beside the modules of torch.nn."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_own = type(m).__name__ in DROPPING or isinstance(m, ResizedMap)
        return is_own or super().is_leaf_module(m, module_qualified_name)


def _by_fx(module: nn.Module, example_input: Tensor) -> fx.GraphModule:
    """Traces with torch.fx; parameters of `forward` after the first keep their defaults."""
    del example_input
    graph = _Tracer().trace(module, _defaults(module))
    given = [node for node in graph.nodes if node.op == "placeholder"][1:]
    equal = [user for node in given for user in node.users]
    # torch.fx adds checks that nothing but the default is given.
    for unread in (*(check for node in equal for check in node.users), *equal, *given):
        if not unread.users:
            graph.erase_node(unread)
    return fx.GraphModule(module, graph)


def _defaults(module: nn.Module) -> dict[str, Any]:
    """Defaults of the parameters of `forward` after the first, by name."""
    given = list(inspect.signature(module.forward).parameters.values())[1:]
    return {one.name: one.default for one in given if one.default is not one.empty}


def _by_export(module: nn.Module, example_input: Tensor) -> fx.GraphModule:
    """Traces with torch.export."""
    # torch.export specialises a batch of one to a constant.
    batch = torch.cat([example_input, example_input]) if len(example_input) == 1 else example_input
    with quiet():
        try:
            program = _exported(module, batch, ({0: torch.export.Dim.AUTO},))
        except Exception:  # noqa: BLE001  a network that fixes its batch size may still be exported for that size
            program = _exported(module, example_input, None)
    return _with_attributes(program)


def _exported(module: nn.Module, example_input: Tensor, shapes: Any) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(module, (example_input,), dynamic_shapes=shapes, strict=False)


def _with_attributes(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """The program's graph with parameters as attributes instead of inputs, and with the module's output structure."""
    signature, graph = program.graph_signature, fx.Graph()
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    tensors = {**dict(program.named_parameters()), **dict(program.named_buffers()), **program.constants}
    copies: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            target = names.get(node.name)
            copies[node] = graph.placeholder(node.name) if target is None else graph.get_attr(target)
        elif node.op == "output":
            mutated = len(signature.output_specs) - len(signature.user_outputs)
            results = [copies[r] if isinstance(r, fx.Node) else r for r in node.args[0][mutated:]]
            graph.output(_plain(pytree.tree_unflatten(results, program.call_spec.out_spec)))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule({name: tensors[name] for name in set(names.values())}, graph)


def _plain(result: Any) -> Any:
    """A result structure as plain dicts, lists and tuples."""
    if isinstance(result, dict):
        return {key: _plain(value) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return type(result)(map(_plain, result)) if type(result) in (list, tuple) else tuple(map(_plain, result))
    return result


def _agree(found: Any, expected: Any) -> bool:
    """Whether two results hold nearly equal tensors."""
    left, right = tensors_of(found), tensors_of(expected)
    return len(left) == len(right) and all(map(_near, left, right))


def _near(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    left, right = found.double(), expected.double()
    finite = right[right.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(left, right, rtol=0.0, atol=_TOLERANCE * max(scale, 1e-12), equal_nan=True)


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors in a module's result, in order."""
    return [leaf for leaf in pytree.tree_leaves(_plain(result)) if isinstance(leaf, Tensor)]
