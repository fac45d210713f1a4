"""The planner: from an optimised graph to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Layout
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.costmodel.costs import CostModel, Estimates
from nnstretch.scheduler.lowering.assembly import Assembler
from nnstretch.scheduler.lowering.calls import join_calls
from nnstretch.scheduler.lowering.candidates import check_placements, is_native, unit_choices
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.crossing import Crossings, crossings_of
from nnstretch.scheduler.lowering.lower import UnitLowering
from nnstretch.scheduler.lowering.selection_problem import selection_problem
from nnstretch.scheduler.lowering.units import UnitGraph, unit_graph, working_set
from nnstretch.scheduler.parameter_search.coordinate_descent import descend
from nnstretch.scheduler.placement.bands import BandedSection
from nnstretch.scheduler.plan.compiled import Compiled, PlacementReport
from nnstretch.scheduler.plan.schema import QueuePool, queue_pool
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.problem import Assignment, Problem
from nnstretch.support.progress import Progress


@dataclass(frozen=True, eq=False)
class ChoiceSpace:
    """What a plan is selected from: units, queues, costs, each unit's choices, and the selection problem that they make.

    Attributes:
        host: the CPU that serves queue 0 when no CPU was named.
        placement: report of the automatic placement that units and choices are restricted to, if there was one.
        splits: channels of every share of split layers, by the layer's name.
        bands: sections whose bands are units of the graph.
        type_seconds: predicted seconds of a run on several processors by the type of int8 layers, and in the best mixture.
    """

    graph: UnitGraph
    pool: QueuePool
    costs: CostModel
    host: Processor
    choices: Sequence[Sequence[Choice]]
    problem: Problem
    placement: PlacementReport | None = None
    splits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bands: tuple[BandedSection, ...] = ()
    type_seconds: Mapping[str, float] = field(default_factory=dict)

    def chosen(self, assignment: Assignment) -> list[Choice]:
        """The choice of every unit in an assignment of the problem."""
        return [options[i] for options, i in zip(self.choices, assignment.choices, strict=True)]

    def with_seconds(self, choices: Sequence[Sequence[Choice]]) -> ChoiceSpace:
        """The space with other seconds of its choices; edge costs stay the same."""
        costs = tuple(
            node
            + np.array([(new.seconds or 0.0) - (old.seconds or 0.0) for new, old in zip(after, before, strict=True)])
            for node, after, before in zip(self.problem.costs, choices, self.choices, strict=True)
        )
        return replace(self, choices=choices, problem=replace(self.problem, costs=costs))


def make_plan(
    model: ir.Model,
    processors: Sequence[Processor],
    host: Processor,
    costs: CostModel | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Chooses a routine for every layer and lays out queues, sub-graphs and memory.

    Args:
        model: an optimised graph (`nnstretch.passes.optimize`).
        processors: those that may be used, in the order that designs number them.
        host: a CPU processor whose routines serve queue 0 when no CPU is among `processors`.
        costs: measured costs (`nnstretch.scheduler.measurement.profiler.Profiler`); estimates if None.
        progress: called as `progress(done, total, what)` during measurements.
    """
    space = choice_space(model, processors, host, costs, progress)
    return plan_of(space, default_selector().select(space.problem))


def choice_space(
    model: ir.Model,
    processors: Sequence[Processor],
    host: Processor,
    costs: CostModel | None = None,
    progress: Progress | None = None,
    near: float = 0.0,
    *,
    coordinate_descent: bool = False,
    in_float32: bool = False,
) -> ChoiceSpace:
    """The space that selectors choose from; the first arguments are those of `make_plan`.

    Choices whose cost exceeds the best by at most the share `near` are kept. `coordinate_descent` searches routine parameters
    beyond the settings of `costs`, and measures them. `in_float32` says that `costs` admit float forms of int8 layers only.
    """
    pool = queue_pool(processors, host)
    graph = replace(unit_graph(model, is_native(pool)), in_float32=in_float32)
    check_placements(graph, pool)
    costs = (costs or Estimates()).in_network(working_set(graph))
    if coordinate_descent:
        costs = costs.with_more_settings(descend(graph, pool, costs, progress))
    choices = unit_choices(graph, pool, costs, progress, near)
    return ChoiceSpace(graph, pool, costs, host, choices, selection_problem(graph, choices, pool, costs))


def plan_of(space: ChoiceSpace, assignment: Assignment) -> Compiled:
    """The plan of an assignment of the space's problem."""
    made = plan_of_choices(space.graph, space.chosen(assignment), space.pool, space.costs, space.host.blocked.block)
    return replace(made, selection=assignment, placement=space.placement)


def plan_of_choices(
    graph: UnitGraph,
    chosen: Sequence[Choice],
    pool: QueuePool,
    costs: CostModel,
    block: int,
    crossings: Crossings | None = None,
) -> Compiled:
    """The plan of a choice for every unit.

    Args:
        graph: the units in the order in which queues take them.
        chosen: a choice for each.
        pool: the plan's queues.
        costs: price changes of layout, if they are measured.
        block: channels of a block of the host's layout.
        crossings: of tensors that have several ways; those that `costs` find cheapest if None.
    """
    graph, chosen = join_calls(graph, chosen, pool.processors, costs)
    if crossings is None:
        crossings = crossings_of(graph, chosen, pool, costs)
    coherent = all(p.coherent for p in pool.processors)

    def price(tensor: TensorType, before: Layout, after: Layout, queue: int) -> float | None:
        return costs.reorder_seconds(pool.processors[queue], tensor, before, after) if costs.measured else None

    steps = UnitLowering(graph, chosen, pool.queues, pool.reorders(), coherent, price, crossings).lower()
    plan, constants = Assembler(graph, steps, pool.queues, block).assemble()
    return Compiled(plan, constants, steps.models)
