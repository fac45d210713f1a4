"""Dynamic programming in the order of the layers: NeoCPU's global search, and SoftNeuro's DPRS.

Global search (NeoCPU, section 3.3.2, algorithm 2) keeps the best path to every scheme of a layer. A layer's scheme stays in the
table until its last consumer is decided, as the section describes for elementwise additions, so the table spans all layers
with undecided consumers.

DPRS (dynamic programming for routine selection; SoftNeuro, section IV, algorithm 1) visits layers in order too. For every
choice of a layer it keeps the cost of the best path, one for each combination of choices of the constrained branching layers
upstream: branches of one layer may only merge where they agree on it (equation 4). All paths from a branching layer pass
through its merging layer, which relaxes the constraint by taking the best choice (proposition 3). An auxiliary layer with one
free choice joins several inputs or outputs (section IV-E).

Differences of DPRS from the listing:

- A layer's choices stand for schemas, since each layer already has the fastest routine of each schema.
- Merging layers may have different constraint sets because of skip connections; the result has the union.
- The cost of a branching layer's own path, which all its branches share, is added once, where its constraint is relaxed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nnstretch.scheduler.selection.base import ExactSearcher, SearchResult
from nnstretch.scheduler.selection.exact.tables import Recovery, Table, entries, joined, stages, unary, without
from nnstretch.scheduler.selection.problem import Costs, Problem


@dataclass
class Dprs(ExactSearcher):
    """Exact while few branching layers are constrained at a time."""

    name = "dprs"
    limit: int = 1 << 22
    """Maximum number of entries of a table."""

    def _search(self, problem: Problem) -> SearchResult:
        net = _net(problem)
        recovery, states = Recovery(), 0
        paths: dict[int, Table] = {}
        for layer, costs in enumerate(net.costs):
            tables = [Table((layer,), costs)]
            for before in net.before[layer]:
                matrix = Table((before, layer), net.edges[before, layer])
                if before in net.merges_at:
                    tables.append(matrix)
                    continue
                if _entries((paths[before], matrix), net.sizes) > self.limit:
                    return SearchResult(None, states=states)
                step = joined((paths.pop(before), matrix), net.sizes)
                states += step.values.size
                tables.append(without(step, before, recovery))
            relaxed = [b for b, merging in net.merges_at.items() if merging == layer]
            tables += [paths.pop(b) for b in relaxed]
            if _entries(tables, net.sizes) > self.limit:
                return SearchResult(None, states=states)
            path = joined(tables, net.sizes)
            states += path.values.size
            for branching in reversed(relaxed):
                path = without(path, branching, recovery)
            paths[layer] = path
        without(paths[len(net.costs) - 1], len(net.costs) - 1, recovery)
        return SearchResult(recovery.choices(len(net.costs))[1:-1], states=states)


def _entries(tables: tuple[Table, ...] | list[Table], sizes: tuple[int, ...]) -> int:
    return entries({n for t in tables for n in t.nodes}, sizes)


@dataclass
class _Net:
    """A network with one input and one output: the first and the last layer are auxiliary.

    `merges_at` maps each branching layer to the layer that relaxes its constraint.
    """

    costs: list[Costs]
    edges: dict[tuple[int, int], Costs]
    before: list[list[int]]
    merges_at: dict[int, int] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(c) for c in self.costs)


def _net(problem: Problem) -> _Net:
    count = len(problem.costs)
    costs = [np.zeros(1), *problem.costs, np.zeros(1)]
    edges = {(u + 1, v + 1): m for (u, v), m in problem.edges.items()}
    with_consumer = {u for u, _ in edges}
    with_producer = {v for _, v in edges}
    edges |= {(0, n): np.zeros((1, len(costs[n]))) for n in range(1, count + 1) if n not in with_producer}
    edges |= {(n, count + 1): np.zeros((len(costs[n]), 1)) for n in range(1, count + 1) if n not in with_consumer}
    if not count:
        edges[0, 1] = np.zeros((1, 1))
    before: list[list[int]] = [[] for _ in costs]
    after: list[list[int]] = [[] for _ in costs]
    for u, v in sorted(edges):
        before[v].append(u)
        after[u].append(v)
    return _Net(costs, edges, before, _merging_layers(after))


def _merging_layers(after: list[list[int]]) -> dict[int, int]:
    """Layer with several consumers -> the first layer that all paths from it pass through (proposition 3)."""
    next_common = [len(after)] * len(after)
    for layer in range(len(after) - 2, -1, -1):
        heads = set(after[layer])
        while len(heads) > 1:
            first = min(heads)
            heads.remove(first)
            heads.add(next_common[first])
        next_common[layer] = heads.pop()
    return {layer: next_common[layer] for layer, consumers in enumerate(after) if len(consumers) > 1}


@dataclass
class GlobalSearch(ExactSearcher):
    """Exact while few layers have undecided consumers; otherwise PBQP answers, as in the paper for SSD."""

    name = "global-search"
    limit: int = 1 << 22
    """Maximum number of entries of a table."""

    def _search(self, problem: Problem) -> SearchResult:
        sizes = problem.sizes
        recovery, states = Recovery(), 0
        table = joined([], sizes)
        for stage in stages(problem):
            if table.values.size * sizes[stage.node] > self.limit:
                return SearchResult(None, states=states)
            edges = [Table((u, stage.node), problem.edges[u, stage.node]) for u in stage.reads]
            table = joined([table, unary(problem, stage.node), *edges], sizes)
            states += table.values.size
            for node in (*stage.before, stage.node):
                if node not in stage.after:
                    table = without(table, node, recovery)
        return SearchResult(recovery.choices(len(sizes)), states=states)
