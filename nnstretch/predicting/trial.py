"""Runs of branched networks, for a search that wants to know what its designs really take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from nnstretch.branching.export import export_branched
from nnstretch.branching.network import BranchedNetwork
from nnstretch.branching.predictor import Measured
from nnstretch.compiler import Processors, compile_model
from nnstretch.graph.placement import branch_of
from nnstretch.scheduler.timeline import Timeline

_ROUNDS = 5
_RUNS = 7


@dataclass(frozen=True)
class DesignTrial:
    """Compiles and runs branched networks.

    Attributes:
        processors: one branch runs on each.
        example_input: what the networks read.
    """

    processors: Processors
    example_input: Tensor

    def __call__(self, network: BranchedNetwork) -> Measured:
        """Medians over several runs of what the network and each of its branches take."""
        model = export_branched(network, self.example_input)
        with compile_model(model, self.processors) as session:
            timelines = [session.profile(runs=_RUNS) for _ in range(_ROUNDS)]
        busy = [_branch_times(timeline) for timeline in timelines]
        branches = tuple(
            tuple(
                float(np.median([times.get((number, branch), 0.0) for times in busy]))
                for branch in range(len(segment.branches))
            )
            for number, segment in enumerate(network.design.segments)
        )
        return Measured(float(np.median([timeline.total for timeline in timelines])) * 1e-9, branches)


def _branch_times(timeline: Timeline) -> dict[tuple[int, int], float]:
    """Seconds that the steps of every branch took in a run, by segment and branch."""
    times: dict[tuple[int, int], float] = {}
    for event in timeline.events:
        branch = branch_of(event.name) if event.kind == "step" else None
        if branch is not None:
            times[branch] = times.get(branch, 0.0) + (event.end - event.begin) * 1e-9
    return times
