"""From a model in any form to a session: the calls that the front door and the commands share."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from nnstretch.devices.engine.build import Isa
from nnstretch.devices.processor import Processor
from nnstretch.devices.spec import ProcessorSpec, parse_processors, usable_cores
from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import load_model
from nnstretch.graph.passes import optimize
from nnstretch.scheduler.candidates import Progress, is_native
from nnstretch.scheduler.compiled import Compiled
from nnstretch.scheduler.costmodel.explorer import Exploration
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.searching import Search, exhaustive, explore, remembering
from nnstretch.scheduler.costs import CostModel
from nnstretch.scheduler.planner import lane_pool, make_plan
from nnstretch.scheduler.profiling import Profiler
from nnstretch.scheduler.session import Session
from nnstretch.scheduler.store import ProfileStore
from nnstretch.scheduler.units import unit_graph

if TYPE_CHECKING:
    from nnstretch.scheduler.prediction import ProfilePredictor


MOST_CORES = 1024
"""NNS_MAX_CORES of nns_engine.h: cores have numbers below it."""


@dataclass(frozen=True)
class Processors:
    """The processors that a caller named, and the CPU that serves lane 0 if none of them is one."""

    named: tuple[Processor, ...]
    host: Processor


def build_processors(text: str, threads: int | None = None) -> Processors:
    """Opens the processors of a specification such as `cpu:0,opencl:0@1`.

    Raises:
        UsageError: the specification is wrong.
        DeviceError: a processor does not exist or does not work.
    """
    specs = parse_processors(text)
    if threads is not None:
        specs = _limit_threads(specs, threads)
    named = tuple(_open(spec) for spec in specs)
    hosts = [p for p in named if p.memory == "host"]
    return Processors(named, hosts[0] if hosts else _open(ProcessorSpec("cpu", cores=usable_cores())))


def _limit_threads(specs: tuple[ProcessorSpec, ...], threads: int) -> tuple[ProcessorSpec, ...]:
    first = next((i for i, s in enumerate(specs) if s.kind == "cpu"), None)
    if threads < 1:
        raise UsageError(f"threads is {threads}; it must be at least 1")
    if first is None:
        raise UsageError("threads limits a CPU's cores, but no CPU is among the processors")
    return tuple(
        replace(s, cores=s.cores[:threads], ratios=s.ratios[:threads]) if i == first else s for i, s in enumerate(specs)
    )


def _open(spec: ProcessorSpec) -> Processor:
    if spec.kind == "cpu":
        from nnstretch.devices.cpu.processor import CpuProcessor

        return CpuProcessor(spec)
    from nnstretch.devices.opencl.processor import OpenCLProcessor

    return OpenCLProcessor(spec)


def foreign_processors(isa: Isa, text: str = "cpu", threads: int | None = None) -> Processors:
    """The CPU of another machine, as groups of cores such as `cpu:0-3,cpu:4-7`, for plans that are made without measuring.

    A CPU without cores gets `threads` of them (1 by default).

    Raises:
        UsageError: the specification is wrong, or names what is no CPU.
    """
    from nnstretch.devices.cpu.processor import CpuProcessor

    cores = range(MOST_CORES if re.search(r"\d", text) else threads or 1)
    specs = parse_processors(text, tuple(cores))
    if any(spec.kind != "cpu" for spec in specs):
        raise UsageError(
            f"processors {text!r} of another machine: only groups of CPU cores can be planned for from here"
        )
    if threads is not None:
        specs = _limit_threads(specs, threads)
    named = tuple(CpuProcessor(spec, isa) for spec in specs)
    return Processors(named, named[0])


def load_any(model: Any, example_input: Any = None, shapes: dict[str, tuple[int, ...]] | None = None) -> ir.Model:
    """The unoptimised graph of a path, zoo name, `module.py:factory`, torch module or onnx_ir model."""
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, str | Path):
        return load_model(str(model), shapes)
    from nnstretch.frontends.torch_module import export

    if example_input is None:
        raise UsageError("a torch module needs example_input, a tensor of the shape to compile for")
    return export(model, example_input)


def plan_model(
    model: ir.Model,
    processors: Processors,
    *,
    tune: bool = True,
    search: Search = "default",
    told: dict[str, Exploration] | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Optimises the graph and plans it; with `tune`, routines are measured unless the profile store knows them.

    Args:
        model: an unoptimised graph.
        processors: what it may run on.
        tune: whether costs are measured, not estimated.
        search: how thoroughly routine parameters are searched while tuning.
        told: filled with what a learned search found, by processor.
        progress: told how far measuring has come.

    Raises:
        MissingExtraError: a learned search without xgboost.
    """
    graph = optimize(model)
    costs = _tuning_costs(graph, processors, search, told, progress) if tune else None
    return make_plan(graph, processors.named, processors.host, costs, progress=progress)


def _tuning_costs(
    graph: ir.Model,
    processors: Processors,
    search: Search,
    told: dict[str, Exploration] | None,
    progress: Progress | None,
) -> CostModel:
    measured = profiler(processors)
    if search == "default":
        return remembering(measured, ProfileStore())
    if search == "exhaustive":
        return exhaustive(measured)
    pool = lane_pool(processors.named, processors.host)
    prior = LearnedCosts(ProfileStore(), measured)
    found = explore(unit_graph(graph, is_native(pool)), pool, measured, prior.trees, progress=progress)
    if told is not None:
        told.update(found.explorations)
    return found.costs


def profiler(processors: Processors) -> Profiler:
    """Measured costs on processors, kept in the profile store of the cache directory."""
    made = Profiler(ProfileStore(), processors.host)
    made.watch(processors.named)
    return made


def compile_model(
    model: ir.Model, processors: Processors, *, tune: bool = True, progress: Progress | None = None
) -> Session:
    """A session for a graph on processors."""
    return Session.from_compiled(plan_model(model, processors, tune=tune, progress=progress))


def predictor(processors: Processors, *, learned: bool = False) -> ProfilePredictor:
    """Predicts latencies of designs on processors.

    Args:
        processors: those of the branches.
        learned: layers that nobody measured are predicted from others that somebody did, as far as these allow it; else every
            distinct layer is measured once.
    """
    from nnstretch.scheduler.prediction import ProfilePredictor

    measured = profiler(processors)
    return ProfilePredictor(processors.named, measured, LearnedCosts(ProfileStore(), measured) if learned else None)
