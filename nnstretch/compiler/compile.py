"""From a graph to a plan and a session: the calls that the public API and the commands share."""

from __future__ import annotations

from contextlib import closing

import onnx_ir as ir

from nnstretch.api.options import HYBRID
from nnstretch.compiler.costs import measured_contention, open_profiler
from nnstretch.compiler.processors import Processors
from nnstretch.devices.base.float_form import computes_float_forms
from nnstretch.errors import UsageError
from nnstretch.graph.dtypes import BFLOAT16
from nnstretch.graph.layers import layers
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel, Estimates
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.lowering.candidates import is_native, queue_workloads
from nnstretch.scheduler.lowering.units import unit_graph
from nnstretch.scheduler.measurement.integrated import NEAR, SECONDS, refined, with_known_times
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.runner.runner import Runner
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.parameter_search.explorer import Exploration
from nnstretch.scheduler.parameter_search.thoroughness import explore
from nnstretch.scheduler.placement.joint import Refine, completed, is_placed, placed
from nnstretch.scheduler.placement.sharing import shared_out
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import queue_pool
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.hybrid import FLOAT32, INT8, TYPES, in_one_type, in_type, selected
from nnstretch.scheduler.simulation.costs import SimulatedCosts, check_computable, one_soc
from nnstretch.scheduler.simulation.timing import (
    InterferenceModel,
    MeasuredInterference,
    ProfiledInterference,
    simulate,
)
from nnstretch.support.progress import Progress, silent

_QUICK_SECONDS_INSIDE = 1.0


def plan_model(
    model: ir.Model,
    processors: Processors,
    *,
    tune: bool = True,
    fresh: bool = False,
    coordinate_descent: bool = True,
    progress: Progress | None = None,
    runner: Runner | None = None,
    quick: bool = False,
    copies: CostModel | None = None,
) -> Compiled:
    """Optimises a graph and plans it.

    Args:
        model: an unoptimised graph.
        processors: those to run on; simulated ones take their costs from their profile.
        tune: measure routines that the profile store does not know; otherwise choose by estimates.
        fresh: measure routines even if the profile store knows them.
        coordinate_descent: search routine parameters beyond the routines' short lists.
        progress: called while routines are measured.
        runner: measures single layers; one of its own if None.
        quick: measure with fewer runs of each layer (`open_profiler`) and of the network, as searches do.
        copies: known costs of layout changes; all are measured if None.

    Raises:
        UsageError: external engines are named, but nothing is measured.
    """
    if one_soc(processors.named) is None and tune:
        with open_profiler(processors, fresh=fresh, runner=runner, quick=quick) as costs:
            space = measured_space(
                model,
                processors,
                costs if copies is None else costs.with_copies(copies),
                progress,
                coordinate_descent=coordinate_descent,
                seconds_inside=_QUICK_SECONDS_INSIDE if quick else SECONDS,
            )
            return _selected(space)
    if engines := processors.options.engines:
        raise UsageError(
            f"engines {','.join(engines)} are chosen where they are measured to be faster; tune, or leave them out"
        )
    return _selected(unmeasured_space(model, processors, progress))


def _selected(space: ChoiceSpace) -> Compiled:
    return plan_of(space, selected(space, default_selector()).best)


def simulate_model(
    model: ir.Model, processors: Processors, progress: Progress | None = None
) -> tuple[Compiled, Timeline]:
    """The plan of a graph for simulated processors, and a run of it in simulated time.

    Raises:
        UsageError: the processors are real.
        DeviceError: none of them can compute a layer.
    """
    if one_soc(processors.named) is None:
        raise UsageError(
            f"{', '.join(p.name for p in processors.named)} are not simulated; name those of a profile, as in sim:phone/cpu"
        )
    compiled = plan_model(model, processors, progress=progress)
    return compiled, simulated_run(compiled, processors)


def simulated_run(compiled: Compiled, processors: Processors) -> Timeline:
    """A run of a plan in simulated time.

    Args:
        compiled: planned for the processors.
        processors: simulated ones of one profile.
    """
    soc = one_soc(processors.named)
    assert soc is not None
    parts = dict(zip((p.name for p in processors.named), processors.parts, strict=True))
    queues = {number: parts[queue.processor] for number, queue in enumerate(compiled.plan.queues)}
    return simulate(compiled.plan, ProfiledInterference(soc, queues))


def compile_model(
    model: ir.Model,
    processors: Processors,
    *,
    tune: bool = True,
    coordinate_descent: bool = True,
    progress: Progress | None = None,
    runner: Runner | None = None,
) -> PlanSession:
    """A session for a graph on processors; arguments as in `plan_model`."""
    compiled = plan_model(
        model, processors, tune=tune, coordinate_descent=coordinate_descent, progress=progress, runner=runner
    )
    return PlanSession(compiled)


def measured_space(
    model: ir.Model,
    processors: Processors,
    costs: Profiler,
    progress: Progress | None = None,
    *,
    coordinate_descent: bool = True,
    seconds_inside: float = SECONDS,
    keep_types: bool = False,
) -> ChoiceSpace:
    """Choices with costs that `costs` measures layer by layer and then inside the network; arguments as in `plan_model`.

    Places the layers of a graph without a design on the processors if there are several. For a hybrid of types, the best
    plans in one type are measured inside the network, too, and several processors get the fastest of all, which runs decide
    (`scheduler.placement.sharing`), unless `keep_types`.

    Raises:
        UsageError: as `check_dtype`.
    """
    dtype = processors.options.dtype
    space = space_of_layers(model, processors, costs, progress, coordinate_descent=coordinate_descent)
    inside = in_network(costs, seconds_inside)
    if len(processors.named) == 1:
        for one in TYPES if dtype == HYBRID else ():
            inside(in_type(space, one))
        return inside(space)
    site = costs.site
    runs = (lambda one: site.seconds(_selected(one))) if site.measures else None
    return shared_out(space, interference_of(space, processors, costs), inside, keep_types=keep_types, runs=runs)


