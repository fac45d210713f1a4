"""Measured runs of designs with inherited weights: latency, memory and energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import export_branched
from nnstretch.compiler.compile import optimized_for, plan_model
from nnstretch.compiler.processors import Processors
from nnstretch.graph.int8_form import INT8
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.sweeps.measures.energy import EnergyMeter
from nnstretch.sweeps.measures.memory import plan_mib
from nnstretch.sweeps.measures.quantizer import Quantizer
from nnstretch.sweeps.space import PredictedDesign

_WARMUP = 5
_MAX_RUNS = 10_000


class Timer(Protocol):
    """Plans and runs designs.

    Attributes:
        tune: measure routines of layers that have no stored measurement.
        energy: whether the energy of a run is a value.
    """

    @property
    def tune(self) -> bool:
        """Whether designs are tuned."""

    @property
    def energy(self) -> bool:
        """Whether the energy of a run is a value."""

    def __call__(self, predicted: PredictedDesign) -> dict[str, float]:
        """Median and 90th percentile of the latency in ms, the plan's memory in MiB, and the energy of a run in mJ.

        Raises:
            NNStretchError: the design cannot be planned or run.
        """


@dataclass(frozen=True)
class DesignTimer:
    """Plans and runs designs on this machine's processors.

    Attributes:
        processors: one per branch.
        costs: of layers, for plans that are not tuned.
        tune: measure routines of layers that have no stored measurement.
        seconds: of timed runs per design.
        meter: of energy; None: energy is not measured.
        quantizer: of designs in int8; None: there are none.
    """

    processors: Processors
    costs: CostModel
    tune: bool = True
    seconds: float = 0.5
    meter: EnergyMeter | None = None
    quantizer: Quantizer | None = None

    @property
    def energy(self) -> bool:
        """Whether the energy of a run is a value."""
        return self.meter is not None

    def __call__(self, predicted: PredictedDesign) -> dict[str, float]:
        """Median and 90th percentile of the latency in ms, the plan's memory in MiB, and the energy of a run in mJ."""
        compiled = planned(predicted, self.processors, self.costs, tune=self.tune, quantizer=self.quantizer)
        with PlanSession(compiled) as session:
            session.time(warmup=_WARMUP, runs=1, budget=self.seconds)
            before = self.meter.read() if self.meter else []
            times = session.time(warmup=0, runs=_MAX_RUNS, budget=self.seconds)
            joules = self.meter.joules_since(before) if self.meter else 0.0
        median, high = np.percentile(times, [50, 90])
        found = {"latency": 1e3 * float(median), "p90": 1e3 * float(high), "memory": plan_mib(compiled)}
        return found | ({"energy": 1e3 * joules / len(times)} if self.meter else {})


def planned(
    predicted: PredictedDesign,
    processors: Processors,
    costs: CostModel,
    *,
    tune: bool,
    quantizer: Quantizer | None = None,
) -> Compiled:
    """The plan of a design with inherited weights.

    Args:
        predicted: the design.
        processors: one per branch.
        costs: of layers, for plans that are not tuned.
        tune: measure routines of layers that have no stored measurement.
        quantizer: of designs in int8.

    Raises:
        NNStretchError: the design cannot be planned.
    """
    blueprint = predicted.latencies.blueprint
    model = export_branched(build(blueprint, predicted.design), blueprint.traced.example_input)
    if predicted.dtype == INT8:
        assert quantizer is not None
        model = quantizer.quantized(model)
    if tune:
        return plan_model(model, processors)
    return make_plan(optimized_for(model, processors), processors.named, processors.host, costs)
