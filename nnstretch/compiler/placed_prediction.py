"""Predicted latency of a network without branches as the scheduler runs it on several processors."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from nnstretch.branching.latency.prediction import PlacedPredictor
from nnstretch.compiler.compile import optimized_for, unmeasured_space
from nnstretch.compiler.costs import measured_contention
from nnstretch.compiler.processors import Processors
from nnstretch.errors import ModelError
from nnstretch.scheduler.costmodel.predictor import ProfilePredictor
from nnstretch.scheduler.placement.joint import placed
from nnstretch.scheduler.planner import ChoiceSpace, choice_space
from nnstretch.scheduler.simulation.costs import SimulatedPredictor
from nnstretch.scheduler.simulation.timing import MeasuredInterference


def placed_predictor(
    processors: Processors, exported: Callable[[], ir.Model], predictor: ProfilePredictor | SimulatedPredictor
) -> PlacedPredictor:
    """Predicts a network with layers placed on processors and split, by the costs that predict its branches.

    Args:
        processors: two or more.
        exported: the network's graph, which is not optimised.
        predictor: of the branches.

    Returns:
        A call that takes about a second. Its answer is infinite if torch cannot export the network, or if no placement can
        be predicted.
    """

    def seconds() -> float:
        try:
            report = _space(exported(), processors, predictor).placement
        except ModelError:
            return math.inf
        return math.inf if report is None else report.seconds

    return seconds


def _space(model: ir.Model, processors: Processors, predictor: ProfilePredictor | SimulatedPredictor) -> ChoiceSpace:
    """The space of a placed network."""
    if isinstance(predictor, SimulatedPredictor):
        return unmeasured_space(model, processors)
    space = choice_space(optimized_for(model, processors), processors.named, processors.host, predictor.costs)
    return placed(space, MeasuredInterference(space.pool, predictor.costs, measured_contention(processors)))
