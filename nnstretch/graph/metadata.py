"""Metadata of nodes and names of layers: the torch module, the processor and the branch that a node belongs to."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable

import onnx_ir as ir

# Written by torch's exporter: a list of module paths from the root down, then the name of the operation.
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
# Written by our own export, and read first.
MODULE_PATH = "nnstretch.module"


def module_path(node: ir.Node) -> str:
    """Path of the torch module that `node` computes, such as "layer1.0.conv1"; "" for the root or if unknown.

    A fused layer has the path of the one that absorbed the others: a convolution with batch normalisation and
    activation has that of the convolution.
    """
    stated = node.metadata_props.get(MODULE_PATH)
    if stated is not None:
        return stated
    scopes = node.metadata_props.get(NAME_SCOPES)
    if scopes is None:
        return ""
    try:
        names = ast.literal_eval(scopes)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        # The text comes from a file.
        return ""
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        return ""
    return str(names[-2])


PLACEMENT_KEY = "nnstretch.processor"
"""Metadata of a node that a design has given to a processor: its index in the list of processors."""

TRAINED_KEY = "nnstretch.quantization"
"""Metadata of a graph whose scales come from quantisation-aware training."""

_BRANCH = re.compile(r"(?:^|\+)segments\.(\d+)\.branches\.(\d+)(?:\.|$)")


def unused_name(wanted: str, taken: Container[str], mark: str) -> str:
    """`wanted`, or that with `mark` and the first number from 2 on that gives a name that is not taken."""
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}{mark}{count}"
    return name


def branch_of(name: str) -> tuple[int, int] | None:
    """Segment and branch of a layer of a branched network by its name; None if it lies in none.

    Layers that one routine computes, `a+b`, lie where the first of them does that lies in a branch.
    """
    found = _BRANCH.search(name)
    return (int(found[1]), int(found[2])) if found else None


def branched_segments(names: Iterable[str]) -> frozenset[int]:
    """The segments of a network that have several branches, by the names of its layers."""
    places = {place for name in names if (place := branch_of(name)) is not None}
    segments = [segment for segment, _ in places]
    return frozenset(segment for segment in segments if segments.count(segment) > 1)
