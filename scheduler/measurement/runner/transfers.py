"""What it costs that one processor hands a tensor to another: a plan that sends it there and back."""

from __future__ import annotations

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Layout, reorder_layer
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.lowering.lower import draft
from nnstretch.scheduler.lowering.units import Unit, UnitGraph
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import assemble, lane_pool
from nnstretch.scheduler.runtime.session import Session
from nnstretch.scheduler.selection.choice import Choice

_RUNS = 100
_BUDGET = 0.05  # seconds
_QUIET = 0.2
"""Quantile of a round trip's samples that counts as undisturbed: what disturbs one lane holds up both."""


def round_trip(host: Processor, device: Processor, tensor: TensorType) -> tuple[float, tuple[float, ...]]:
    """Seconds of an undisturbed trip host -> device -> host of a tensor, its three copies included; and of every trip."""
    with Session(_round_trip_plan(host, device, tensor)) as session:
        samples = session.time({}, warmup=2, runs=_RUNS, budget=_BUDGET)
    return float(np.quantile(samples, _QUIET)), tuple(map(float, samples))


def _round_trip_plan(host: Processor, device: Processor, tensor: TensorType) -> Compiled:
    """A plan that copies zeros on the host, then on the device, then on the host into its output."""
    pool = lane_pool([host, device], host)
    layer = reorder_layer(tensor, PLAIN, PLAIN)
    lanes = (0, 1, 0)
    names = [f"t{i}" for i in range(len(lanes) + 1)]
    units = tuple(Unit(f"copy{i}", layer, (), (names[i],), (names[i + 1],), None) for i in range(len(lanes)))
    graph = UnitGraph(units, dict.fromkeys(names, tensor), (names[0],), (names[-1],))
    plain: tuple[Layout, ...] = (PLAIN,)
    routines = [pool.processors[lane].reorder() for lane in lanes]
    choices = [
        Choice(lane, r, r.parameter_space(layer)[0], plain, plain) for lane, r in zip(lanes, routines, strict=True)
    ]
    steps = draft(graph, choices, pool.lanes, pool.reorders(), device.coherent, lambda *_: None)
    plan, constants = assemble(graph, steps, pool.lanes, host.blocked.block)
    return Compiled(plan, constants, steps.models)
