"""Transfer times between two processors, from a plan that sends a tensor there and back."""

from __future__ import annotations

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Layout, reorder_layer
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.lowering.assembly import assemble
from nnstretch.scheduler.lowering.lower import lower_units
from nnstretch.scheduler.lowering.queue_pool import queue_pool
from nnstretch.scheduler.lowering.units import Unit, UnitGraph
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.selection.choice import Choice

_RUNS = 100
_BUDGET = 0.05  # seconds
_QUIET = 0.2
"""Quantile of the samples that counts as undisturbed; a disturbance of one queue delays both."""


def round_trip(host: Processor, device: Processor, tensor: TensorType) -> tuple[float, tuple[float, ...]]:
    """Times a tensor's round trip host -> device -> host, which includes three copies.

    Returns:
        Seconds of an undisturbed round trip, and the seconds of every one.
    """
    with PlanSession(_round_trip_plan(host, device, tensor)) as session:
        samples = session.time({}, warmup=2, runs=_RUNS, budget=_BUDGET)
    return float(np.quantile(samples, _QUIET)), tuple(map(float, samples))


def _round_trip_plan(host: Processor, device: Processor, tensor: TensorType) -> Compiled:
    """A plan that copies zeros on the host, then on the device, then into its output on the host."""
    pool = queue_pool([host, device], host)
    layer = reorder_layer(tensor, PLAIN, PLAIN)
    queues = (0, 1, 0)
    names = [f"t{i}" for i in range(len(queues) + 1)]
    units = tuple(Unit(f"copy{i}", layer, (), (names[i],), (names[i + 1],), None) for i in range(len(queues)))
    graph = UnitGraph(units, dict.fromkeys(names, tensor), (names[0],), (names[-1],))
    plain: tuple[Layout, ...] = (PLAIN,)
    routines = [pool.processors[queue].reorder() for queue in queues]
    choices = [
        Choice(queue, r, r.parameter_space(layer)[0], plain, plain) for queue, r in zip(queues, routines, strict=True)
    ]
    steps = lower_units(graph, choices, pool.queues, pool.reorders(), device.coherent, lambda *_: None)
    plan, constants = assemble(graph, steps, pool.queues, host.blocked.block)
    return Compiled(plan, constants, steps.models)
