"""Rewrites channels-last regions of a graph to channels-first.

ConvNeXt's blocks, for example, permute a map to `N,H,W,C`, normalise channels, apply dense layers and permute
back. With channels second this is a normalisation and 1x1 convolutions, which can be scaled in width and for
which every processor has routines.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from nnstretch.branching.tracing.modules import PER_CHANNEL, ChannelNorm, PerChannel
from nnstretch.branching.tracing.operators import argument, is_elementwise, nodes_behind, title_of

_LAST, _FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def channels_first(graph: fx.Graph) -> None:
    """Rewrites every channels-last region whose operators have a channels-first equivalent."""
    _Converter(graph).run()


class _Converter:
    """One pass that adds a channels-first equivalent of every channels-last node it knows.

    Attributes:
        equivalents: channels-last node -> channels-first node with the same values.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self.equivalents: dict[fx.Node, fx.Node] = {}
        self._layers: dict[nn.Module, nn.Module] = {}

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if node.op in ("placeholder", "output", "get_attr"):
                continue
            self._visit(node)
        self._join()

    def _visit(self, node: fx.Node) -> None:
        operands = [n for n in node.all_input_nodes if isinstance(n.meta["value"], Tensor) and n.op != "get_attr"]
        if title_of(node) == "permute" and len(operands) == 1 and node.meta["value"].dim() == 4:
            axes = [int(axis) % 4 for axis in argument(node, "dims")]
            if axes == _LAST:
                self.equivalents[node] = operands[0]
            elif axes == _FIRST and operands[0] in self.equivalents:
                node.replace_all_uses_with(self.equivalents[operands[0]])
        elif operands and all(operand in self.equivalents for operand in operands):
            self._convert(node, operands)

    def _convert(self, node: fx.Node, operands: list[fx.Node]) -> None:
        title = title_of(node)
        if node.op == "call_module":
            module = self._layer(node)
            if module is not None:
                self._make(node, "call_module", node.target, (self.equivalents[operands[0]],), module)
        elif is_elementwise(node):
            args = fx.map_arg(node.args, lambda n: self.equivalents.get(n, n))
            self._make(node, node.op, node.target, args, None, dict(node.kwargs))
        elif title in PER_CHANNEL and not node.kwargs:
            self._binary(node, operands)
        elif title == "mean" and _over_map(node):
            with self._graph.inserting_before(node):
                mean = self._graph.call_function(torch.mean, (self.equivalents[operands[0]], [2, 3]))
            mean.meta = {**node.meta}
            node.replace_all_uses_with(mean)

    def _layer(self, node: fx.Node) -> nn.Module | None:
        """The channels-first layer equivalent to the channels-last one that `node` calls; None if there is none."""
        module = node.meta["module"]
        if module not in self._layers:
            made: nn.Module | None = None
            if isinstance(module, nn.Linear):
                made = _pointwise(module)
            elif isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
                made = ChannelNorm(module.weight, module.bias, module.eps)
            elif is_elementwise(node):
                made = module
            if made is None:
                return None
            self._layers[module] = made
        return self._layers[module]

    def _binary(self, node: fx.Node, operands: list[fx.Node]) -> None:
        constants = [value for value in node.args if isinstance(value, fx.Node) and value.op == "get_attr"]
        if not constants:
            shapes = {tuple(operand.meta["value"].shape) for operand in operands}
            if len(shapes) == 1:
                args = fx.map_arg(node.args, lambda n: self.equivalents.get(n, n))
                self._make(node, "call_function" if callable(node.target) else node.op, node.target, args, None)
            return
        value, channels = constants[0].meta["tensor"], node.meta["value"].shape[-1]
        if (
            value.numel() != channels
            or value.shape[-1] != channels
            or (node.args[0] is constants[0] and title_of(node) not in ("add", "mul"))
        ):
            return
        operation = PER_CHANNEL[title_of(node)]
        target = f"{constants[0].target}_{node.name}"
        self._make(node, "call_module", target, (self.equivalents[operands[0]],), PerChannel(operation, value))

    def _make(
        self,
        node: fx.Node,
        op: str,
        target: Any,
        args: Any,
        module: nn.Module | None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        with self._graph.inserting_before(node):
            equivalent = self._graph.create_node(op, target, args, kwargs or {})
        equivalent.meta = {"value": node.meta["value"].permute(*_FIRST)}
        if module is not None:
            equivalent.meta["module"] = module
        self.equivalents[node] = equivalent

    def _join(self) -> None:
        """Lets users of a channels-last node read its permuted equivalent, so that nothing is computed twice."""
        made = {node: equivalent for node, equivalent in self.equivalents.items() if title_of(node) != "permute"}
        (output,) = self._graph.find_nodes(op="output")
        wanted = nodes_behind(output)
        for node, equivalent in made.items():
            if node in wanted and equivalent in wanted:
                with self._graph.inserting_after(node):
                    last = self._graph.call_function(torch.permute, (equivalent, tuple(_LAST)))
                last.meta = {"value": node.meta["value"]}
                node.replace_all_uses_with(last)


def _over_map(node: fx.Node) -> bool:
    """Whether a mean of a channels-last map is over height and width and leaves `N,C`."""
    axes = argument(node, "dim")
    vectors = node.meta["value"].dim() == 2 and isinstance(axes, (list, tuple))
    return vectors and sorted(int(axis) % 4 for axis in axes) == [1, 2]


def _pointwise(module: nn.Linear) -> nn.Conv2d:
    """The 1x1 convolution equivalent to a dense layer applied to every pixel."""
    conv = nn.Conv2d(module.in_features, module.out_features, 1, bias=module.bias is not None, device="meta")
    conv.weight = nn.Parameter(module.weight.detach()[:, :, None, None], module.weight.requires_grad)
    if module.bias is not None:
        conv.bias = module.bias
    return conv.eval()
