"""Which processor a design has given a node to, and which branch a layer lies in."""

from __future__ import annotations

import re
from collections.abc import Iterable

PLACEMENT_KEY = "nnstretch.processor"
"""Metadata of a node that a design has given to a processor: its index in the list of processors."""

_BRANCH = re.compile(r"(?:^|\+)segments\.(\d+)\.branches\.(\d+)(?:\.|$)")


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
