"""Forward hooks for traced graphs: runs a graph and reports the value of every node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

NodeHook = Callable[[fx.Node, Any], None]
"""Called with a node and its value."""


def run_with_hook(network: fx.GraphModule, images: Tensor, hook: NodeHook) -> None:
    """Runs `network` on `images` without gradients and calls `hook` for every node in graph order.

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
