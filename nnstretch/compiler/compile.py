"""From a model in any form to a session: the calls that the front door and the commands share."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from nnstretch.compiler.processors import Processors
from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import load_model
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.contention import Contention
from nnstretch.scheduler.costmodel.costs import CostModel, Estimates
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.lowering.candidates import is_native
from nnstretch.scheduler.lowering.units import unit_graph
from nnstretch.scheduler.measurement.caches import cache_sizes
from nnstretch.scheduler.measurement.integrated import NEAR, refined
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.parameter_search.explorer import Exploration
from nnstretch.scheduler.parameter_search.thoroughness import Search, all_settings, explore, remembered_settings
from nnstretch.scheduler.placement.interference import MeasuredInterference
from nnstretch.scheduler.placement.joint import completed, is_placed, placed
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of, queue_pool
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.simulation.costs import SimulatedCosts, SimulatedPredictor, one_soc
from nnstretch.scheduler.simulation.timing import ProfiledInterference, simulate
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    from nnstretch.scheduler.costmodel.predictor import ProfilePredictor


def load_any(
    model: Any,
    example_input: Any = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
) -> ir.Model:
    """The unoptimised graph of a path, zoo name, `module.py:factory`, torch module or onnx_ir model.

    Raises:
        UsageError: a torch module has no example input, or a batch is given for what has its shapes already.
        NNStretchError: it cannot be read or exported.
    """
    if isinstance(model, str | Path):
        return load_model(str(model), shapes, batch=batch)
    if batch is not None:
        raise UsageError(
            "batch is for models by name and ONNX files; give a module an example_input of that many images"
        )
    if isinstance(model, ir.Model):
        return model
    from nnstretch.frontends.torch_module import export

    if example_input is None:
        raise UsageError("a torch module needs example_input, a tensor of the shape to compile for")
    return export(model, example_input)


def plan_model(
    model: ir.Model,
    processors: Processors,
    *,
    tune: bool = True,
    fresh: bool = False,
    climbing: bool = True,
    progress: Progress | None = None,
) -> Compiled:
    """Optimises the graph and plans it; with `tune`, routines are measured unless the profile store knows them.

    With `fresh`, they are measured even then. Without `climbing`, they have the parameters of their short lists.
    Simulated processors have their costs from their profile.

    Raises:
        UsageError: engines of others are to be chosen without measuring.
    """
    if one_soc(processors.named) is None and tune:
        with profiler(processors, fresh=fresh) as measured:
            return _planned(measured_space(model, processors, measured, progress, climbing=climbing))
    if processors.engines:
        raise UsageError(
            f"engines {','.join(processors.engines)} are chosen where they are measured to be faster; tune, or leave them out"
        )
    return _planned(_space_on_paper(model, processors, progress))


def plan_by(model: ir.Model, processors: Processors, costs: CostModel) -> Compiled:
    """Optimises a graph whose layers a design has placed, and plans it by some costs as they are."""
    return _planned(choice_space(optimize(model), processors.named, processors.host, costs))


def _planned(space: ChoiceSpace) -> Compiled:
    return plan_of(space, default_selector().select(space.problem))


def _space_on_paper(model: ir.Model, processors: Processors, progress: Progress | None) -> ChoiceSpace:
    """What there is to choose from with the costs of a profile, or with estimates for real processors."""
    soc = one_soc(processors.named)
    costs = Estimates() if soc is None else SimulatedCosts(soc, _parts(processors))
    space = choice_space(optimize(model), processors.named, processors.host, costs, progress)
    if is_placed(space):
        return space
    interference = (
        MeasuredInterference(space.pool, costs, lambda group: [1.0] * len(group))
        if soc is None
        else ProfiledInterference(soc, dict(enumerate(_parts(processors))))
    )
    return placed(space, interference)


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
    made = plan_model(model, processors, progress=progress)
    parts = {p.name: p.spec.part for p in processors.named}
    queues = {queue: parts[found.processor] for queue, found in enumerate(made.plan.queues)}
    return made, simulate(made.plan, ProfiledInterference(soc, queues))


def _parts(processors: Processors) -> list[str]:
    """What the processors are called in their profile."""
    return [p.spec.part for p in processors.named]


def measured_space(
    model: ir.Model,
    processors: Processors,
    costs: Profiler,
    progress: Progress | None = None,
    *,
    climbing: bool = True,
) -> ChoiceSpace:
    """What there is to choose from for a graph, with costs that are measured layer by layer and in the whole network.

    Layers of a graph that no design has placed are given to the processors, if there are several. With `climbing`, routine
    parameters are looked for beyond those that `costs` offer.
    """
    space = choice_space(optimize(model), processors.named, processors.host, costs, progress, NEAR, climbing=climbing)
    if len(processors.named) == 1:
        return refined(space, costs)
    interference = MeasuredInterference(space.pool, costs, _contention(processors))
    if is_placed(space):
        return completed(space, interference)
    return placed(space, interference, lambda single: refined(single, costs))


def _contention(processors: Processors) -> Contention:
    """How much longer groups of processors take together, measured when it is asked for and remembered."""
    from nnstretch.latency.contention import contention_factors

    def measured(group: Sequence[int]) -> Sequence[float]:
        with closing(ProfileStore()) as store:
            return contention_factors(processors, group, store)

    return measured


def search_settings(
    model: ir.Model, processors: Processors, costs: Profiler, search: Search, progress: Progress | None = None
) -> dict[str, Exploration]:
    """Has selection take routine parameters from what a search finds, which measures a part of them or leaves it to selection.

    Args:
        model: an unoptimised graph.
        processors: what it may run on.
        costs: measure, and are told what to offer from then on.
        search: how thorough it is.
        progress: told how far measuring has come.

    Returns:
        What a learned search found, by processor.

    Raises:
        MissingExtraError: a learned search without xgboost.
    """
    if search == "exhaustive":
        costs.offer(all_settings)
        costs.thorough = True
    if search != "learned":
        return {}
    pool = queue_pool(processors.named, processors.host)
    with closing(ProfileStore()) as store:
        trees = LearnedCosts(store, costs).trees
        found = explore(unit_graph(optimize(model), is_native(pool)), pool, costs, trees, progress=progress)
    costs.offer(found.settings)
    return found.explorations


def profiler(processors: Processors, *, fresh: bool = False) -> Profiler:
    """Measured costs on processors, kept in the profile store of the cache directory.

    Selection is offered what thorough searches found before, beside what routines recommend. With `fresh`, times from before
    this call are ignored.

    Raises:
        UsageError: the processors are simulated.
    """
    if one_soc(processors.named) is not None:
        raise UsageError(
            f"{', '.join(p.name for p in processors.named)} are simulated and cannot be measured; name processors that are here"
        )
    store = ProfileStore()
    described = (p.describe() for p in (*processors.named, processors.host))
    caches = astuple(cache_sizes())
    store.describe([replace(found, caches=caches) for found in described if found is not None])
    made = Profiler(store, processors.host, fresh=fresh, tolerance=processors.tolerance)
    made.watch(processors.named)
    made.offer(remembered_settings(store))
    return made


def compile_model(
    model: ir.Model,
    processors: Processors,
    *,
    tune: bool = True,
    climbing: bool = True,
    progress: Progress | None = None,
) -> PlanSession:
    """A session for a graph on processors; arguments are those of `plan_model`."""
    return PlanSession.from_compiled(plan_model(model, processors, tune=tune, climbing=climbing, progress=progress))


def predictor(
    processors: Processors, *, learned: bool | None = None, working_set: int | None = None
) -> ProfilePredictor | SimulatedPredictor:
    """Predicts latencies of designs on processors; on simulated ones, from their profile.

    Args:
        processors: those of the branches.
        learned: layers that nobody measured are predicted from others that somebody did, as far as these allow it, until they
            are to be confirmed; else every distinct layer is measured once. By default if xgboost is installed.
        working_set: bytes that the network goes through in a run (`nnstretch.branching.design.accounting.working_set`), as
            layers are measured with their weights where a network of this size leaves them; by default in memory.
    """
    soc = one_soc(processors.named)
    if soc is not None:
        return SimulatedPredictor(soc, _parts(processors))
    from nnstretch.scheduler.costmodel.predictor import ProfilePredictor

    if learned is None:
        learned = importlib.util.find_spec("xgboost") is not None
    measured, store = profiler(processors), ProfileStore()
    made = ProfilePredictor(
        processors.named,
        measured,
        _contention(processors),
        LearnedCosts(store, measured) if learned else None,
    )
    if working_set is not None:
        made.expect(working_set)
    return made
