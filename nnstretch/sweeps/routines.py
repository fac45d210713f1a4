"""Routine parameters of one layer as a study: every trial measures one routine with one setting.

Measurements are those of tuning, by the same worker and in the same profile store: later tunings consider the fastest settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Routine
from nnstretch.errors import UsageError
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.sweeps.workers.worker import PRUNED, Evaluate, Outcome

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial


@dataclass(frozen=True, eq=False)
class RoutineSpace:
    """The routines of a layer on a processor, with their parameters.

    Attributes:
        processor: that computes the layer.
        layer: of an optimised graph.
    """

    processor: Processor
    layer: Layer

    @cached_property
    def routines(self) -> dict[str, Routine]:
        """Routines that support the layer, by descriptor.

        Raises:
            UsageError: there is none.
        """
        found = {str(r.descriptor): r for r in self.processor.routines if r.supports(self.layer)}
        if not found:
            raise UsageError(
                f"{self.processor.name} has no routine for {self.layer.name}; give another --layer or processor"
            )
        return found

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The routine, and the values that each parameter of each routine has in its search space."""
        from optuna.distributions import CategoricalDistribution

        space: dict[str, BaseDistribution] = {"routine": CategoricalDistribution(list(self.routines))}
        for name, routine in self.routines.items():
            values: dict[str, dict[Any, None]] = {}
            for setting in routine.search_space(self.layer):
                for parameter, value in setting.items():
                    values.setdefault(parameter, {})[value] = None
            space |= {f"{name}.{parameter}": CategoricalDistribution(list(some)) for parameter, some in values.items()}
        return space

    def candidate(self, parameters: Mapping[str, Any]) -> Candidate:
        """The setting of the chosen routine that has most of its parameters as they are in `parameters`."""
        name = parameters["routine"]
        routine = self.routines[name]

        def equal(setting: Mapping[str, Any]) -> int:
            return sum(parameters.get(f"{name}.{parameter}") == value for parameter, value in setting.items())

        return Candidate(routine, max(routine.search_space(self.layer), key=equal))

    def parameters(self, candidate: Candidate) -> dict[str, Any]:
        """Parameters of a trial that measures a candidate; those of the other routines are left to the sampler."""
        name = str(candidate.routine.descriptor)
        return {"routine": name} | {f"{name}.{key}": value for key, value in candidate.parameters.items()}

    def usual(self) -> list[Candidate]:
        """The settings that tuning considers at first."""
        return [Candidate(r, setting) for r in self.routines.values() for setting in r.parameter_space(self.layer)]


def measuring(space: RoutineSpace, costs: Profiler) -> Evaluate:
    """Evaluates trials by measurements in ms; a routine that fails or computes something wrong is pruned."""

    def evaluate(trial: Trial) -> Outcome:
        candidate = space.candidate(trial.params)
        trial.set_user_attr("parameters", dict(candidate.parameters))
        seconds = costs.seconds(space.processor, candidate.routine, space.layer, candidate.parameters)
        return PRUNED if seconds is None else Outcome((1e3 * seconds,))

    return evaluate
