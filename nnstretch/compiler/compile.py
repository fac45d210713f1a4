"""From a graph to a plan and a session: the calls that the public API and the commands share."""

from __future__ import annotations

import onnx_ir as ir

from nnstretch.compiler.costs import open_profiler
from nnstretch.compiler.processors import Processors
from nnstretch.compiler.spaces import measured_space, unmeasured_space
from nnstretch.errors import UsageError
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import ChoiceSpace, make_plan, plan_of
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.simulation.costs import one_soc
from nnstretch.scheduler.simulation.timing import ProfiledInterference, simulate
from nnstretch.support.progress import Progress


def plan_model(
    model: ir.Model,
    processors: Processors,
    *,
    tune: bool = True,
    fresh: bool = False,
    coordinate_descent: bool = True,
    progress: Progress | None = None,
) -> Compiled:
    """Optimises a graph and plans it.

    Args:
        model: an unoptimised graph.
        processors: those to run on; simulated ones take their costs from their profile.
        tune: measure routines that the profile store does not know; otherwise choose by estimates.
        fresh: measure routines even if the profile store knows them.
        coordinate_descent: search routine parameters beyond the routines' short lists.
        progress: called while routines are measured.

    Raises:
        UsageError: external engines are named, but nothing is measured.
    """
    if one_soc(processors.named) is None and tune:
        with open_profiler(processors, fresh=fresh) as costs:
            return _selected(measured_space(model, processors, costs, progress, coordinate_descent=coordinate_descent))
    if processors.engines:
        raise UsageError(
            f"engines {','.join(processors.engines)} are chosen where they are measured to be faster; tune, or leave them out"
        )
    return _selected(unmeasured_space(model, processors, progress))


def plan_with_costs(model: ir.Model, processors: Processors, costs: CostModel) -> Compiled:
    """Optimises a graph whose layers a design has placed, and plans it by the given costs."""
    return make_plan(optimize(model), processors.named, processors.host, costs)


def _selected(space: ChoiceSpace) -> Compiled:
    return plan_of(space, default_selector().select(space.problem))


def simulate_model(
    model: ir.Model, processors: Processors, progress: Progress | None = None
) -> tuple[Compiled, Timeline]:
    """The plan of a graph for simulated processors, and a run of it in simulated time.

    Raises:
        UsageError: the processors are real.
    """
    soc = one_soc(processors.named)
    if soc is None:
        raise UsageError(
            f"{', '.join(p.name for p in processors.named)} are not simulated; name those of a profile, as in sim:phone/cpu"
        )
    compiled = plan_model(model, processors, progress=progress)
    parts = dict(zip((p.name for p in processors.named), processors.parts, strict=True))
    queues = {number: parts[queue.processor] for number, queue in enumerate(compiled.plan.queues)}
    return compiled, simulate(compiled.plan, ProfiledInterference(soc, queues))


def compile_model(
    model: ir.Model,
    processors: Processors,
    *,
    tune: bool = True,
    coordinate_descent: bool = True,
    progress: Progress | None = None,
) -> PlanSession:
    """A session for a graph on processors; arguments as in `plan_model`."""
    return PlanSession.from_compiled(
        plan_model(model, processors, tune=tune, coordinate_descent=coordinate_descent, progress=progress)
    )
