"""Towers: parts of a head that do not depend on each other, such as the convolutions of each scale level of a detector.

Towers read feature maps of the body. The **tail** of the head reads what they compute, for example to decode boxes. Each tower
can run on a processor of its own, and its inner channels can be scaled; what it hands to the tail keeps all channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import fx

from nnstretch.branching.tracing.operators import (
    MIXING,
    WEIGHT_LAYERS,
    Role,
    macs_of,
    parameters_of,
    role_of,
    shape_of,
)

_TAIL = -1
_STAY = frozenset({Role.OPAQUE, Role.FLATTEN, Role.SHAPE})
"""Roles that a tower does not end with: they only rearrange what it computed."""


def towers_of(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """The towers among the nodes of a head, without trailing views; each has a layer that mixes channels."""
    owner = _owners(nodes)
    found = (
        _without_views([node for node in nodes if owner.get(node) == number])
        for number in sorted(set(owner.values()) - {_TAIL})
    )
    return [tower for tower in found if any(role_of(n) in MIXING and macs_of(n) for n in tower) and not _shares(tower)]


def _owners(nodes: Sequence[fx.Node]) -> Mapping[fx.Node, int]:
    """The tower of every node but constants, or `_TAIL`.

    A node that reads nothing but tensors of the body begins a tower, one that reads one tower belongs to it, and one that reads
    several belongs to the tail, with all that follows.
    """
    owner: dict[fx.Node, int] = {}
    count = 0
    for node in nodes:
        if role_of(node) is Role.CONSTANT:
            continue
        read = {owner[operand] for operand in node.all_input_nodes if operand in owner}
        if role_of(node) is Role.SHAPE or shape_of(node) is None or len(read) > 1:
            owner[node] = _TAIL
        elif read:
            owner[node] = read.pop()
        else:
            owner[node], count = count, count + 1
    return owner


def _without_views(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes of a tower up to its last layers: without trailing views, and what only these lead to."""
    kept: set[fx.Node] = set()
    for node in reversed(nodes):
        if role_of(node) in WEIGHT_LAYERS or any(user in kept for user in node.users):
            kept.add(node)
    ends = set(kept)
    for node in nodes:
        if node not in kept and role_of(node) not in _STAY and any(read in ends for read in node.all_input_nodes):
            ends.add(node)
    return [node for node in nodes if node in ends]


def _shares(nodes: Sequence[fx.Node]) -> bool:
    """Whether nodes have weights that other nodes use, too."""
    own = set(nodes)
    parameters = [
        read for node in nodes for read in node.all_input_nodes if parameters_of(read) and read.op == "get_attr"
    ]
    return any(node.meta.get("shared") for node in nodes) or any(
        read.meta.get("shared") or not own.issuperset(read.users) for read in parameters
    )
