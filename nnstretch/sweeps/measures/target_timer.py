"""Measured runs of designs on a target: latency, memory and energy."""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.compiler.processors import Processors
from nnstretch.compiler.targets.site import TargetSite
from nnstretch.devices.targets.base import TargetError, TransientTargetError
from nnstretch.devices.targets.results import BenchOptions, ModelResult
from nnstretch.devices.targets.shell import is_storage_error
from nnstretch.errors import ModelError, first_line
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.sweeps.measures.measuring import planned
from nnstretch.sweeps.measures.memory import plan_mib
from nnstretch.sweeps.measures.quantizer import Quantizer
from nnstretch.sweeps.space import PredictedDesign

RUNS = BenchOptions(seconds=0.5, warmup=0.2, patience=120.0)
"""Timed runs of a design."""
NAME = "design"
"""Name of designs in their model files."""
_ATTEMPTS = 2
"""A system ends programs for other reasons than what they compute, too."""


@dataclass(frozen=True)
class TargetTimer:
    """Plans designs here and runs them on a target.

    Attributes:
        site: measures on the target.
        processors: of the target, one per branch.
        costs: of layers, for plans that are not tuned.
        tune: measure routines of layers that have no stored measurement.
        energy: whether the energy of a run is a value.
        quantizer: of designs in int8; None: there are none.
    """

    site: TargetSite
    processors: Processors
    costs: CostModel
    tune: bool = True
    energy: bool = False
    quantizer: Quantizer | None = None

    def __call__(self, predicted: PredictedDesign) -> dict[str, float]:
        """Median and 90th percentile of the latency in ms, the plan's memory in MiB, and the energy of a run in mJ.

        Raises:
            ModelError: the design does not run there, but the target works.
            TargetError: the target cannot be used any more.
            NNStretchError: the design cannot be planned.
        """
        compiled, result = self._attempted(predicted)
        if result.p50_ms is None or result.p90_ms is None:
            raise TargetError(f"{self.site.device.name}: the runner gave no latency")
        found = {"latency": result.p50_ms, "p90": result.p90_ms, "memory": plan_mib(compiled)}
        if not self.energy:
            return found
        if result.energy_j is None:
            raise TargetError(
                f"{self.site.device.name} shows no energy; unplug its charger, or leave energy out of --objectives"
            )
        return {**found, "energy": 1e3 * result.energy_j}

    def _attempted(self, predicted: PredictedDesign) -> tuple[Compiled, ModelResult]:
        """The plan and its runs; a design that ends the runner gets a second attempt."""
        failure = ""
        for _ in range(_ATTEMPTS):
            try:
                compiled = planned(predicted, self.processors, self.costs, tune=self.tune, quantizer=self.quantizer)
                return compiled, self.site.timed(compiled, RUNS, NAME)
            except TransientTargetError:
                raise
            except TargetError as error:
                if is_storage_error(str(error)):
                    raise
                failure = first_line(error)
                self.site.device.check()  # raises if the device is to blame
        raise ModelError(f"design {predicted.design.id} does not run: {failure}")
