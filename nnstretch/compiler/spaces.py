"""Spaces of choices: a graph's routines on processors, with measured, estimated or simulated costs."""

from __future__ import annotations

from contextlib import closing

import onnx_ir as ir

from nnstretch.compiler.costs import measured_contention
from nnstretch.compiler.processors import Processors
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import Estimates
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.lowering.candidates import is_native
from nnstretch.scheduler.lowering.queue_pool import queue_pool
from nnstretch.scheduler.lowering.units import unit_graph
from nnstretch.scheduler.measurement.integrated import NEAR, refined
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.parameter_search.explorer import Exploration
from nnstretch.scheduler.parameter_search.thoroughness import explore
from nnstretch.scheduler.placement.interference import MeasuredInterference
from nnstretch.scheduler.placement.joint import completed, is_placed, placed
from nnstretch.scheduler.planner import ChoiceSpace, choice_space
from nnstretch.scheduler.simulation.costs import SimulatedCosts, one_soc
from nnstretch.scheduler.simulation.timing import ProfiledInterference
from nnstretch.support.progress import Progress


def measured_space(
    model: ir.Model,
    processors: Processors,
    costs: Profiler,
    progress: Progress | None = None,
    *,
    coordinate_descent: bool = True,
) -> ChoiceSpace:
    """Choices with costs that are measured layer by layer and then inside the network.

    Places the layers of a graph without a design on the processors if there are several.

    Args:
        model: an unoptimised graph.
        processors: those to run on.
        costs: measures the layers.
        progress: called while routines are measured.
        coordinate_descent: search routine parameters beyond the settings of `costs`.
    """
    space = choice_space(
        optimize(model),
        processors.named,
        processors.host,
        costs,
        progress,
        NEAR,
        coordinate_descent=coordinate_descent,
    )
    if len(processors.named) == 1:
        return refined(space, costs)
    interference = MeasuredInterference(space.pool, costs, measured_contention(processors))
    if is_placed(space):
        return completed(space, interference)
    return placed(space, interference, lambda single: refined(single, costs))


def unmeasured_space(model: ir.Model, processors: Processors, progress: Progress | None = None) -> ChoiceSpace:
    """Choices with the costs of a simulated system's profile, or with estimates for real processors."""
    soc = one_soc(processors.named)
    costs = Estimates() if soc is None else SimulatedCosts(soc, processors.parts)
    space = choice_space(optimize(model), processors.named, processors.host, costs, progress)
    if is_placed(space):
        return space
    interference = (
        MeasuredInterference(space.pool, costs, lambda group: [1.0] * len(group))
        if soc is None
        else ProfiledInterference(soc, dict(enumerate(processors.parts)))
    )
    return placed(space, interference)


def explored_costs(
    model: ir.Model, processors: Processors, costs: Profiler, progress: Progress | None = None
) -> tuple[Profiler, dict[str, Exploration]]:
    """Searches routine parameters with a learned cost model, which decides what is measured.

    Args:
        model: an unoptimised graph.
        processors: those to run on.
        costs: measures candidates.
        progress: called after every round.

    Returns:
        `costs` with the settings that were found, and the search of each processor by its name.

    Raises:
        MissingExtraError: xgboost is not installed.
    """
    pool = queue_pool(processors.named, processors.host)
    with closing(ProfileStore()) as store:
        trees = LearnedCosts(store, costs).trees
        found = explore(unit_graph(optimize(model), is_native(pool)), pool, costs, trees, progress=progress)
    return costs.with_settings(found.settings), found.explorations
