"""Runs of traced graphs in which every value is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

NodeHook = Callable[[fx.Node, Any], None]
"""Called with a node and what it computes."""


def run_with_hook(network: fx.GraphModule, images: Tensor, note: NodeHook) -> None:
    """Runs `network` on `images`, without gradients, and hands every value to `note`, in the order of the graph."""
    with torch.no_grad():
        _Observer(network, note).run(images.clone())


class _Observer(fx.Interpreter):
    def __init__(self, network: fx.GraphModule, note: NodeHook) -> None:
        super().__init__(network)
        self._note = note

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        self._note(n, value)
        return value
