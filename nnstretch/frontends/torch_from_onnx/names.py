"""Paths of modules and parameters, made from what an ONNX file calls its nodes and weights."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

import onnx_ir as ir
from torch import nn

from nnstretch.graph.metadata import module_path, unused_name

_OF_A_LAYER = frozenset({"weight", "kernel", "gamma", "scale", "w", "W", "B", "weights"})
"""Last parts of the names that exporters give to the weight of a layer, after the layer's path."""
_TEMPORARY = re.compile(r"^(onnx::|val_|/|_|const|tensor|node_)|^\d+$|_output_\d+$", re.IGNORECASE)
"""Names that say nothing of the network's author."""
_OF_GRAPH_MODULES = frozenset({"training", "meta"})
"""Attributes that every `torch.fx.GraphModule` has beside those of its class."""


class Paths:
    """Hands out paths below the root of a module, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._above: set[str] = set()

    def reserve(self, wanted: str, fallback: str) -> str:
        """A path that is free: `wanted` made a valid one, or `fallback` if nothing of it is left; with a number if taken."""
        parts = [part for part in map(_identifier, wanted.split(".")) if part] or [_identifier(fallback) or "layer"]
        path = ""
        for part in parts[:-1]:
            # Nothing can lie below a path that is taken.
            path = unused_name(f"{path}{part}", self._taken, "_") + "."
            self._above.add(path[:-1])
        path = unused_name(f"{path}{parts[-1]}", self._taken | self._above, "_")
        self._taken.add(path)
        return path


def layer_path(node: ir.Node, weights: Iterable[ir.Value | None] = ()) -> str:
    """What the author of the network called the layer that a node computes; "" if the file does not say.

    Args:
        node: of an ONNX graph.
        weights: its constants; the first one with a name such as `layer1.0.conv1.weight` says it.
    """
    for value in weights:
        owner, dot, last = str(value.name if value is not None else "").replace("/", ".").rpartition(".")
        if dot and last in _OF_A_LAYER and not _TEMPORARY.search(owner):
            return owner
    return module_path(node) or _path_of_name(node)


def is_named(value: ir.Value) -> bool:
    """Whether the name of a constant was given by the network's author, not made up by an exporter."""
    return bool(value.name) and not _TEMPORARY.search(str(value.name))


def _path_of_name(node: ir.Node) -> str:
    """The path in a node's name: torch's exporter writes `/layer1/layer1.0/conv1/Conv`."""
    *owners, last = (node.name or "").strip("/").split("/")
    if not owners:
        return "" if _TEMPORARY.search(last) else last
    parts: list[str] = []
    for owner in owners:
        # A module in a list is named with the list: layer1, then layer1.0.
        if parts and owner.startswith(f"{parts[-1]}."):
            parts[-1] = owner
        else:
            parts.append(owner)
    if not last.startswith(node.op_type):
        parts.append(last)
    return ".".join(parts)


def _identifier(text: str) -> str:
    """A name that an attribute of a module can have."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    is_taken = keyword.iskeyword(name) or hasattr(nn.Module, name) or name in _OF_GRAPH_MODULES
    return f"{name}_" if is_taken else name
