"""`nnstretch sweep designs`: opens or resumes a study, runs its workers, writes and shows the front."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import StretchOptions
from nnstretch.cli.console import Reporter
from nnstretch.cli.sweeping.front import FrontFiles, front_table
from nnstretch.cli.sweeping.places import check_one_kind, opened_place
from nnstretch.cli.sweeping.workers import run_workers
from nnstretch.errors import UsageError
from nnstretch.graph.int8_form import INT8
from nnstretch.support.image_size import size_of
from nnstretch.support.progress import Progress, silent
from nnstretch.support.words import counted
from nnstretch.sweeps.objectives import Fidelity, Objective
from nnstretch.sweeps.study import WARM, states

if TYPE_CHECKING:
    from optuna import Study

    from nnstretch.cli.models.networks import Network
    from nnstretch.sweeps.designs import DesignSweep, SweepSpec
    from nnstretch.sweeps.evaluation import DesignEvaluation
    from nnstretch.sweeps.measures.accuracy import DesignTraining
    from nnstretch.sweeps.measures.measuring import Timer
    from nnstretch.sweeps.measures.place import OpenPlace, Place
    from nnstretch.sweeps.measures.quantizer import Quantizer
    from nnstretch.sweeps.workers.turns import Turns
    from nnstretch.training.data.split import Dataset


@dataclass(frozen=True)
class BegunSweep:
    """A sweep with its study.

    Attributes:
        sweep: of the designs.
        study: open.
        place: where designs are measured.
        turns: of the processes that measure here.
        evaluation: of trials.
    """

    sweep: DesignSweep
    study: Study
    place: Place
    turns: Turns
    evaluation: DesignEvaluation

    def run(self, worker: int) -> set[int]:
        """Runs trials as a worker of this number; returns the failed workers: none. Raises as `DesignSweep.run` does."""
        self.sweep.run(self.study, self.evaluation, worker=worker, turns=self.turns)
        return set()


@dataclass(frozen=True)
class DesignJob:
    """A sweep of designs as the command line describes it.

    Attributes:
        network: the original.
        processors: of the branches, as the user wrote them.
        targets: that measure, one per worker; empty: this machine does.
        objectives: of the study.
        fidelity: of the study's values.
        spec: what is explored, and how.
        data: of trainings; None: nothing is trained.
        recipe: of the full training.
        devices: that train: worker n takes number n, modulo their count; empty: all take the fastest one.
        tune: whether measured designs are tuned.
        work: folder of results.
        output: folder for the front; None: it is not written.
        workers: processes.
        worker: number of this process among them; None: it is the one that starts them.
    """

    network: Network
    processors: str
    targets: tuple[str, ...]
    objectives: tuple[Objective, ...]
    fidelity: Fidelity
    spec: SweepSpec
    data: str | None
    recipe: str
    devices: tuple[str, ...]
    tune: bool
    work: Path
    output: Path | None
    workers: int
    worker: int | None

    def run(self, report: Reporter) -> None:
        """Runs the sweep, or its part as a worker.

        Raises:
            NNStretchError: what was found, what was wanted and what to do.
        """
        if self.worker is not None:
            with self._opened(report, self.worker) as place, report.progress("Sweeping") as advance:
                self._begun(place, advance).run(self.worker)
            return
        if len(self.targets) > 1:
            check_one_kind(report, self.targets, self.processors)
        with self._opened(report, 0) as place:
            with report.progress("Sweeping") as advance:
                begun = self._begun(place, advance)
                report.note(place.place.measure(lambda: begun.sweep.warm_start(begun.study)))
                failed = self._run_workers(report) if self.workers > 1 else begun.run(0)
            if not (self.targets and 0 in failed):
                self._finish(report, begun)
                return
        last = next(number for number in range(self.workers) if number not in failed)
        resumed = replace(self, spec=replace(self.spec, resume=True))
        with self._opened(report, last) as place:
            resumed._finish(report, resumed._begun(place, silent))

    def _opened(self, report: Reporter, worker: int) -> AbstractContextManager[OpenPlace]:
        """Where a worker measures."""
        return opened_place(report, self.targets[worker] if self.targets else "", self.processors)

    def _begun(self, place: OpenPlace, progress: Progress) -> BegunSweep:
        """The sweep on a machine, with its study, which is created or resumed.

        Raises:
            NNStretchError: something is refused; then there is no study yet.
        """
        from nnstretch.sweeps.designs import DesignSweep
        from nnstretch.sweeps.workers.turns import Turns

        sweep = DesignSweep(self.network.module, self.network.example_input, place.processors, self.spec, progress)
        if place.place.target:
            self._check_native(place)
        timer = self._timer(sweep)  # what it refuses leaves no study behind, and so does the training
        turns = Turns() if timer is None or not place.is_here else Turns(self.work)
        training = self._training(sweep, turns)
        place.place.measure(lambda: sweep.space.distributions)
        study = sweep.open()
        return BegunSweep(
            sweep, study, place.place, turns, self._evaluation(sweep, study, place, timer, training, turns)
        )

    def _check_native(self, place: OpenPlace) -> None:
        """Refuses a network that a target cannot run.

        Raises:
            ModelError: a layer has no native routine.
        """
        from nnstretch.bench.targets.models import check_for_target
        from nnstretch.compiler.compile import plan_model

        processors = replace(place.processors, site=None)
        check_for_target(plan_model(self.network.export(), processors, tune=False), self.network.spec)

    def _evaluation(
        self,
        sweep: DesignSweep,
        study: Study,
        place: OpenPlace,
        timer: Timer | None,
        training: DesignTraining | None,
        turns: Turns,
    ) -> DesignEvaluation:
        from nnstretch.sweeps.evaluation import DesignEvaluation
        from nnstretch.sweeps.measures.results import ResultStore

        machine = "+".join(processor.fingerprint for processor in sweep.processors.named)
        return DesignEvaluation(
            study,
            sweep.space,
            self.objectives,
            self.fidelity,
            sweep.space.limits,
            self.spec.bounds,
            ResultStore(self.work),
            f"{sweep.digest}+{machine}",
            place.place,
            timer,
            training,
            self.spec.reduction,
            turns,
        )

    def _timer(self, sweep: DesignSweep) -> Timer | None:
        """Runs designs; None on simulated processors.

        Raises:
            UsageError: an objective needs runs and there are none, or energy cannot be read.
        """
        energy = any(objective.name == "energy" for objective in self.objectives)
        timer = sweep.timer(tune=self.tune, energy=energy, quantizer=self._quantizer)
        if timer is None and any(one.known_from is Fidelity.MEASURED for one in self.objectives):
            raise UsageError(
                f"designs cannot run on {self.processors}; leave p90 and energy out of --objectives, or name processors that "
                "are here"
            )
        return timer

    def _training(self, sweep: DesignSweep, turns: Turns) -> DesignTraining | None:
        """Trains designs; None if the study's fidelity needs no training.

        Raises:
            UsageError: there are no images, they are for another task, or there is no such device.
        """
        if self.fidelity < Fidelity.DISTILLED:
            return None
        from nnstretch.sweeps.measures.accuracy import DesignTraining
        from nnstretch.sweeps.measures.results import ResultStore
        from nnstretch.training.loop.torch_settings import find_device
        from nnstretch.training.recipe_files import load_recipe

        if self.data is None:
            raise UsageError(f"accuracies of fidelity {self.fidelity.label} need images; name them with --data")
        devices = [find_device(name) for name in self.devices or (None,)]
        device = devices[(self.worker or 0) % len(devices)]
        return DesignTraining(
            self.network.module,
            self._dataset,
            load_recipe(self.recipe, self.network.spec),
            device,
            ResultStore(self.work),
            {"network": sweep.digest},
            turns,
            self._quantizer,
        )

    @cached_property
    def _dataset(self) -> Dataset:
        """The images of trainings and calibrations.

        Raises:
            UsageError: they are for another task.
            NNStretchError: there are no such images.
        """
        from nnstretch.cli.training import check_classification
        from nnstretch.training.data import load_dataset

        assert self.data is not None
        image = self.network.example_input
        size, channels = size_of(*image.shape[2:]), image.shape[1]
        dataset = load_dataset(self.data, size, channels, preprocessing=self.network.preprocessing)
        check_classification(dataset, "a sweep for accuracy")
        return dataset

    @cached_property
    def _quantizer(self) -> Quantizer | None:
        """Makes designs int8; None if the sweep has none of these.

        Raises:
            UsageError: there are no images to calibrate with.
        """
        if all(form.dtype != INT8 for form in self.spec.forms):
            return None
        from nnstretch.sweeps.measures.quantizer import Quantizer

        if self.data is None:
            raise UsageError(
                "designs in int8 are calibrated by images; name them with --data, or leave int8 out of --dtypes"
            )
        return Quantizer(self._dataset)

    def _front_files(self, sweep: DesignSweep) -> FrontFiles | None:
        """Writes the front; None without a folder."""
        from nnstretch.sweeps.measures.results import ResultStore

        if self.output is None:
            return None
        return FrontFiles(
            self.output, self.network, sweep, self.processors, ResultStore(self.work), self._quantizer, self.tune
        )

    def _run_workers(self, report: Reporter) -> set[int]:
        """Runs the command in several processes; returns the numbers of those that failed.

        Raises:
            UsageError: none of them ended well.
        """
        names = [f"the worker of {target}" for target in self.targets] or [
            f"worker {number}" for number in range(self.workers)
        ]
        return run_workers(report, names, one_openmp_thread=self.fidelity < Fidelity.DISTILLED)

    def _finish(self, report: Reporter, begun: BegunSweep) -> None:
        """Writes and shows the front."""
        sweep = begun.sweep
        written = self._front_files(sweep)
        with report.progress("Writing") as advance:
            result = begun.place.measure(lambda: sweep.result(begun.study))
            original = begun.evaluation.original()
            files = []
            for rank, point in enumerate(result.front):
                advance(rank, len(result.front), point.design.id)
                files.append(None if written is None else written.write(rank, point))
        report.show(front_table(result.front, original, self.objectives, files, self.targets))
        if not any(point.design.meeting_points for point in result.front):
            report.note(f"no branched design is on the front: {sweep.limits_note(result.study)}")
        by_state = states(result.study)
        report.note(
            f"study {self.spec.study!r} in {self.spec.storage}: {counted(by_state['complete'], 'trial')} complete, "
            f"{by_state['pruned']} pruned, {by_state['fail']} failed"
        )
        trials = result.study.get_trials(deepcopy=False)
        warm = {trial.number for trial in trials if WARM in trial.user_attrs}
        waiting = sum(trial.state.name == "WAITING" for trial in trials)
        report.note(_warm_note(len(warm), len(trials), waiting))
        report.finish(
            {
                "study": self.spec.study,
                "storage": self.spec.storage,
                "objectives": [{"name": o.name, "unit": o.unit, "direction": o.direction} for o in self.objectives],
                "fidelity": self.fidelity.label,
                "trials": by_state,
                "processors": sweep.names,
                "original": {objective.name: original[objective.name] for objective in self.objectives},
                "targets": list(self.targets),
                "front": [
                    {
                        "id": point.design.id,
                        "trial": point.number,
                        "values": dict(point.values),
                        "file": file,
                        "merge": point.design.merge.value,
                        "image_size": point.design.image_size,
                        "dtype": point.form.dtype,
                        "meeting_points": point.design.meeting_points,
                        "warm_start": point.number in warm,
                        "target": point.target or None,
                    }
                    for point, file in zip(result.front, files, strict=True)
                ],
            }
        )
        if self.output is not None:
            report.note(f"wrote {counted(len(files), 'design')} to {self.output}{self._advice(begun)}")

    def _advice(self, begun: BegunSweep) -> str:
        """What confirms the figures of the front."""
        if begun.sweep.runs_here:
            inherited = "" if self.fidelity >= Fidelity.DISTILLED else ", whose weights are inherited and not retrained"
            return f"; `nnstretch bench` and `evaluate` take their .nns files{inherited}"
        if not (target := begun.place.target):
            return ""
        processors = ",".join(begun.sweep.names)
        return f"; `nnstretch bench {self.network.spec} --design FILE --target {target} -p {processors}` runs one"


def _warm_note(warm: int, trials: int, waiting: int) -> str:
    """One line if no trial was sampled; else "".

    Args:
        warm: number of designs of the warm start.
        trials: of the study, those that wait included.
        waiting: trials that did not run.
    """
    if not warm or warm < trials:
        return ""
    return (
        f"all {trials - waiting} trials are designs of the warm start, which `nnstretch stretch --pareto` finds, too, and none "
        f"was sampled: the start has {warm} designs, so --trials {2 * warm} samples {warm}; --warm-start 0 leaves it out"
    )


def about_job(job: DesignJob, options: StretchOptions) -> dict[str, Any]:
    """What must be the same in every process that works on a study, beside the network and the processors."""
    return {
        "model": job.network.spec,
        "fidelity": job.fidelity.label,
        "data": job.data,
        "recipe": job.recipe if job.data else None,
        "limits": {name: value for name, value in asdict(options.search_limits()).items() if value is not None},
        "bounds": asdict(job.spec.bounds),
    }
