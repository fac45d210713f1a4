"""Names of the parts of a traced network."""

from __future__ import annotations

from typing import Any

from torch import fx, nn


def attribute_of(network: nn.Module, path: str) -> Any:
    """What a dotted path names in a module."""
    found: Any = network
    for name in path.split("."):
        found = getattr(found, name)
    return found


def unused_name(taken: set[str], owner: str, name: str) -> str:
    """A path below `owner` that is not taken; it is taken then."""
    path = base = f"{owner}.{name}" if owner else name
    count = 1
    while path in taken or any(other.startswith(f"{path}.") for other in taken):
        count += 1
        path = f"{base}_{count}"
    taken.add(path)
    return path


def owner_of(node: fx.Node) -> str:
    """Path of the module in whose forward a node was noted; nothing if it is the network's, or unknown."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    # Programs of torch.export have entries without a module.
    return "" if path.startswith("_") else path
