"""Evaluation of a trial: its design, its limits, and its values from one fidelity to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nnstretch.branching.search.limits import SearchLimits
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.sweeps.feasibility import Bounds, reached, violations
from nnstretch.sweeps.ladder import is_promoted, rungs
from nnstretch.sweeps.measures.accuracy import DesignTraining
from nnstretch.sweeps.measures.measuring import Timer
from nnstretch.sweeps.measures.memory import predicted_mib
from nnstretch.sweeps.measures.place import HERE, Place
from nnstretch.sweeps.measures.results import ResultStore, digest
from nnstretch.sweeps.objectives import REDUCTION, Fidelity, Objective, Values
from nnstretch.sweeps.space import DesignSpace, PredictedDesign
from nnstretch.sweeps.study import DESIGN, FILES, RATIOS, RUNG, TARGET, VALUES
from nnstretch.sweeps.workers.leases import is_given_up
from nnstretch.sweeps.workers.turns import Turns
from nnstretch.sweeps.workers.worker import PRUNED, Outcome

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

_MILLION = 1e6


@dataclass(frozen=True, eq=False)
class DesignEvaluation:
    """Evaluates trials of a study of designs.

    Attributes:
        study: with the trials that promotion compares.
        space: from parameters to designs.
        objectives: of the study.
        fidelity: of the study's values.
        limits: of segments.
        bounds: of designs.
        results: of measured runs.
        machine: what measured runs depend on beside the design.
        place: where layers and designs are measured.
        timer: of measured runs; None: latencies are predicted at every fidelity.
        training: None without data.
        reduction: eta of successive halving.
        turns: of the processes that measure here.
    """

    study: Study
    space: DesignSpace
    objectives: Sequence[Objective]
    fidelity: Fidelity
    limits: SearchLimits
    bounds: Bounds
    results: ResultStore
    machine: str = ""
    place: Place = HERE
    timer: Timer | None = None
    training: DesignTraining | None = None
    reduction: int = REDUCTION
    turns: Turns = field(default_factory=Turns)
    _rungs: tuple[Fidelity, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rungs", rungs(self.fidelity, self.timer is not None))

    def __call__(self, trial: Trial) -> Outcome:
        """The values at the study's fidelity; a trial is pruned where it is beyond a limit, or others are better."""
        with self.turns.alone():  # layers that are not known yet are measured
            limited = self.place.measure(lambda: limited_design(trial, self.space, self.limits, self.bounds))
        predicted, values = limited.predicted, limited.values
        for rung in self._rungs:
            values = values | self._at(rung, trial, predicted)
            trial.set_user_attr(f"{VALUES}{rung.label}", values)
            trial.set_user_attr(RUNG, rung.label)
            if rung is self._rungs[-1]:
                break
            if not limited.is_feasible or not is_promoted(
                values, self._others(trial, rung), self.objectives, self.reduction
            ):
                return PRUNED
        if self.training is not None and self.fidelity >= Fidelity.DISTILLED:
            trial.set_user_attr(FILES, self.training.key(predicted, self.fidelity))
        return Outcome([values[objective.name] for objective in self.objectives])

    def original(self) -> dict[str, float]:
        """The values of the network that the study began with, at the study's fidelity; it keeps its weights.

        Raises:
            NNStretchError: it cannot be measured.
        """
        with self.turns.alone():
            predicted = self.place.measure(lambda: self.space.original)
        values = predicted_values(predicted)
        if Fidelity.MEASURED in self._rungs and self.timer is not None:
            values |= self._timed(predicted, self.timer)[0]
        if self.training is not None and self.fidelity >= Fidelity.DISTILLED:
            values |= self.training.of_original()
        return values

    def _at(self, rung: Fidelity, trial: Trial, predicted: PredictedDesign) -> dict[str, float]:
        """What a fidelity adds to the values of the one before."""
        if rung is Fidelity.MEASURED and self.timer is not None:
            found, target = self._timed(predicted, self.timer)
            if target:
                trial.set_user_attr(TARGET, target)
            return found
        if rung >= Fidelity.DISTILLED and self.training is not None:
            return self.training(predicted, rung)
        return {}

    def _timed(self, predicted: PredictedDesign, timer: Timer) -> tuple[dict[str, float], str]:
        """Measured values, and the target that they are from; no other process works meanwhile, which would disturb the runs.

        Devices of one kind share their results.
        """
        design = predicted.design
        parts = {"design": design.id, "image_size": design.image_size, "machine": self.machine, "tune": timer.tune}
        if predicted.dtype != DEFAULT_DTYPE:
            parts["dtype"] = predicted.dtype
        key = digest({**parts, "energy": True} if timer.energy else parts)

        def measure() -> dict[str, Any]:
            with self.turns.alone():
                found: dict[str, Any] = self.place.measure(lambda: timer(predicted))
                return {**found, TARGET: self.place.target} if self.place.target else found

        found = self.results.get(key, measure)
        target = found.pop(TARGET, "")
        return found, target

    def _others(self, trial: Trial, rung: Fidelity) -> list[Values]:
        """Values of the other trials that are within all limits and have reached a fidelity.

        Where the accuracy is an objective and not known yet, trials compare with those of their own type: int8 costs
        accuracy, which nothing that is known says.
        """
        name = f"{VALUES}{rung.label}"
        waits = rung < Fidelity.DISTILLED and any(objective.name == "accuracy" for objective in self.objectives)
        return [
            other.user_attrs[name]
            for other in self.study.get_trials(deepcopy=False)
            if other.number != trial.number
            and name in other.user_attrs
            and not (waits and other.params.get("dtype") != trial.params.get("dtype"))
            and not is_given_up(other)
            and all(amount <= 0 for amount in other.constraints.values())
        ]


@dataclass(frozen=True)
class LimitedDesign:
    """The design of a trial, before anything is measured.

    Attributes:
        predicted: the design.
        values: those that need no run.
        is_feasible: it is within all limits.
    """

    predicted: PredictedDesign
    values: dict[str, float]
    is_feasible: bool


def limited_design(trial: Trial, space: DesignSpace, limits: SearchLimits, bounds: Bounds) -> LimitedDesign:
    """The design of a trial, whose attributes and constraints are set."""
    predicted = space.design(trial.params)
    values = predicted_values(predicted)
    found = reached(predicted, values, bounds)
    trial.set_user_attr(DESIGN, predicted.design.id)
    trial.set_user_attr(RATIOS, found)
    excess = violations(found, limits, bounds)
    for name, amount in excess.items():
        trial.set_constraint(name, amount)
    return LimitedDesign(predicted, values, all(amount <= 0 for amount in excess.values()))


def predicted_values(predicted: PredictedDesign) -> dict[str, float]:
    """The values of a design that need no run of it."""
    design = predicted.design
    return {
        "latency": 1e3 * predicted.prediction.seconds,
        "macs": design.macs / _MILLION,
        "params": design.params / _MILLION,
        "memory": predicted_mib(predicted),
    }
