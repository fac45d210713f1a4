"""Rebalancing of networks on processors that are here: runs of their plans decide how layers are shared out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from nnstretch.bench.timing import TimingOptions, interleave, interval, paired_ratio, resampled, timed
from nnstretch.compiler.compile import in_network, interference_of, space_of_layers
from nnstretch.compiler.costs import open_profiler
from nnstretch.compiler.processors import Processors
from nnstretch.errors import UsageError
from nnstretch.scheduler.measurement.runner.runner import Runner
from nnstretch.scheduler.placement.joint import Refine, is_placed, refined_alone
from nnstretch.scheduler.placement.rebalancing import (
    Comparison,
    NamedInterference,
    StepTimes,
    placed_by_runs,
    rebalanced,
)
from nnstretch.scheduler.placement.sharing import shared_out
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.planner import ChoiceSpace, plan_of
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.simulation.costs import one_soc
from nnstretch.support.closing import Closing
from nnstretch.support.progress import Progress, silent

_TRACED = 25
"""Traced runs of a plan; medians count."""
_TIMING = TimingOptions(rounds=12, turn=0.1)


def rebalance_model(
    model: ir.Model,
    processors: Processors,
    *,
    packaged: Compiled | None = None,
    sources: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    runner: Runner | None = None,
) -> Compiled:
    """The fastest of several plans of a graph that ran on the processors, with a report of the rebalancing.

    Args:
        model: an unoptimised graph.
        processors: several that are here.
        packaged: the plan of a package, to begin with; the one that `plan_model` makes if None.
        sources: OpenCL sources of the package.
        progress: called while routines are measured and plans run.
        runner: measures single layers; one of its own if None.

    Raises:
        UsageError: one processor only, simulated ones, or nothing may be measured.
        NNStretchError: a processor cannot run the network.
    """
    check_can_rebalance(processors)
    progress = progress or silent
    with open_profiler(processors, runner=runner) as costs:
        space = space_of_layers(model, processors, costs, progress)
        interference = interference_of(space, processors, costs)
        first, inside_network = packaged, _once(in_network(costs))
        if first is None:
            planned = shared_out(space, interference, inside_network)
            first = plan_of(planned, default_selector().select(planned.problem))
        inside: Mapping[int, float] = {}
        if not is_placed(space):
            space, inside = refined_alone(space, interference, inside_network)
        named = {space.pool.processors[queue].name: factor for queue, factor in inside.items()}

        def between(plan: Plan) -> NamedInterference:
            return NamedInterference(interference, space.pool, plan)

        with SessionRuns(progress, {id(packaged): sources}) as runs:
            return rebalanced(
                first,
                lambda factors: placed_by_runs(space, interference, named, factors),
                runs,
                between,
                is_tuned_here=packaged is None,
                progress=progress,
            )


def _once(refine: Refine) -> Refine:
    """Refines each space of a processor once, so that all plans are made from the same times."""
    found: dict[tuple[Hashable, ...], ChoiceSpace] = {}

    def refined(single: ChoiceSpace) -> ChoiceSpace:
        # A hybrid's space is refined with the routines of each type, and with all of them.
        routines = tuple(id(choice.routine) for options in single.choices for choice in options)
        key = (*(processor.name for processor in single.pool.processors), routines)
        if key not in found:
            found[key] = refine(single)
        return found[key]

    return refined


def check_can_rebalance(processors: Processors) -> None:
    """Looks whether there is anything to share out on processors, and whether it can be measured.

    Raises:
        UsageError: it cannot.
    """
    named = [processor.name for processor in processors.named]
    if one_soc(processors.named) is not None:
        raise UsageError(
            f"{', '.join(named)} are simulated, and rebalancing measures runs; name processors that are here"
        )
    if len(named) < 2:
        raise UsageError(
            f"{named[0]} is one processor, which has nothing to share; rebalance on two or more, such as cpu:0,opencl:0@1"
        )
    if not processors.options.tune:
        raise UsageError("rebalancing measures routines and runs; leave tune=False (--no-tune) out")


class SessionRuns(Closing):
    """Runs plans in sessions on zeros, which stay open while they are compared."""

    def __init__(
        self,
        progress: Progress = silent,
        sources: Mapping[int, Mapping[str, str] | None] | None = None,
        timing: TimingOptions = _TIMING,
    ) -> None:
        """Opens no session yet.

        Args:
            progress: called while plans run.
            sources: OpenCL sources of packages, by the identity of their plan.
            timing: how plans are compared.
        """
        self._progress, self._sources, self._timing = progress, sources or {}, timing
        self._sessions: dict[int, PlanSession] = {}

    def step_times(self, compiled: Compiled) -> StepTimes:
        session = self._session(compiled)
        traces = session.traces(runs=_TRACED)
        spans = np.stack([trace.steps - trace.begin for trace in traces]) * 1e-9
        return StepTimes(spans, session.untraced_seconds(traces).T)

    def compare(self, plans: Sequence[Compiled]) -> Comparison:
        """As in `PlanRuns`. Sessions of other plans are closed: each has weights of its own."""
        kept = set(map(id, plans))
        for number in [number for number in self._sessions if number not in kept]:
            self._sessions.pop(number).close()
        sessions = [self._session(compiled) for compiled in plans]
        slices = interleave([timed(one, one.zeros()) for one in sessions], self._timing, self._progress)
        medians = resampled(slices)
        ratios = np.array([[paired_ratio(one, other) for other in slices] for one in slices])
        intervals = np.array([[interval(one / other) for other in medians] for one in medians])
        seconds = tuple(float(np.median([np.median(turn) for turn in turns])) for turns in slices)
        return Comparison(seconds, ratios, intervals)

    def close(self) -> None:
        """Closes all sessions."""
        for session in self._sessions.values():
            session.close()

    def _session(self, compiled: Compiled) -> PlanSession:
        if id(compiled) not in self._sessions:
            self._sessions[id(compiled)] = PlanSession(compiled, self._sources.get(id(compiled)))
        return self._sessions[id(compiled)]