def space_of_layers(
    model: ir.Model,
    processors: Processors,
    costs: Profiler,
    progress: Progress | None = None,
    *,
    coordinate_descent: bool = True,
) -> ChoiceSpace:
    """Choices with costs that `costs` measures layer by layer, not placed; arguments as in `measured_space`.

    Raises:
        UsageError: as `check_dtype`.
    """
    dtype, optimized = processors.options.dtype, optimized_for(model, processors)
    check_dtype(optimized, processors)
    _prepare(optimized, processors, costs, progress or silent)
    return choice_space(
        optimized,
        processors.named,
        processors.host,
        in_one_type(costs, FLOAT32, processors.named) if dtype == FLOAT32 else costs,
        progress,
        NEAR,
        coordinate_descent=coordinate_descent,
        in_float32=dtype == FLOAT32,
    )


def in_network(costs: Profiler, seconds: float = SECONDS) -> Refine:
    """Replaces the costs of the space of one processor by times inside the network, known of a target or measured here.

    Args:
        costs: knows or measures the times.
        seconds: time after which nothing more is measured, from a few runs of the network on.
    """
    if costs.site.measures:
        return lambda single: refined(single, costs, seconds=seconds)
    return lambda single: with_known_times(single, costs)


def interference_of(space: ChoiceSpace, processors: Processors, costs: Profiler) -> InterferenceModel:
    """Measured interference between the queues of a space of several processors."""
    return MeasuredInterference(space.pool, costs, measured_contention(processors))


def optimized_for(model: ir.Model, processors: Processors) -> ir.Model:
    """A copy of a graph with the layers that all of these processors may compute (`optimize`)."""
    return optimize(model, float_results=all(one.backend.serves_caller for one in processors.named))


def _prepare(model: ir.Model, processors: Processors, costs: Profiler, progress: Progress) -> None:
    """Prepares to measure the layers of an optimised graph on devices."""
    pool = queue_pool(processors.named, processors.host)
    devices = [queue for queue in pool.queue_of if pool.backend(queue).own_memory]
    if not devices:
        return
    graph = unit_graph(model, is_native(pool))
    for queue in devices:
        costs.prepare(pool.processors[queue], [layer for layer, _ in queue_workloads(graph, pool, queue)], progress)


def unmeasured_space(model: ir.Model, processors: Processors, progress: Progress | None = None) -> ChoiceSpace:
    """Choices with the costs of a simulated system's profile, or with estimates for real processors.

    Raises:
        UsageError: as `check_dtype`, or a hybrid is wanted, whose costs must be measured.
        DeviceError: no simulated processor can compute a layer.
    """
    dtype, optimized = processors.options.dtype, optimized_for(model, processors)
    check_dtype(optimized, processors)
    if dtype == HYBRID:
        raise UsageError(
            "dtype hybrid compares measured times; tune, on a processor that is here, or give float32 or int8"
        )
    soc = one_soc(processors.named)
    check_computable(optimized, processors.named)
    costs: CostModel = Estimates() if soc is None else SimulatedCosts(soc)
    if dtype == FLOAT32:
        costs = in_one_type(costs, FLOAT32, processors.named)
    space = choice_space(optimized, processors.named, processors.host, costs, progress, in_float32=dtype == FLOAT32)
    interference = (
        MeasuredInterference(space.pool, costs, lambda group: [1.0] * len(group))
        if soc is None
        else ProfiledInterference(soc, dict(enumerate(processors.parts)))
    )
    if is_placed(space):
        return completed(space, interference) if costs.measured and len(processors.named) > 1 else space
    return placed(space, interference)


def check_dtype(model: ir.Model, processors: Processors) -> None:
    """Refuses a `CompileOptions.dtype` that an optimised graph or the processors do not have.

    Raises:
        UsageError: no layer is int8, all are and bfloat16 is wanted, or no processor computes int8 layers in floats and one
            is to.
    """
    dtype, named = processors.options.dtype, processors.named
    quantised = any(node.layer.is_int8 for node in layers(model))
    if dtype in (INT8, HYBRID) and not quantised:
        raise UsageError(
            f"the network has no int8 layers for dtype {dtype}; give a file that `nnstretch quantize` wrote"
        )
    if dtype == BFLOAT16 and quantised and not any(n.layer.macs and not n.layer.is_int8 for n in layers(model)):
        raise UsageError("all layers of the network are int8; leave dtype bfloat16, which is for those in float32, out")
    if dtype in (FLOAT32, HYBRID) and quantised and not any(map(computes_float_forms, named)):
        raise UsageError(
            f"{' and '.join(p.name for p in named)} compute{'s' if len(named) == 1 else ''} quantised layers as the file says, "
            f"not in floats as dtype {dtype} wants; name a CPU or an OpenCL device too, as in --processors cpu:0, or leave "
            "dtype out"
        )


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
        trees = LearnedCosts(store, costs, caches=costs.site.caches).trees
        graph = unit_graph(optimized_for(model, processors), is_native(pool))
        found = explore(graph, pool, costs, trees, caches=costs.site.caches, progress=progress)
    return costs.with_settings(found.settings), found.explorations
