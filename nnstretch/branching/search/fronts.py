"""The front of latency and MACs among networks of a search, and the networks on it that are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.branching.search.dynamic_programming import NetworkCandidate
from nnstretch.branching.search.options import SearchOptions


def front_of(found: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
    """The front of latency and MACs, fastest first."""
    front: list[NetworkCandidate] = []
    for network in sorted(found, key=lambda f: (f.seconds, -f.macs)):
        if not front or network.macs > front[-1].macs:
            front.append(network)
    return front


def chosen(options: SearchOptions, found: Sequence[NetworkCandidate]) -> list[NetworkCandidate]:
    """The networks to return: the fastest, those with the most MACs within the target, or a spread over the front.

    Empty if no network meets the target.
    """
    front = front_of(found)
    target = options.limits.target_ms
    if target is not None:
        return [f for f in front if f.seconds * 1e3 <= target][::-1][: options.designs]
    if options.pareto:
        places = [round(i * (len(front) - 1) / max(options.designs - 1, 1)) for i in range(options.designs)]
        return [front[place] for place in dict.fromkeys(places)]
    return front[: options.designs]
