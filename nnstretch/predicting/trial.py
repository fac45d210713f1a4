"""Runs of branched networks, for a search that wants to know what its designs really take."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from torch import Tensor

from nnstretch.branching.export import export_branched
from nnstretch.branching.network import BranchedNetwork
from nnstretch.branching.predictor import Measured
from nnstretch.compiler import plan_by, plan_model
from nnstretch.graph.placement import branch_of
from nnstretch.processors import Processors
from nnstretch.scheduler.costs import CostModel
from nnstretch.scheduler.prediction import ProfilePredictor
from nnstretch.scheduler.session import Session
from nnstretch.scheduler.simulation.costs import SimulatedPredictor
from nnstretch.scheduler.timeline import Timeline

_ROUNDS = 5
_RUNS = 7


@dataclass(frozen=True)
class DesignTrial:
    """Compiles and runs branched networks.

    Attributes:
        processors: one branch runs on each.
        example_input: what the networks read.
        costs: by which layers are predicted, and networks planned that are not tuned.
    """

    processors: Processors
    example_input: Tensor
    costs: CostModel
    _exported: dict[str, ir.Model] = field(default_factory=dict, init=False)  # by design, of the last one alone

    def __call__(self, network: BranchedNetwork, *, tuned: bool) -> Measured:
        """Medians over several runs of what the network and each of its branches take."""
        model = self._export(network)
        compiled = plan_model(model, self.processors) if tuned else plan_by(model, self.processors, self.costs)
        with Session.from_compiled(compiled) as session:
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

    def _export(self, network: BranchedNetwork) -> ir.Model:
        """The network's graph; a network is often run once more, tuned."""
        design = network.design.id
        if design not in self._exported:
            self._exported.clear()
            self._exported[design] = export_branched(network, self.example_input)
        return self._exported[design]


def design_trial(
    processors: Processors, example_input: Tensor, predictor: ProfilePredictor | SimulatedPredictor
) -> DesignTrial | None:
    """Trials of designs for processors whose layers are predicted so; None on simulated ones."""
    if isinstance(predictor, ProfilePredictor):
        return DesignTrial(processors, example_input, predictor.costs)
    return None


def _branch_times(timeline: Timeline) -> dict[tuple[int, int], float]:
    """Seconds that every branch kept its lane in a run, by segment and branch.

    That is what its steps took, and what passed between two of them, as between kernels of a device, unless they waited.
    """
    times: dict[tuple[int, int], float] = {}
    last: dict[int, tuple[tuple[int, int] | None, int]] = {}  # lane -> branch and end of what it did before
    for event in timeline.events:
        branch = branch_of(event.name) if event.kind == "step" else None
        before, end = last.get(event.lane, (None, 0))
        if branch is not None:
            begin = end if before == branch else event.begin
            times[branch] = times.get(branch, 0.0) + (event.end - begin) * 1e-9
        last[event.lane] = (branch, event.end)
    return times
