"""Names of modules and attributes in a traced network."""

from __future__ import annotations

from typing import Any

from torch import fx, nn


def attribute_of(network: nn.Module, path: str) -> Any:
    """The attribute at a dotted path in a module."""
    found: Any = network
    for name in path.split("."):
        found = getattr(found, name)
    return found


def unused_name(taken: set[str], owner: str, name: str) -> str:
    """Reserves and returns a free path below `owner`: `owner.name`, or the same with a number appended."""
    path = base = f"{owner}.{name}" if owner else name
    count = 1
    while path in taken or any(other.startswith(f"{path}.") for other in taken):
        count += 1
        path = f"{base}_{count}"
    taken.add(path)
    return path


def owner_of(node: fx.Node) -> str:
    """Path of the module in whose `forward` a node was traced; empty for the network itself, or if unknown."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    # torch.export also records entries without a module; their paths start with an underscore.
    return "" if path.startswith("_") else path
