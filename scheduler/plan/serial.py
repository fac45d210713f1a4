"""Serial plans: the same steps on the same queues without overlap, as a baseline for concurrency."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.scheduler.plan.compiled import Compiled


def serial(compiled: Compiled) -> Compiled:
    """A plan in which every sub-graph also waits for the one before it in the list, if that is on another queue."""
    subgraphs = list(compiled.plan.subgraphs)
    for i in range(1, len(subgraphs)):
        if subgraphs[i - 1].queue != subgraphs[i].queue:
            waits = tuple(sorted({*subgraphs[i].waits, i - 1}))
            subgraphs[i] = replace(subgraphs[i], waits=waits)
    return replace(compiled, plan=replace(compiled.plan, subgraphs=tuple(subgraphs)))
