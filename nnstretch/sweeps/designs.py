"""Sweeps of designs: from a network and options to a study, its warm start, its workers and its front."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from nnstretch.branching.design.accounting import working_set
from nnstretch.branching.design.blueprint import Blueprint, blueprint
from nnstretch.branching.design.design import Design
from nnstretch.branching.latency.int8_predictions import Int8Predictor
from nnstretch.branching.latency.prediction import LatencyPredictor
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.limits import SearchLimits, family_of
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.search import search
from nnstretch.compiler.costs import latency_predictor
from nnstretch.compiler.processors import Processors
from nnstretch.compiler.targets.processors import kind_of
from nnstretch.compiler.targets.site import TargetSite
from nnstretch.errors import DesignError, NNStretchError, UsageError
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.scheduler.costmodel.predictor import ProfilePredictor
from nnstretch.support.image_size import ImageSize, json_size, sides, size_of
from nnstretch.support.progress import Progress, silent
from nnstretch.support.words import counted
from nnstretch.sweeps.evaluation import limited_design
from nnstretch.sweeps.feasibility import Bounds, limits_reached
from nnstretch.sweeps.measures.energy import EnergyMeter
from nnstretch.sweeps.measures.measuring import DesignTimer, Timer
from nnstretch.sweeps.measures.quantizer import Quantizer
from nnstretch.sweeps.measures.target_timer import TargetTimer
from nnstretch.sweeps.objectives import REDUCTION, Direction
from nnstretch.sweeps.samplers import find_sampler
from nnstretch.sweeps.space import DesignSpace, Form
from nnstretch.sweeps.study import (
    ERROR,
    FILES,
    RATIOS,
    RUNG,
    TARGET,
    WARM,
    StudySpec,
    feasible_front,
    without_experimental_warnings,
)
from nnstretch.sweeps.workers.turns import Turns
from nnstretch.sweeps.workers.worker import PRUNED, Evaluate, Outcome, StudyWorker, SweepBudget

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

_SHOWN = 8
"""Designs of a front that its text names."""


@dataclass(frozen=True)
class SweepSpec:
    """What a sweep of designs explores, and how.

    Attributes:
        forms: of the network.
        limits: of segments.
        bounds: of designs.
        names: of the values.
        directions: of the values.
        budget: of the study.
        storage: a journal file or a URL.
        study: its name there.
        resume: go on with a study of this name.
        sampler: its name.
        seed: of all random numbers.
        workers: processes that write to the study.
        warm: designs of the analytic search's front that come first; 0: none.
        reduction: eta of successive halving.
        learned: see `StretchOptions`.
        about: more that must be the same in every process that works on the study.
    """

    forms: tuple[Form, ...] = (Form(),)
    limits: SearchLimits = field(default_factory=SearchLimits)
    bounds: Bounds = field(default_factory=Bounds)
    names: tuple[str, ...] = ("latency", "macs")
    directions: tuple[Direction, ...] = ("minimize", "maximize")
    budget: SweepBudget = field(default_factory=lambda: SweepBudget(100))
    storage: str = "sweep.journal"
    study: str = "sweep"
    resume: bool = False
    sampler: str = "tpe"
    seed: int = 0
    workers: int = 1
    warm: int = 8
    reduction: int = REDUCTION
    learned: bool | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepPoint:
    """A design on the front of a sweep.

    Attributes:
        design: with predictions.
        values: by the name of the objective.
        number: of the trial.
        fidelity: of the values; "" for an objective of the caller's.
        weights: key of the trained weights in the folder of results; None: the design was not trained.
        form: of the network.
        target: that measured it; "" if it was measured on this machine or not at all.
    """

    design: Design
    values: Mapping[str, float]
    number: int
    fidelity: str = ""
    weights: str | None = None
    form: Form = field(default_factory=Form)
    target: str = ""

    def __str__(self) -> str:
        """One line, such as "latency 5.31, macs 1021: design 1a2b3c: 4 meeting points, …"."""
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.values.items())
        return f"{values}: {self.design}"


@dataclass(frozen=True, eq=False)
class SweepResult:
    """What a sweep found.

    Attributes:
        front: designs that no other one dominates, in order of the first objective.
        study: Optuna's, with all trials.
    """

    front: tuple[SweepPoint, ...]
    study: Study

    def __str__(self) -> str:
        """A line on the study, and one for each design of the front, the first ones."""
        trials = len(self.study.get_trials(deepcopy=False))
        lines = [f"sweep: {counted(len(self.front), 'design')} on the front of {trials} trials"]
        lines += [f"  {point}" for point in self.front[:_SHOWN]]
        more = len(self.front) - _SHOWN
        return "\n".join([*lines, *([f"  … and {more} more in front"] if more > 0 else [])])


@dataclass(frozen=True, eq=False)
class DesignSweep:
    """A sweep of the designs of one network.

    Attributes:
        module: the original network.
        example_input: one image, N,C,H,W.
        processors: open.
        spec: what is explored, and how.
        progress: called during long work.
    """

    module: nn.Module
    example_input: Tensor
    processors: Processors
    spec: SweepSpec
    progress: Progress = silent

    @property
    def names(self) -> list[str]:
        """The processors."""
        return [processor.name for processor in self.processors.named]

    @property
    def devices(self) -> list[str] | None:
        """What the processors are, where they are a target's; all targets of a study have the same."""
        if self.processors.site is None:
            return None
        return [kind_of(processor.fingerprint) for processor in self.processors.named]

    @cached_property
    def predictor(self) -> Any:
        """Predicts latencies of layers on the processors."""
        size = working_set(self.module, self.example_input)
        return latency_predictor(self.processors, learned=self.spec.learned, working_set=size)

    @cached_property
    def space(self) -> DesignSpace:
        """The designs to choose from."""
        limits = self.spec.limits.for_family(family_of(self._blueprint(self.spec.forms[0]).traced))
        return DesignSpace(self._latencies, self.spec.forms, self.names, limits)

    def original(self, image_size: ImageSize | None) -> Tensor:
        """An example input of this size."""
        if image_size is None or self.example_input.shape[2:] == sides(image_size):
            return self.example_input
        shape = (*self.example_input.shape[:2], *sides(image_size))
        return torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def _blueprint(self, form: Form) -> Blueprint:
        same = next((b for f, b in self._blueprints.items() if f.image_size == form.image_size), None)
        if form not in self._blueprints:
            multiple = self.processors.host.blocked.block
            self._blueprints[form] = (
                blueprint(self.module, self.original(form.image_size), multiple, form.merge)
                if same is None
                else Blueprint(same.traced, multiple, form.merge)
            )
        return self._blueprints[form]

    @cached_property
    def _blueprints(self) -> dict[Form, Blueprint]:
        return {}

    def _latencies(self, form: Form) -> LatencyTable:
        return LatencyTable(self._blueprint(form), self._predictor(form), len(self.names), splits=True)

    def _predictor(self, form: Form) -> LatencyPredictor:
        """Predicts latencies of layers of a form.

        Raises:
            UsageError: the form is int8, and the processors are simulated.
        """
        if form.dtype == DEFAULT_DTYPE:
            return cast("LatencyPredictor", self.predictor)
        if not isinstance(self.predictor, ProfilePredictor):
            raise UsageError(
                f"{', '.join(self.names)} are simulated in float32 only; leave {form.dtype} out of `dtypes`"
            )
        return Int8Predictor(self.predictor)

    # -- the study ------------------------------------------------------------------------------------------------

    def open(self) -> Study:
        """The study, created or resumed.

        Raises:
            UsageError: there is one and `resume` is false, or it is about something else.
            FileError: the storage cannot be used.
            MissingExtraError: the sampler's library is not installed.
        """
        spec = self.spec
        with without_experimental_warnings():
            find_sampler(spec.sampler)(0)  # a library that is missing is named before there is a study
        about = {
            "network": self.digest,
            "processors": self.names,
            "devices": self.devices,
            "merge": [form.merge.value for form in spec.forms],
            "image sizes": [json_size(size_of(*self.original(form.image_size).shape[2:])) for form in spec.forms],
            **spec.about,
        }
        if any(form.dtype != DEFAULT_DTYPE for form in spec.forms):
            about["dtypes"] = [form.dtype for form in spec.forms]
        return StudySpec(spec.storage, spec.study, spec.names, spec.directions, about, spec.resume, spec.workers).open()

    @cached_property
    def digest(self) -> str:
        """A short name of the network with its weights and the image that it takes."""
        found = hashlib.sha256(str(tuple(self.example_input.shape)).encode())
        for name, tensor in self.module.state_dict().items():
            found.update(f"{name}{tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:12]

    def warm_start(self, study: Study) -> str:
        """Queues the analytic search's front of latency and MACs first, for each type, if the study has no trials yet.

        Returns:
            Why there is no such front, or only a part of it; "" if all of it is queued, or none is wanted.
        """
        if not self.spec.warm or study.get_trials(deepcopy=False):
            return ""
        first = {form.dtype: form for form in reversed(self.spec.forms)}
        count = -(-self.spec.warm // len(first))
        return "; ".join(filter(None, (self._queue_front(study, form, count) for form in reversed(first.values()))))

    def _queue_front(self, study: Study, form: Form, count: int) -> str:
        """Queues designs of the analytic search's front for a form. Returns what `warm_start` does."""
        options = SearchOptions(
            len(self.names),
            self.spec.limits,
            count,
            pareto=True,
            even_if_slower=True,
            progress=self.progress,
        )
        try:
            found, _ = search(self._blueprint(form), self._predictor(form), options)
        except DesignError as error:
            return f"no warm start: {error}"
        reasons = []
        for rank, design in enumerate(found):
            try:
                parameters = self.space.parameters(design, form)
            except DesignError as error:
                reasons.append(str(error))
            else:
                study.enqueue_trial(parameters, user_attrs={WARM: rank})
        return f"warm start without {len(reasons)} of {len(found)} designs: {reasons[0]}" if reasons else ""

    def timer(self, *, tune: bool = True, energy: bool = False, quantizer: Quantizer | None = None) -> Timer | None:
        """Runs designs on the processors, those of a target by its runner; None where they are simulated or remote.

        Args:
            tune: measure routines of layers that have no stored measurement.
            energy: whether the energy of a run is a value.
            quantizer: of designs in int8; None: there are none.

        Raises:
            UsageError: the energy cannot be read there.
        """
        if isinstance(site := self.processors.site, TargetSite):
            if energy and not site.device.probe.shows_energy:
                raise UsageError(
                    f"{site.device.name} has no counter of energy and no battery that can be read; leave energy out of "
                    "--objectives"
                )
            return TargetTimer(site, self.processors, self.predictor.costs, tune, energy, quantizer)
        if not self.runs_here:
            return None
        meter = EnergyMeter() if energy else None
        return DesignTimer(self.processors, self.predictor.costs, tune=tune, meter=meter, quantizer=quantizer)

    @property
    def runs_here(self) -> bool:
        """Whether designs can run on processors of this machine."""
        return isinstance(self.predictor, ProfilePredictor) and self.processors.site is None

    def run(
        self, study: Study, evaluate: Evaluate, *, worker: int = 0, guarded: bool = False, turns: Turns | None = None
    ) -> None:
        """Runs trials until the study has as many as wanted.

        Args:
            study: open.
            evaluate: a trial.
            worker: number of this process among the workers; each has random numbers of its own.
            guarded: whether `evaluate` calls code of the user's.
            turns: of the processes that measure here.

        Raises:
            UsageError: several trials in a row failed.
            FileError: the storage does not answer, or a disk is full.
            LostMachineError: the target cannot be used any more.
        """
        spec = self.spec
        StudyWorker(
            study,
            self.space.distributions,
            evaluate,
            spec.budget,
            find_sampler(spec.sampler),
            spec.seed + 1000 * worker,
            guarded=guarded,
            turns=turns or Turns(),
            progress=self.progress,
        ).run()

    def _nothing_found(self, study: Study) -> NNStretchError:
        """Why a study has no front."""
        within = [
            trial
            for trial in study.get_trials(deepcopy=False)
            if RATIOS in trial.user_attrs and all(amount <= 0 for amount in trial.constraints.values())
        ]
        if not within and (note := self.limits_note(study)):
            return DesignError(note)
        failed = [trial for trial in within if trial.state.name == "FAIL" and ERROR in trial.user_attrs]
        reason = f"; {len(failed)} failed: {failed[-1].user_attrs[ERROR]}" if failed else ""
        return UsageError(
            f"the study has no complete trial{reason}; give it more time (`timeout`) or more trials (`trials`)"
        )

    def limits_note(self, study: Study) -> str:
        """What the designs of a study have reached of the limits that no branched one meets; "" without designs."""
        trials = [trial for trial in study.get_trials(deepcopy=False) if RATIOS in trial.user_attrs]
        ratios = [trial.user_attrs[RATIOS] for trial in trials]
        return limits_reached(ratios, self.space.limits, self.spec.bounds) if ratios else ""

    def result(self, study: Study) -> SweepResult:
        """The front of a study.

        Raises:
            DesignError: no design is within all limits; the message says what was reached.
            UsageError: no trial is complete.
        """
        front = feasible_front(study)
        if not front:
            raise self._nothing_found(study)
        points = []
        for trial in front:
            form = self.space.form(trial.params)
            points.append(
                SweepPoint(
                    self.space.design(trial.params).design,
                    dict(zip(self.spec.names, trial.values, strict=True)),
                    trial.number,
                    trial.user_attrs.get(RUNG, ""),
                    trial.user_attrs.get(FILES),
                    form,
                    trial.user_attrs.get(TARGET, ""),
                )
            )
        return SweepResult(tuple(points), study)


def evaluation_by(
    sweep: DesignSweep, objective: Callable[..., float | Sequence[float]], *, typed: bool = False
) -> Evaluate:
    """Evaluates trials by a function of the caller's; it is not called for designs that are beyond a limit.

    Args:
        sweep: of the designs.
        objective: called with a design.
        typed: whether it also gets the type that the design computes with.
    """

    def evaluate(trial: Trial) -> Outcome:
        limited = limited_design(trial, sweep.space, sweep.space.limits, sweep.spec.bounds)
        if not limited.is_feasible:
            return PRUNED
        predicted = limited.predicted
        found = objective(predicted.design, predicted.dtype) if typed else objective(predicted.design)
        return Outcome(tuple(found) if isinstance(found, Sequence) and not isinstance(found, str) else (found,))

    return evaluate
