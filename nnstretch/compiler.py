"""From a model in any form to a session: the calls that the front door and the commands share."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from nnstretch.devices.engine.binding import MAX_CORES
from nnstretch.devices.engine.build import Isa
from nnstretch.devices.guest import guest_routines
from nnstretch.devices.guest_processor import GUESTS, open_guest_processor
from nnstretch.devices.processor import Processor
from nnstretch.devices.routine import Routine
from nnstretch.devices.spec import ProcessorSpec, all_cores, default_cores, parse_processors
from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import load_model
from nnstretch.graph.passes import optimize
from nnstretch.scheduler.candidates import Progress, is_native
from nnstretch.scheduler.compiled import Compiled
from nnstretch.scheduler.costmodel.explorer import Exploration
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.searching import Search, all_settings, explore, remembered_settings
from nnstretch.scheduler.costs import CostModel, Estimates
from nnstretch.scheduler.placement.interplay import MeasuredInterplay
from nnstretch.scheduler.placement.joint import is_placed, placed
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, lane_pool, plan_of
from nnstretch.scheduler.profiling.caches import cache_sizes
from nnstretch.scheduler.profiling.core_speeds import measured_ratios
from nnstretch.scheduler.profiling.integrated import NEAR, refined
from nnstretch.scheduler.profiling.profiler import TOLERANCE, Profiler
from nnstretch.scheduler.profiling.store import ProfileStore
from nnstretch.scheduler.selectors import default_selector
from nnstretch.scheduler.session import Session
from nnstretch.scheduler.simulation.costs import SimulatedCosts, SimulatedPredictor, one_soc
from nnstretch.scheduler.simulation.timing import ProfileInterplay, simulate
from nnstretch.scheduler.slowdowns import Contention
from nnstretch.scheduler.timeline import Timeline
from nnstretch.scheduler.units import unit_graph

if TYPE_CHECKING:
    from nnstretch.scheduler.prediction import ProfilePredictor

HALF_TOLERANCE = 1e-3
"""Tolerance from which on OpenCL routines may store data as float16: with a smaller one, hardly any could win."""


@dataclass(frozen=True)
class Processors:
    """The processors that a caller named, and the CPU that serves lane 0 if none of them is one.

    `engines` are the engines of others that may compute layers on the first CPU. `tolerance` is the error that a routine may
    have against the reference where routines are measured, relative to the output's range.
    """

    named: tuple[Processor, ...]
    host: Processor
    engines: tuple[str, ...] = ()
    tolerance: float = TOLERANCE


def build_processors(
    text: str, threads: int | None = None, engines: Sequence[str] = (), tolerance: float = TOLERANCE
) -> Processors:
    """Opens the processors of a specification such as `cpu:0,opencl:0@1`.

    Where no ratios are written, cores of a CPU that differ in speed get those that they are measured to have.

    Args:
        text: the specification.
        threads: at most so many cores of the first CPU.
        engines: `ort` and `litert` may compute layers on the first CPU where they are measured to be faster.
        tolerance: see `Processors`; from `HALF_TOLERANCE` on OpenCL devices have routines that store float16.

    Raises:
        UsageError: the specification is wrong, there is no such engine, the tolerance is no positive number, or simulated
            processors are mixed with others.
        DeviceError: a processor does not exist or does not work.
        MissingExtraError: an engine is not installed.
    """
    if not 0 < tolerance < math.inf:
        raise UsageError(f"tolerance is {tolerance}; it must be a positive number, such as 1e-4")
    specs = parse_processors(text)
    if threads is not None:
        specs = _limit_threads(specs, threads)
    guests = guest_routines(engines)
    if guests and all(spec.kind != "cpu" for spec in specs):
        raise UsageError(f"engines {','.join(engines)} compute on a CPU, but no CPU is among the processors; name one")
    if "*" not in text:
        specs = tuple(_with_ratios(spec) for spec in specs)
    first = next((spec for spec in specs if spec.kind == "cpu"), None)
    dtypes = ("float32", "float16") if tolerance >= HALF_TOLERANCE else ("float32",)
    devices = [spec for spec in specs if spec.kind == "opencl"]
    if len(devices) > 1:
        _load_drivers(devices)
    named = tuple(_open(spec, guests if spec is first else (), dtypes) for spec in specs)
    one_soc(named)
    hosts = [p for p in named if p.lane == "host"]
    host = hosts[0] if hosts else _open(ProcessorSpec("cpu", cores=default_cores()))
    return Processors(named, host, tuple(engines), tolerance)


def _limit_threads(specs: tuple[ProcessorSpec, ...], threads: int) -> tuple[ProcessorSpec, ...]:
    first = next((i for i, s in enumerate(specs) if s.kind == "cpu"), None)
    if threads < 1:
        raise UsageError(f"threads is {threads}; it must be at least 1")
    if first is None:
        raise UsageError("threads limits a CPU's cores, but no CPU is among the processors")
    return tuple(s.limited(threads) if i == first else s for i, s in enumerate(specs))


def _load_drivers(devices: Sequence[ProcessorSpec]) -> None:
    """Loads OpenCL drivers for the cores of all devices, since the first to load them would decide for the others."""
    from nnstretch.devices.opencl.drivers import load_drivers

    load_drivers(all_cores(devices))


def _with_ratios(spec: ProcessorSpec) -> ProcessorSpec:
    """A group of cores with the ratios of their speeds, if these differ."""
    return replace(spec, ratios=measured_ratios(spec.cores)) if spec.kind == "cpu" and len(spec.cores) > 1 else spec


def _open(spec: ProcessorSpec, guests: Sequence[Routine] = (), dtypes: Sequence[str] = ("float32",)) -> Processor:
    if spec.kind == "cpu":
        from nnstretch.devices.cpu.processor import CpuProcessor

        return CpuProcessor(spec, guests=guests)
    if spec.kind == "sim":
        from nnstretch.devices.simulated.processor import SimulatedProcessor

        return SimulatedProcessor(spec)
    if spec.kind in GUESTS:
        return open_guest_processor(spec)
    from nnstretch.devices.opencl.processor import OpenCLProcessor

    return OpenCLProcessor(spec, dtypes)


def foreign_processors(isa: Isa, text: str = "cpu", threads: int | None = None) -> Processors:
    """The CPU of another machine, as groups of cores such as `cpu:0-3,cpu:4-7`, for plans that are made without measuring.

    A CPU without cores gets `threads` of them (1 by default).

    Raises:
        UsageError: the specification is wrong, or names what is no CPU.
    """
    from nnstretch.devices.cpu.processor import CpuProcessor

    cores = range(MAX_CORES if re.search(r"\d", text) else threads or 1)
    specs = parse_processors(text, tuple(cores))
    if any(spec.kind != "cpu" for spec in specs):
        raise UsageError(
            f"processors {text!r} of another machine: only groups of CPU cores can be planned for from here"
        )
    if threads is not None:
        specs = _limit_threads(specs, threads)
    named = tuple(CpuProcessor(spec, isa) for spec in specs)
    return Processors(named, named[0])


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
    interplay = (
        MeasuredInterplay(space.pool, costs, lambda group: [1.0] * len(group))
        if soc is None
        else ProfileInterplay(soc, dict(enumerate(_parts(processors))))
    )
    return placed(space, interplay)


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
    lanes = {lane: parts[found.processor] for lane, found in enumerate(made.plan.lanes)}
    return made, simulate(made.plan, ProfileInterplay(soc, lanes))


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
    if is_placed(space):
        return refined(space, costs)
    interplay = MeasuredInterplay(space.pool, costs, _contention(processors))
    return placed(space, interplay, lambda single: refined(single, costs))


def _contention(processors: Processors) -> Contention:
    """How much longer groups of processors take together, measured when it is asked for and remembered."""
    from nnstretch.predicting.contention import slowdowns

    return lambda group: slowdowns(processors, group, ProfileStore())


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
    pool = lane_pool(processors.named, processors.host)
    prior = LearnedCosts(ProfileStore(), costs)
    found = explore(unit_graph(optimize(model), is_native(pool)), pool, costs, prior.trees, progress=progress)
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
) -> Session:
    """A session for a graph on processors; arguments are those of `plan_model`."""
    return Session.from_compiled(plan_model(model, processors, tune=tune, climbing=climbing, progress=progress))


def predictor(
    processors: Processors, *, learned: bool | None = None, working_set: int | None = None
) -> ProfilePredictor | SimulatedPredictor:
    """Predicts latencies of designs on processors; on simulated ones, from their profile.

    Args:
        processors: those of the branches.
        learned: layers that nobody measured are predicted from others that somebody did, as far as these allow it, until they
            are to be confirmed; else every distinct layer is measured once. By default if xgboost is installed.
        working_set: bytes that the network goes through in a run (`nnstretch.branching.accounting.working_set`), as layers are
            measured with their weights where a network of this size leaves them; by default in memory.
    """
    soc = one_soc(processors.named)
    if soc is not None:
        return SimulatedPredictor(soc, _parts(processors))
    from nnstretch.scheduler.prediction import ProfilePredictor

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
